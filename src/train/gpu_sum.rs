//! How gradients of GPUs become one, for the learners of both families, and how the host waits for GPUs that wait for each other.

use super::sum::GradientSum;
use super::team::Team;
use crate::Result;
use crate::gpu::nccl::NcclComm;
use crate::gpu::{Device, Event};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How gradients of ranks become one.
pub enum Sum {
    /// One rank: nothing to add up but its own draws, on the device.
    Alone,
    /// On the devices, by NCCL.
    Nccl(NcclComm),
    /// On the host: ranks that share a GPU, and sums that must not depend on the number of ranks.
    Host(Box<GradientSum>),
}

impl Sum {
    /// Joins the GPUs of all ranks, where `PHALANX_NCCL` or more than one rank ask for it.
    ///
    /// `shared`: ranks share a GPU, which NCCL does not do. `blocks` of the parameters where sums must not depend on the
    /// number of ranks. A step has `n_params` and so many `draws` on each rank.
    pub fn choose(
        team: &mut Team,
        device: &Arc<Device>,
        shared: bool,
        n_params: usize,
        draws: usize,
        blocks: Option<Vec<Range<usize>>>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Sum> {
        let (rank, size) = (team.rank(), team.size());
        let wanted = env("PHALANX_NCCL").map_or(size > 1, |value| value != "0");
        if wanted && !shared && blocks.is_none() {
            let comm = NcclComm::connect(device, rank, size, env, |id| {
                let id = team.agree(id)?;
                team.bytes_from_root(|| Ok(id))
            })?;
            log::info!("gradients are added up by NCCL {}", comm.version);
            return Ok(Sum::Nccl(comm));
        }
        if size > 1 || blocks.is_some() {
            return Ok(Sum::Host(Box::new(GradientSum::new(n_params, draws, blocks))));
        }
        Ok(Sum::Alone)
    }

    /// Whether GPUs wait for each other.
    pub fn is_joined(&self, team: &Team) -> bool {
        team.size() > 1 && matches!(self, Sum::Nccl(_))
    }

    /// Waits for all work of the device. Where ranks wait for each other on their GPUs, one that is gone is found out and
    /// named.
    pub fn wait(&mut self, device: &Arc<Device>, team: &mut Team, stall_timeout: Duration) -> Result<()> {
        let event = Event::new(device)?;
        event.record(device.stream())?;
        self.wait_for(&event, team, stall_timeout)
    }

    /// [`Sum::wait`] for a point in a stream.
    pub fn wait_for(&mut self, event: &Event, team: &mut Team, stall_timeout: Duration) -> Result<()> {
        let comm = match self {
            Sum::Nccl(comm) if team.size() > 1 => comm,
            _ => return event.wait(),
        };
        let mut since = Instant::now();
        while !event.passed()? {
            comm.trouble()?;
            if since.elapsed() > stall_timeout {
                // All that are alive come here; the others are named.
                team.barrier().inspect_err(|_| comm.abort())?;
                since = Instant::now();
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}

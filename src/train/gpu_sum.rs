//! How gradients of GPUs become one, for the learners of both families, and how the host waits for GPUs that wait for each other.

use super::sum::GradientSum;
use super::team::Team;
use crate::Result;
use crate::gpu::nccl::NcclComm;
use crate::gpu::{Buffer, Device, Event, Ptr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How gradients of ranks become one.
pub enum Sum {
    /// One rank: nothing to add up but its own draws, on the device.
    Alone,
    /// On the devices, by NCCL.
    Nccl(Joined),
    /// On the host: ranks that share a GPU, and sums that must not depend on the number of ranks.
    Host(Box<GradientSum>),
}

/// GPUs that wait for each other.
pub struct Joined {
    all: NcclComm,
    /// Those that share frames; absent where these are all of them, or none.
    group: Option<NcclComm>,
}

impl Joined {
    fn new(team: &mut Team, device: &Arc<Device>, env: &dyn Fn(&str) -> Option<String>) -> Result<Joined> {
        let (rank, size, each) = (team.rank(), team.size(), team.ranks_per_group());
        let all = NcclComm::connect(device, rank, size, env, |id| {
            let id = team.agree(id)?;
            team.bytes_from_root(|| Ok(id))
        })?;
        if each == 1 || each == size {
            return Ok(Joined { all, group: None });
        }
        let (place, first) = (team.rank_in_group(), team.group() * each);
        let group = NcclComm::connect(device, place, each, env, |id| {
            let id = team.agree(id)?;
            Ok(team.gather_bytes(&id)?.swap_remove(first))
        })?;
        Ok(Joined { all, group: Some(group) })
    }

    /// Sums up the first `n` numbers over all ranks, in place.
    pub fn sum(&self, x: &Buffer<f64>, n: usize) -> Result<()> {
        self.all.sum(x, n)
    }

    /// Sums up over the ranks that share frames, in place.
    ///
    /// # Safety
    ///
    /// There are so many numbers at `x`.
    pub unsafe fn sum_in_group(&self, x: Ptr<f64>, n: usize) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.group.as_ref().unwrap_or(&self.all).sum_at(x, n) }
    }

    fn trouble(&self) -> Result<()> {
        self.group.iter().chain([&self.all]).try_for_each(NcclComm::trouble)
    }

    fn abort(&mut self) {
        self.group.iter_mut().chain([&mut self.all]).for_each(NcclComm::abort);
    }
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
        let size = team.size();
        let wanted = env("PHALANX_NCCL").map_or(size > 1, |value| value != "0");
        if wanted && !shared && blocks.is_none() {
            let joined = Joined::new(team, device, env)?;
            log::info!("gradients are added up by NCCL {}", joined.all.version);
            return Ok(Sum::Nccl(joined));
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
        let joined = match self {
            Sum::Nccl(joined) if team.size() > 1 => joined,
            _ => return event.wait(),
        };
        let mut since = Instant::now();
        while !event.passed()? {
            joined.trouble()?;
            if since.elapsed() > stall_timeout {
                // All that are alive come here; the others are named.
                team.barrier().inspect_err(|_| joined.abort())?;
                since = Instant::now();
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}

//! Sums of gradients over GPUs by NCCL, for the learners of both families: when they are used, and how to wait for them.

use super::team::Team;
use crate::Result;
use crate::engine::cuda::Device;
use crate::engine::cuda::device::Event;
use crate::engine::cuda::nccl::NcclComm;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Joins the GPUs of all ranks, where `PHALANX_NCCL` or more than one rank ask for it.
///
/// `shared`: ranks share a GPU, which NCCL does not do; `reproducible`: sums must not depend on the number of ranks.
pub fn connect(
    team: &mut Team,
    device: &Arc<Device>,
    shared: bool,
    reproducible: bool,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<NcclComm>> {
    let (rank, size) = (team.rank(), team.size());
    let wanted = env("PHALANX_NCCL").map_or(size > 1, |value| value != "0");
    if !wanted || shared || reproducible {
        return Ok(None);
    }
    let comm = NcclComm::connect(device, rank, size, env, |id| {
        let id = team.agree(id)?;
        team.bytes_from_root(|| Ok(id))
    })?;
    log::info!("gradients are added up by NCCL {}", comm.version);
    Ok(Some(comm))
}

/// Waits for all work of the device. Where ranks wait for each other on their GPUs, one that is gone is found out and
/// named.
pub fn wait(
    device: &Arc<Device>,
    comm: Option<&mut NcclComm>,
    team: &mut Team,
    stall_timeout: Duration,
) -> Result<()> {
    let event = Event::new(device)?;
    event.record(device.stream())?;
    wait_for(&event, comm, team, stall_timeout)
}

/// [`wait`] for a point in a stream.
pub fn wait_for(
    event: &Event,
    comm: Option<&mut NcclComm>,
    team: &mut Team,
    stall_timeout: Duration,
) -> Result<()> {
    let Some(comm) = comm.filter(|_| team.size() > 1) else { return event.wait() };
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

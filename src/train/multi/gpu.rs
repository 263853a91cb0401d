//! Learning of several branches with their networks on this rank's GPU, operation by operation; losses, sums and updates are those of the CPU.

use super::learner::{self, MultiLearner};
use super::setup::MultiSetup;
use crate::engine::choice::Gpu;
use crate::engine::cpu::pool::Pool;
use crate::engine::cuda::engine_on_gpu;
use crate::engine::cuda::plan::{PlanEngine, program};
use crate::gpu::Numbers;
use crate::train::session::Session;
use crate::train::team::Team;
use crate::{Result, err};

/// A learner on a GPU; `start_lr` is the learning rate at which prefactors start.
pub fn learner(
    team: &mut Team,
    session: &Session,
    setup: &MultiSetup,
    gpu: &Gpu,
    single: bool,
    start_lr: f64,
) -> Result<MultiLearner<PlanEngine>> {
    if team.ranks_per_group() > 1 {
        return Err(err!(
            "training.ranks_per_frame: on GPUs ranks cannot share frames of a multi-task training"
        )
        .help("leave the key out, or use --device cpu"));
    }
    let env = |name: &str| std::env::var(name).ok();
    let numbers = if single { Numbers::F32 } else { Numbers::F64 };
    let device = team.agree(program::open(&gpu.cuda, gpu.index, numbers, &env))?;
    let pool = team.agree(Pool::new(session.threads.compute))?;
    let n = setup.branches.len();
    learner::learner(team, session.threads, setup, start_lr, true, |branch, _| {
        engine_on_gpu(&branch.model)?;
        let mut engine = PlanEngine::new(&device, &branch.model)?.with_pool(pool.clone());
        // All of them may have a batch there; a power of two, as the whole is.
        engine.core.chunk_bytes = 1 << (engine.core.chunk_bytes / n).max(1).ilog2();
        Ok(engine)
    })
}

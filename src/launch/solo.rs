//! One process that nobody launched as part of a job.

use super::{Place, vars::Vars};
use crate::err;
use crate::error::Result;

pub fn detect(vars: &Vars) -> Result<Option<Place>> {
    refuse_half_a_job(vars)?;
    let rendezvous = None;
    Ok(Some(Place {
        rank: 0,
        size: 1,
        local_rank: 0,
        local_size: 1,
        rendezvous,
        mpi: None,
        job: String::new(),
        restarts: 0,
    }))
}

/// A job of several processes whose variables are only partly there would train as many silent copies.
fn refuse_half_a_job(vars: &Vars) -> Result<()> {
    let size = vars.count("WORLD_SIZE")?;
    if size.is_none_or(|n| n <= 1) {
        return Ok(());
    }
    for name in ["RANK", "MASTER_ADDR", "MASTER_PORT"] {
        if !vars.has(name) {
            let n = size.unwrap_or(1);
            return Err(err!("WORLD_SIZE={n} is set, but {name} is not")
                .help("start the ranks with torchrun, mpirun, srun or horovodrun; or unset WORLD_SIZE for one process"));
        }
    }
    Ok(())
}

//! Hydra: the mpirun of MPICH, Intel MPI and their relatives.

use super::{MpiFamily, Place, vars::Vars};
use crate::error::Result;

const NAMES: [&str; 4] = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

pub fn detect(vars: &Vars) -> Result<Option<Place>> {
    if !NAMES[..2].iter().any(|name| vars.has(name)) {
        return Ok(None);
    }
    // `srun --mpi=pmi2` also sets PMI_RANK and PMI_SIZE, but not Hydra's own local ranks.
    if !vars.has("MPI_LOCALRANKID") && vars.has("SLURM_PROCID") {
        return Ok(None);
    }
    Ok(Some(Place { mpi: Some(MpiFamily::Mpich), ..vars.place(NAMES)? }))
}

//! Open MPI's mpirun, versions 4 and 5.

use super::{MpiFamily, Place, vars::Vars};
use crate::error::Result;

const NAMES: [&str; 4] = [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
];

pub fn detect(vars: &Vars) -> Result<Option<Place>> {
    if !NAMES[..2].iter().any(|name| vars.has(name)) {
        return Ok(None);
    }
    let job = vars.text("PMIX_NAMESPACE").unwrap_or_default();
    Ok(Some(Place { job, mpi: Some(MpiFamily::OpenMpi), ..vars.place(NAMES)? }))
}

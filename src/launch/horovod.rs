//! horovodrun in Gloo mode. In MPI mode it calls mpirun and sets no rank of its own: the MPI launchers see that case.

use super::{Place, Rendezvous, vars::Vars};
use crate::error::Result;

const NAMES: [&str; 4] = ["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"];

pub fn detect(vars: &Vars) -> Result<Option<Place>> {
    if !NAMES[..2].iter().any(|name| vars.has(name)) {
        return Ok(None);
    }
    let address = vars.need_text("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK")?;
    let port = vars.need_port("HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_RANK")?;
    let rendezvous = Some(Rendezvous::HorovodHttp { address, port });
    Ok(Some(Place { rendezvous, ..vars.place(NAMES)? }))
}

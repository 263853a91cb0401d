//! torchrun (PyTorch's elastic launcher), and the same variables set by hand.

use super::{Place, Rendezvous, vars::Vars};
use crate::error::Result;

const NAMES: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

pub fn detect(vars: &Vars) -> Result<Option<Place>> {
    let elastic = vars.has("TORCHELASTIC_RUN_ID");
    // RANK and WORLD_SIZE are common words: by themselves they do not make a job, see `solo`.
    let by_hand = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"].iter().all(|name| vars.has(name));
    if !elastic && !by_hand {
        return Ok(None);
    }
    let place = if elastic || vars.has("LOCAL_RANK") { vars.place(NAMES)? } else { one_for_each_host(vars)? };
    let address = vars.need_text("MASTER_ADDR", "RANK")?;
    let port = vars.need_port("MASTER_PORT", "RANK")?;
    let agent = vars.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let rendezvous = match agent {
        true => Rendezvous::TorchStore { address, port },
        false => Rendezvous::RankZero { address, port },
    };
    Ok(Some(Place {
        rendezvous: Some(rendezvous),
        job: vars.text("TORCHELASTIC_RUN_ID").unwrap_or_default(),
        restarts: vars.count("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
        ..place
    }))
}

/// Variables set by hand for one process on each host leave the local ones out.
fn one_for_each_host(vars: &Vars) -> Result<Place> {
    let place = Place {
        rank: vars.need_count("RANK", "WORLD_SIZE")?,
        size: vars.need_count("WORLD_SIZE", "RANK")?,
        local_rank: 0,
        local_size: 1,
        rendezvous: None,
        mpi: None,
        job: String::new(),
        restarts: 0,
    };
    place.check(NAMES)?;
    Ok(place)
}

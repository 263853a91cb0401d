//! Whether the batches of a run fit into the memory of a GPU, before the first of them is made; where not, how many ranks do.

use super::super::setup::Setup;
use super::kinds::most_of;
use crate::data::Dataset;
use crate::engine::cuda::core::Core;
use crate::engine::cuda::rows::Room;
use crate::neighbor::Cut;
use crate::{Result, err};

/// Ranks that are thought of for one frame.
const MOST_RANKS: usize = 4096;
/// Of what is counted at least, as the real batch is laid out a little otherwise.
const SURE: f64 = 0.9;

/// Refuses a batch that is certainly too large for what is free now. Returns how many bytes its work leaves for frames.
pub(super) fn check(core: &Core, setup: &Setup, cut: Cut) -> Result<usize> {
    let (free, total) = core.device.memory()?;
    let data = &setup.data.training;
    // Those of mixed type may have few real atoms.
    let known = (0..data.systems.len()).filter(|&s| !data.systems[s].mixed);
    let Some(largest) = known.max_by_key(|&s| data.systems[s].n_atoms * data.largest_batch(s).0) else {
        return Ok(free);
    };
    let (system, (size, _)) = (&data.systems[largest], data.largest_batch(largest));
    let need = |parts| bytes(core, setup, largest, Cut { parts, ..cut }).map(|[work, frames]| work + frames);
    if SURE * bytes_at_least(core, data, largest, cut)? as f64 <= free as f64 {
        let [work, _] = bytes(core, setup, largest, cut)?;
        return Ok(free.saturating_sub(work));
    }
    let mut enough = None;
    for parts in cut.parts + 1..=MOST_RANKS.min(system.n_atoms) {
        if need(parts)? <= free {
            enough = Some(parts);
            break;
        }
    }
    let mb = |bytes: usize| bytes as f64 / 1e6;
    let (frames, part) =
        (if size == 1 { "frame" } else { "frames" }, if cut.parts > 1 { "its part of " } else { "" });
    let e = err!(
        "{}: cannot get {:.0} MB for {part}a batch of {size} {frames} of {} atoms ({}): {:.0} of {:.0} MB are free",
        core.device.name,
        mb(need(cut.parts)?),
        system.n_atoms,
        system.path,
        mb(free),
        mb(total)
    );
    Err(e.help(match enough {
        Some(ranks) => format!(
            "lower training.batch_size, or let {ranks} ranks with such a GPU each share a batch (training.ranks_per_frame)"
        ),
        None => "lower training.batch_size, or train on the CPU with --device cpu".to_string(),
    }))
}

/// Bytes of the work on a batch and of its frames, which are as full of neighbours as there are slots; blocks are as large as they may
/// well be. Frames come before those of the last step go.
fn bytes(core: &Core, setup: &Setup, system: usize, cut: Cut) -> Result<[usize; 2]> {
    let data = &setup.data.training;
    let room = most_of(&setup.model, data, system, cut);
    let room = if cut.parts > 1 { room.on_ladder(room.frames) } else { room };
    let there = if data.mixes.is_some() { data.n_frames() } else { data.systems[system].n_frames };
    let batches = if there > room.frames { 2 } else { 1 };
    Ok([core.batch_bytes(room)?, batches * core.frame_bytes(room.rows, setup.model.n_sel())])
}

/// The same with no more than there certainly is: blocks of equal size, and frames without neighbours.
fn bytes_at_least(core: &Core, data: &Dataset, system: usize, cut: Cut) -> Result<usize> {
    let n_atoms = data.systems[system].n_atoms;
    let (_, places) = data.largest_batch(system);
    let frames = places / n_atoms;
    let rows = n_atoms / cut.parts * frames;
    let listed = if cut.parts > 1 { rows } else { places };
    let room = Room { rows, inputs: rows, places, listed, frames, is_shared: cut.parts > 1 };
    Ok(core.batch_bytes(room)? + core.frame_bytes(rows, 0))
}

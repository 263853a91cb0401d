//! How many kinds of batches a data set makes.

use super::super::setup::Setup;
use crate::data::{Dataset, System};
use crate::engine::cuda::rows::Room;
use crate::model::dp::Dp;
use crate::neighbor::Cut;
use std::collections::HashSet;

/// Kinds of batches that get recorded steps of their own; where there are more, batches share them.
const MOST_KINDS: usize = 8;

/// What the largest batch needs where batches are of many kinds. It follows from the data set alone, so that all ranks and
/// all restarts do the same. Blocks of frames are always of many kinds.
pub(super) fn largest_of_many(setup: &Setup, cut: Cut) -> Option<Room> {
    let sets = || std::iter::once(&*setup.data.training).chain(setup.data.validation.as_deref());
    let systems = || sets().flat_map(with_batches);
    let mut kinds = HashSet::new();
    let mut is_many = cut.parts > 1;
    for (system, size) in systems() {
        let mut types = system.types.to_vec();
        types.sort_unstable();
        // The last batch of an epoch has the frames that are left.
        let sizes = [size.min(system.n_frames), system.n_frames % size];
        kinds.extend(sizes.into_iter().filter(|&n| n > 0).map(|n| (types.clone(), n)));
        is_many |= system.mixed || kinds.len() > MOST_KINDS;
        if is_many {
            break;
        }
    }
    let most = |(s, size)| most_of(&setup.model, s, size, cut);
    is_many.then(|| systems().map(most).fold(Room::default(), Room::max))
}

/// The systems of a data set, each with the frames of its batches.
fn with_batches(data: &Dataset) -> impl Iterator<Item = (&System, usize)> {
    data.systems.iter().zip(data.batch_sizes.iter().copied())
}

/// Room for a batch of a system, whatever the types of its atoms are.
pub(super) fn most_of(model: &Dp, system: &System, size: usize, cut: Cut) -> Room {
    let frames = size.min(system.n_frames);
    let rows = Cut::most_of_block(system.n_atoms, cut.parts) * frames;
    let removes = (0..model.n_types()).any(|t| model.removes_vacuum(t));
    Room {
        rows,
        inputs: if removes { 2 * rows } else { rows },
        places: system.n_atoms * frames,
        listed: rows,
        frames,
        is_shared: cut.parts > 1,
    }
}

//! How many kinds of batches a data set makes.

use super::super::setup::Setup;
use crate::data::Dataset;
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
    let mut kinds = HashSet::new();
    let mut is_many = cut.parts > 1 || sets().any(|data| data.mixes.is_some());
    for (system, size) in sets().flat_map(|data| data.systems.iter().zip(&data.batch_sizes)) {
        let mut types = system.types.to_vec();
        types.sort_unstable();
        // The last batch of an epoch has the frames that are left.
        let sizes = [(*size).min(system.n_frames), system.n_frames % size];
        kinds.extend(sizes.into_iter().filter(|&n| n > 0).map(|n| (types.clone(), n)));
        is_many |= system.mixed || kinds.len() > MOST_KINDS;
        if is_many {
            break;
        }
    }
    let most = |data: &Dataset, s: usize| most_of(&setup.model, data, s, cut);
    let rooms = || sets().flat_map(|data| (0..data.systems.len()).map(move |s| most(data, s)));
    is_many.then(|| rooms().fold(Room::default(), Room::max))
}

/// Room for a batch in which no frame has more atoms than those of this system, whatever their types are.
pub(super) fn most_of(model: &Dp, data: &Dataset, system: usize, cut: Cut) -> Room {
    let (frames, atoms) = data.largest_batch(system);
    let n_atoms = data.systems[system].n_atoms;
    let listed = Cut::most_of_block(n_atoms, cut.parts) * frames;
    let rows = if cut.parts == 1 { atoms } else { listed };
    let removes = (0..model.n_types()).any(|t| model.removes_vacuum(t));
    Room {
        rows,
        inputs: if removes { 2 * rows } else { rows },
        places: n_atoms * frames,
        listed,
        frames,
        is_shared: cut.parts > 1,
    }
}

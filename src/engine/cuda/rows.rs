//! How the atoms of a batch become rows, and how many of them a recorded step has room for.

use super::layout::Counts;
use super::shape::FrameShape;
use crate::model::dp::Dp;

/// Words of [`Counts`].
const COUNTS: usize = size_of::<Counts>() / 4;
/// Sizes below this one are not told apart.
const SMALLEST: usize = 64;

/// What a kind of batch has room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    pub rows: usize,
    /// Inputs of all fitting nets: one for each row, and one more where the energy of the atom alone is taken off.
    pub inputs: usize,
    /// Frames times the atoms of the largest of them.
    pub places: usize,
    /// Frames times the most of them whose neighbours are listed: all, or those of a block.
    pub listed: usize,
    pub frames: usize,
    /// Rows are those of blocks, and other ranks have the rest.
    pub is_shared: bool,
}

impl Room {
    /// As much as these frames need.
    pub fn of<'a>(model: &Dp, frames: impl IntoIterator<Item = &'a FrameShape>) -> Room {
        let mut room = Room::default();
        let (mut atoms, mut listed) = (0, 0);
        for frame in frames {
            for t in 0..model.n_types() {
                let n = frame.room_of(t) as usize;
                room.rows += n;
                room.inputs += if model.removes_vacuum(t) { 2 * n } else { n };
            }
            room.frames += 1;
            room.is_shared |= frame.most.is_some();
            atoms = atoms.max(frame.n_atoms);
            let own = |most: &Vec<u32>| most.iter().sum::<u32>() as usize;
            listed = listed.max(frame.most.as_ref().map_or(frame.n_atoms, own));
        }
        Room { places: room.frames * atoms, listed: room.frames * listed, ..room }
    }

    /// Room for either.
    pub fn max(self, other: Room) -> Room {
        Room {
            rows: self.rows.max(other.rows),
            inputs: self.inputs.max(other.inputs),
            places: self.places.max(other.places),
            listed: self.listed.max(other.listed),
            frames: self.frames.max(other.frames),
            is_shared: self.is_shared || other.is_shared,
        }
    }

    /// The step of the ladder on which this room stands; any number of frames up to `most_frames` has room there.
    pub fn on_ladder(self, most_frames: usize) -> Room {
        Room {
            rows: rung(self.rows),
            inputs: rung(self.inputs),
            places: rung(self.places),
            listed: rung(self.listed),
            frames: most_frames,
            is_shared: self.is_shared,
        }
    }
}

/// The next larger one of 4, 5, 6, 7 times a power of two. Rooms cost little where they are larger than what is in them, as
/// blocks without work end at once: a few steps for a whole data set are worth more than a close fit.
pub(super) fn rung(n: usize) -> usize {
    let n = n.max(SMALLEST);
    n.next_multiple_of(1 << (n.ilog2() - 2))
}

/// What the kernels must know of a batch that lies in a larger room: its counts, the first row and the first input of each
/// type, and `[n_frames, n_types, 2]` first row and number of rows. `begin` in `kernels/descriptor.cu` makes the tables of
/// rows from it.
pub struct Arrangement {
    pub words: Vec<u32>,
    n_types: usize,
}

impl Arrangement {
    pub fn of(model: &Dp, frames: &[&FrameShape]) -> Arrangement {
        let n_types = model.n_types();
        let mut words = vec![0; Self::words_of(n_types, frames.len())];
        let (head, of_frame) = words.split_at_mut(COUNTS + 2 * (n_types + 1));
        let (counts, starts) = head.split_at_mut(COUNTS);
        let (row_start, input_start) = starts.split_at_mut(n_types + 1);
        let (mut row, mut input) = (0, 0);
        for t in 0..n_types {
            for (f, frame) in frames.iter().enumerate() {
                let n = frame.rows_of(t);
                of_frame[2 * (f * n_types + t)..][..2].copy_from_slice(&[row, n]);
                row += n;
            }
            let n = row - row_start[t];
            input += if model.removes_vacuum(t) { 2 * n } else { n };
            (row_start[t + 1], input_start[t + 1]) = (row, input);
        }
        let atoms = frames.iter().map(|f| f.n_atoms).max().unwrap_or(0) as u32;
        let most_rows = frames.iter().map(|f| f.n_rows()).max().unwrap_or(0);
        let n_real = f64::from(frames.iter().map(|f| f.n_real).sum::<u32>()).to_bits();
        let numbers = [0, row, frames.len() as u32, atoms, most_rows * model.n_sel() as u32, 0];
        counts[..6].copy_from_slice(&numbers);
        (counts[6], counts[7]) = (n_real as u32, (n_real >> 32) as u32);
        Arrangement { words, n_types }
    }

    /// Words for a batch of so many frames.
    pub fn words_of(n_types: usize, n_frames: usize) -> usize {
        COUNTS + 2 * (n_types + 1) + 2 * n_frames * n_types
    }

    /// Where the parts begin, in words: first rows, first inputs, rows of frames.
    pub fn parts(n_types: usize) -> [usize; 3] {
        [COUNTS, COUNTS + n_types + 1, COUNTS + 2 * (n_types + 1)]
    }

    fn part(&self, which: usize) -> &[u32] {
        &self.words[Self::parts(self.n_types)[which]..]
    }
}

/// How atoms become rows: by type, then by frame.
pub struct Rows {
    /// `[n_rows]` frame of the batch, and row in that frame.
    pub frame: Vec<u32>,
    pub local: Vec<u32>,
    /// `[n_rows]` row among the inputs of all fitting nets, and that of the same atom without neighbours.
    pub input: Vec<u32>,
    pub vacuum: Vec<u32>,
    /// `[n_rows]` where dL/dA and dE/dA stand: those of a stack of coefficients lie together.
    pub dl: Vec<u32>,
    pub de: Vec<u32>,
    /// `[n_frames, n_types, 2]`
    pub of_frame: Vec<u32>,
    /// `[n_types + 1]` first input row of each group.
    pub group: Vec<u32>,
    /// First row and rows of each stack of coefficients.
    pub stacks: Vec<(usize, usize)>,
}

impl Rows {
    /// `n_stacks` is 1 where all centre types share their coefficients.
    pub fn new(model: &Dp, frames: &[FrameShape], n_stacks: usize) -> Self {
        let n_types = model.n_types();
        let all: Vec<&FrameShape> = frames.iter().collect();
        let arranged = Arrangement::of(model, &all);
        let mut rows = Rows {
            frame: Vec::new(),
            local: Vec::new(),
            input: Vec::new(),
            vacuum: Vec::new(),
            dl: Vec::new(),
            de: Vec::new(),
            of_frame: arranged.part(2).to_vec(),
            group: arranged.part(1)[..=n_types].to_vec(),
            stacks: Vec::new(),
        };
        let row_start = &arranged.part(0)[..=n_types];
        for t in 0..n_types {
            for (f, frame) in frames.iter().enumerate() {
                let own = frame.block[t]..frame.block[t + 1];
                rows.frame.extend(own.clone().map(|_| f as u32));
                rows.local.extend(own);
            }
            let (first, n) = (rows.group[t], row_start[t + 1] - row_start[t]);
            rows.input.extend(first..first + n);
            let vacuum = |k: u32| if model.removes_vacuum(t) { first + n + k } else { u32::MAX };
            rows.vacuum.extend((0..n).map(vacuum));
            if n_stacks > 1 {
                rows.stacks.push((row_start[t] as usize, n as usize));
            }
        }
        if n_stacks == 1 {
            rows.stacks.push((0, rows.frame.len()));
        }
        for &(first, n) in &rows.stacks {
            rows.dl.extend((0..n).map(|k| (2 * first + k) as u32));
            rows.de.extend((0..n).map(|k| (2 * first + n + k) as u32));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::tests::{model, options};

    #[test]
    fn rows_go_by_type_and_then_by_frame() {
        let model = model(options());
        let n_types = model.n_types();
        let block: Vec<u32> = (0..=n_types as u32).map(|t| 2 * t).collect();
        let frame = FrameShape { n_atoms: 2 * n_types, block, n_real: 2 * n_types as u32, most: None };
        let rows = Rows::new(&model, &[frame.clone(), frame], n_types);
        assert_eq!(rows.frame.len(), 4 * n_types);
        assert_eq!((&rows.frame[..4], &rows.local[..6]), (&[0, 0, 1, 1][..], &[0, 1, 0, 1, 2, 3][..]));
        assert_eq!(rows.stacks[1], (4, 4));
        // The adjoints of the second stack follow both of the first.
        assert_eq!((rows.dl[4], rows.de[4]), (8, 12));
        assert_eq!(rows.group[n_types] as usize, 4 * n_types, "no type has its vacuum taken off");
    }

    #[test]
    fn the_ladder_has_few_steps_and_none_is_far_from_what_it_holds() {
        let steps: Vec<usize> = [1, 64, 65, 200, 256, 257, 400, 448, 449].map(rung).to_vec();
        assert_eq!(steps, [64, 64, 80, 224, 256, 320, 448, 448, 512]);
        assert!((64..100_000).all(|n| rung(n) >= n && rung(n) * 4 <= n * 5 + 4));
    }
}

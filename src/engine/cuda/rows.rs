//! How the atoms of a batch become rows.

use super::shape::FrameShape;
use crate::model::dp::Dp;

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
        let mut rows = Rows {
            frame: Vec::new(),
            local: Vec::new(),
            input: Vec::new(),
            vacuum: Vec::new(),
            dl: Vec::new(),
            de: Vec::new(),
            of_frame: vec![0; frames.len() * n_types * 2],
            group: vec![0],
            stacks: Vec::new(),
        };
        let mut input = 0;
        for t in 0..n_types {
            let first = rows.frame.len();
            for (f, frame) in frames.iter().enumerate() {
                let (start, end) = (frame.block[t], frame.block[t + 1]);
                rows.of_frame[2 * (f * n_types + t)] = rows.frame.len() as u32;
                rows.of_frame[2 * (f * n_types + t) + 1] = end - start;
                rows.frame.extend((start..end).map(|_| f as u32));
                rows.local.extend(start..end);
            }
            let n = (rows.frame.len() - first) as u32;
            rows.input.extend(input..input + n);
            input += n;
            if model.removes_vacuum(t) {
                rows.vacuum.extend(input..input + n);
                input += n;
            } else {
                rows.vacuum.extend((0..n).map(|_| u32::MAX));
            }
            rows.group.push(input);
            if n_stacks > 1 {
                rows.stacks.push((first, n as usize));
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

    /// Rows of the batch.
    pub fn n(&self) -> usize {
        self.frame.len()
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
        let frame = FrameShape { n_atoms: 2 * n_types, block };
        let rows = Rows::new(&model, &[frame.clone(), frame], n_types);
        assert_eq!(rows.n(), 4 * n_types);
        assert_eq!((&rows.frame[..4], &rows.local[..6]), (&[0, 0, 1, 1][..], &[0, 1, 0, 1, 2, 3][..]));
        assert_eq!(rows.stacks[1], (4, 4));
        // The adjoints of the second stack follow both of the first.
        assert_eq!((rows.dl[4], rows.de[4]), (8, 12));
        assert_eq!(rows.group[n_types] as usize, 4 * n_types, "no type has its vacuum taken off");
    }
}

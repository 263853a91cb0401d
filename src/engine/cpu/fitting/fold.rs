//! The square of the descriptor that is its own mirror image.
//!
//! D = A A[..M2]^T, flattened `[M1, M2]`, begins with a symmetric square of M2 rows: D(m, k) = D(k, m) there. The first layer
//! of a fitting net multiplies both by rows of W, so the rows can be added up first, and of the square only the
//! lower triangle is kept: 1480 inputs instead of 1600 for the usual sizes.

use crate::engine::cpu::elementwise::add_two;
use crate::engine::cpu::real::Real;
use crate::model::net::{NetShape, Shortcut};

/// How the inputs of the first layer are folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Rows of the symmetric square; 0 where nothing is folded.
    square: usize,
}

impl Fold {
    /// Nothing is folded.
    pub const NONE: Fold = Fold { square: 0 };

    /// The fold for descriptors with a square of `m2` rows; none where a layer needs every input in its place.
    pub fn new(nets: &[NetShape], m2: usize) -> Self {
        let folds = nets.iter().all(|net| net.layers.len() > 1 && net.layers[0].shortcut == Shortcut::None);
        Fold { square: if folds { m2 } else { 0 } }
    }

    /// Rows of the square.
    pub fn square(self) -> usize {
        self.square
    }

    /// Numbers of the triangle, which come first among the folded inputs.
    pub fn triangle(self) -> usize {
        self.square * (self.square + 1) / 2
    }

    /// Numbers of the square, which come first among the inputs.
    fn whole(self) -> usize {
        self.square * self.square
    }

    /// Inputs after the fold.
    pub fn width(self, n_in: usize) -> usize {
        n_in - self.whole() + self.triangle()
    }

    /// The input at which a folded one beyond the triangle stands.
    pub fn unfolded(self, folded: usize) -> usize {
        folded + self.whole() - self.triangle()
    }

    /// Row `m` and column `k <= m` of the triangle, number by number from `start`.
    fn places(self, start: usize) -> impl Iterator<Item = (usize, usize)> {
        let rows = (0..self.square).flat_map(|m| (0..=m).map(move |k| (m, k)));
        rows.skip(start)
    }

    /// The rows of W that belong to the triangle from `start` on, added up in pairs: `out[rows, n_out]`.
    pub fn weights<T: Real>(self, out: &mut [T], start: usize, w: &[T], n_out: usize) {
        let row = |m: usize, k: usize| &w[(m * self.square + k) * n_out..(m * self.square + k + 1) * n_out];
        for (out, (m, k)) in out.chunks_exact_mut(n_out).zip(self.places(start)) {
            match m == k {
                true => out.copy_from_slice(row(m, k)),
                false => add_two(out, row(m, k), row(k, m)),
            }
        }
    }

    /// Where the rows of a gradient of the triangle go: the row of W, and its mirror image where there is one.
    pub fn targets(self, start: usize) -> impl Iterator<Item = (usize, Option<usize>)> {
        let square = self.square;
        self.places(start).map(move |(m, k)| (m * square + k, (m != k).then_some(k * square + m)))
    }
}

/// Spreads the adjoint of the triangle over the symmetric square `[m2, m2]`, so that dA = A square.
pub fn mirror<T: Real>(square: &mut [T], triangle: &[T], m2: usize) {
    let mut at = 0;
    for m in 0..m2 {
        for k in 0..m {
            square[m * m2 + k] = triangle[at + k];
            square[k * m2 + m] = triangle[at + k];
        }
        // D(m, m) = A(m) A(m) has twice the slope.
        square[m * m2 + m] = triangle[at + m] + triangle[at + m];
        at += m + 1;
    }
}

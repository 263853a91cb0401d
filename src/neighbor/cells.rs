//! Atoms sorted into bins at least as wide as needed, so that a search visits a fixed number of bins.

use crate::data::Frame;
use crate::{Result, bail};

/// Atoms of a frame binned along the cell vectors (or along x, y, z for open boundaries).
pub(super) struct Cells {
    periodic: bool,
    cell: [f64; 9],
    /// Bins along each direction.
    n_bins: [i64; 3],
    /// How many bins a search must go to each side.
    reach: [i64; 3],
    /// Bin of each atom; only real atoms are listed in `members`.
    bin_of: Vec<[i64; 3]>,
    /// Start of each bin's members.
    start: Vec<u32>,
    members: Vec<u32>,
    /// Positions wrapped into the home cell `[n_atoms, 3]`.
    wrapped: Vec<f64>,
}

/// The inverse of a row-major 3x3 matrix and its determinant.
pub(super) fn invert(m: &[f64; 9]) -> ([f64; 9], f64) {
    let cofactor = |a: usize, b: usize, c: usize, d: usize| m[a] * m[d] - m[b] * m[c];
    let c0 = cofactor(4, 5, 7, 8);
    let c1 = -cofactor(3, 5, 6, 8);
    let c2 = cofactor(3, 4, 6, 7);
    let det = m[0] * c0 + m[1] * c1 + m[2] * c2;
    let inverse = [
        c0,
        -cofactor(1, 2, 7, 8),
        cofactor(1, 2, 4, 5),
        c1,
        cofactor(0, 2, 6, 8),
        -cofactor(0, 2, 3, 5),
        c2,
        -cofactor(0, 1, 6, 7),
        cofactor(0, 1, 3, 4),
    ];
    (inverse.map(|x| x / det), det)
}

impl Cells {
    /// Bins the real atoms of a frame for searches within `rcut`.
    pub(super) fn new(frame: &Frame, rcut: f64) -> Result<Self> {
        let (cell, periodic) = match frame.cell {
            Some(cell) => (cell, true),
            None => (bounding_box(frame), false),
        };
        let (inverse, det) = invert(&cell);
        if !(det.is_finite() && det != 0.0) {
            bail!("the cell has volume {det} A^3");
        }
        let mut n_bins = [1i64; 3];
        let mut reach = [0i64; 3];
        for k in 0..3 {
            // The height of the cell along direction k is 1 / |column k of the inverse|.
            let column = [inverse[k], inverse[3 + k], inverse[6 + k]];
            let height = 1.0 / (column[0].powi(2) + column[1].powi(2) + column[2].powi(2)).sqrt();
            // Never many more bins than atoms: a huge empty cell must not cost memory.
            let most = (frame.n_atoms() as f64).cbrt().ceil().max(1.0) * 4.0;
            n_bins[k] = (height / rcut).floor().clamp(1.0, most) as i64;
            let width = height / n_bins[k] as f64;
            let images = (rcut / width).ceil();
            if images.is_nan() || images >= 1000.0 {
                bail!("the cell is only {height} A wide, rcut = {rcut} A needs too many periodic images");
            }
            reach[k] = if periodic { images as i64 } else { (images as i64).min(n_bins[k] - 1).max(0) };
        }
        let mut cells = Cells {
            periodic,
            cell,
            n_bins,
            reach,
            bin_of: vec![[0; 3]; frame.n_atoms()],
            start: vec![0; (n_bins[0] * n_bins[1] * n_bins[2]) as usize + 1],
            members: Vec::new(),
            wrapped: vec![0.0; frame.coord.len()],
        };
        cells.fill(frame, &inverse);
        Ok(cells)
    }

    fn fill(&mut self, frame: &Frame, inverse: &[f64; 9]) {
        // Open boundaries: fractional coordinates are taken from the lower corner.
        let origin = if self.periodic { [0.0; 3] } else { lower_corner(frame) };
        for i in 0..frame.n_atoms() {
            let x = [0, 1, 2].map(|k| frame.coord[3 * i + k] - origin[k]);
            let mut whole = [0.0; 3];
            for k in 0..3 {
                let s = x[0] * inverse[k] + x[1] * inverse[3 + k] + x[2] * inverse[6 + k];
                whole[k] = if self.periodic { s.floor() } else { 0.0 };
                let bin = ((s - whole[k]) * self.n_bins[k] as f64).floor() as i64;
                self.bin_of[i][k] = bin.clamp(0, self.n_bins[k] - 1);
            }
            for k in 0..3 {
                let shift: f64 = (0..3).map(|v| whole[v] * self.cell[3 * v + k]).sum();
                self.wrapped[3 * i + k] = frame.coord[3 * i + k] - shift;
            }
        }
        let real = |i: &usize| frame.types[*i] >= 0;
        for i in (0..frame.n_atoms()).filter(real) {
            let bin = self.flat(self.bin_of[i]);
            self.start[bin + 1] += 1;
        }
        for b in 1..self.start.len() {
            self.start[b] += self.start[b - 1];
        }
        let mut next = self.start.clone();
        self.members = vec![0; *self.start.last().unwrap_or(&0) as usize];
        for i in (0..frame.n_atoms()).filter(real) {
            let slot = &mut next[self.flat(self.bin_of[i])];
            self.members[*slot as usize] = i as u32;
            *slot += 1;
        }
    }

    fn flat(&self, bin: [i64; 3]) -> usize {
        ((bin[0] * self.n_bins[1] + bin[1]) * self.n_bins[2] + bin[2]) as usize
    }

    /// Calls `visit(j, d)` for every atom image within reach of atom `i`, with `d = x_j - x_i`.
    pub(super) fn around(&self, i: usize, mut visit: impl FnMut(usize, [f64; 3])) {
        let home = self.bin_of[i];
        let xi = [0, 1, 2].map(|k| self.wrapped[3 * i + k]);
        for a in -self.reach[0]..=self.reach[0] {
            for b in -self.reach[1]..=self.reach[1] {
                for c in -self.reach[2]..=self.reach[2] {
                    let Some((bin, shift)) = self.image(home, [a, b, c]) else { continue };
                    let flat = self.flat(bin);
                    for &j in &self.members[self.start[flat] as usize..self.start[flat + 1] as usize] {
                        let j = j as usize;
                        visit(j, [0, 1, 2].map(|k| self.wrapped[3 * j + k] + shift[k] - xi[k]));
                    }
                }
            }
        }
    }

    /// The bin at an offset from `home` and the lattice shift that leads there; `None` outside open boundaries.
    fn image(&self, home: [i64; 3], offset: [i64; 3]) -> Option<([i64; 3], [f64; 3])> {
        let mut bin = [0; 3];
        let mut shift = [0.0; 3];
        for k in 0..3 {
            let b = home[k] + offset[k];
            let image = b.div_euclid(self.n_bins[k]);
            if image != 0 && !self.periodic {
                return None;
            }
            bin[k] = b.rem_euclid(self.n_bins[k]);
            for v in 0..3 {
                shift[v] += image as f64 * self.cell[3 * k + v];
            }
        }
        Some((bin, shift))
    }
}

fn lower_corner(frame: &Frame) -> [f64; 3] {
    let mut low = [f64::INFINITY; 3];
    for x in frame.coord.chunks_exact(3) {
        for k in 0..3 {
            low[k] = low[k].min(x[k]);
        }
    }
    low.map(|x| if x.is_finite() { x } else { 0.0 })
}

/// A box around all atoms, never thinner than 1 A.
fn bounding_box(frame: &Frame) -> [f64; 9] {
    let low = lower_corner(frame);
    let mut size = [1.0f64; 3];
    for x in frame.coord.chunks_exact(3) {
        for k in 0..3 {
            size[k] = size[k].max((x[k] - low[k]) * (1.0 + 1e-12) + 1e-9);
        }
    }
    [size[0], 0.0, 0.0, 0.0, size[1], 0.0, 0.0, 0.0, size[2]]
}

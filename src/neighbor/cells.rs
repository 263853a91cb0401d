//! Atoms sorted into bins at least as wide as needed, so that a search visits a fixed number of bins.

use super::search::Piece;
use crate::data::Frame;
use crate::{Result, bail};
use std::ops::Range;

/// The real atoms of a frame binned along the cell vectors (or along x, y, z for open boundaries).
///
/// Bins are half a cutoff wide or a little more: a search over five of them in each direction looks at half as many atoms
/// as one over three bins of a whole cutoff. Within a row of bins along the last direction atoms lie side by side.
pub(super) struct Cells {
    periodic: bool,
    cell: [f64; 9],
    /// Bins along each direction.
    n_bins: [i64; 3],
    /// How many bins a search must go to each side.
    reach: [i64; 3],
    /// The farthest periodic images along each direction, and the lattice vectors of all images up to there.
    images: [i64; 3],
    shifts: Vec<[f64; 3]>,
    /// `[n_bins + 1]` start of each bin's members.
    start: Vec<u32>,
    /// Index of each atom in the frame, bin after bin, in the order of the frame within a bin.
    members: Vec<u32>,
    /// Positions of the members wrapped into the home cell, by component.
    wrapped: [Vec<f64>; 3],
}

/// The most periodic images that are looked at.
const MOST_IMAGES: usize = 1 << 20;

/// A part of [`Cells`]: members that lie side by side, and which of their images is meant.
pub(super) struct Stretch {
    pub members: Range<usize>,
    pub image: u32,
}

/// Bins that lie side by side along one direction, in the same image of the cell.
#[derive(Clone, Copy)]
struct Run {
    first: i64,
    last: i64,
    image: i64,
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
            n_bins[k] = (2.0 * height / rcut).floor().clamp(1.0, most) as i64;
            let width = height / n_bins[k] as f64;
            let images = (rcut / width).ceil();
            if images.is_nan() || images >= 1000.0 {
                bail!("the cell is only {height} A wide, rcut = {rcut} A needs too many periodic images");
            }
            reach[k] = if periodic { images as i64 } else { (images as i64).min(n_bins[k] - 1).max(0) };
        }
        let images =
            if periodic { [0, 1, 2].map(|k| (reach[k] + n_bins[k] - 1) / n_bins[k]) } else { [0; 3] };
        let mut cells = Cells {
            periodic,
            cell,
            n_bins,
            reach,
            images,
            shifts: lattice_vectors(&cell, images)?,
            start: vec![0; (n_bins[0] * n_bins[1] * n_bins[2]) as usize + 1],
            members: Vec::new(),
            wrapped: Default::default(),
        };
        cells.fill(frame, &inverse);
        Ok(cells)
    }

    fn fill(&mut self, frame: &Frame, inverse: &[f64; 9]) {
        // Open boundaries: fractional coordinates are taken from the lower corner.
        let origin = if self.periodic { [0.0; 3] } else { lower_corner(frame) };
        let real = || (0..frame.n_atoms()).filter(|&i| frame.types[i] >= 0);
        let mut placed = Vec::with_capacity(frame.n_atoms());
        for i in real() {
            let (bin, x) = self.place(frame, i, origin, inverse);
            self.start[bin + 1] += 1;
            placed.push((bin as u32, x));
        }
        for b in 1..self.start.len() {
            self.start[b] += self.start[b - 1];
        }
        let mut next = self.start.clone();
        self.members = vec![0; placed.len()];
        self.wrapped = [0, 1, 2].map(|_| vec![0.0; placed.len()]);
        for (i, (bin, x)) in real().zip(placed) {
            let slot = next[bin as usize] as usize;
            next[bin as usize] += 1;
            self.members[slot] = i as u32;
            (0..3).for_each(|k| self.wrapped[k][slot] = x[k]);
        }
    }

    /// The bin of an atom, and its position wrapped into the home cell.
    fn place(&self, frame: &Frame, i: usize, origin: [f64; 3], inverse: &[f64; 9]) -> (usize, [f64; 3]) {
        let x = [0, 1, 2].map(|k| frame.coord[3 * i + k] - origin[k]);
        let (mut whole, mut bin) = ([0.0; 3], [0; 3]);
        for k in 0..3 {
            let s = x[0] * inverse[k] + x[1] * inverse[3 + k] + x[2] * inverse[6 + k];
            whole[k] = if self.periodic { s.floor() } else { 0.0 };
            let b = ((s - whole[k]) * self.n_bins[k] as f64).floor() as i64;
            bin[k] = b.clamp(0, self.n_bins[k] - 1);
        }
        let wrapped = [0, 1, 2].map(|k| {
            let shift: f64 = (0..3).map(|v| whole[v] * self.cell[3 * v + k]).sum();
            frame.coord[3 * i + k] - shift
        });
        (self.flat(bin), wrapped)
    }

    fn flat(&self, bin: [i64; 3]) -> usize {
        ((bin[0] * self.n_bins[1] + bin[1]) * self.n_bins[2] + bin[2]) as usize
    }

    pub(super) fn n_bins(&self) -> usize {
        self.start.len() - 1
    }

    /// Index in the frame of each member.
    pub(super) fn members(&self) -> &[u32] {
        &self.members
    }

    /// Wrapped positions of the members, by component.
    pub(super) fn wrapped(&self) -> &[Vec<f64>; 3] {
        &self.wrapped
    }

    /// The members of a bin.
    pub(super) fn bin(&self, bin: usize) -> Range<usize> {
        self.start[bin] as usize..self.start[bin + 1] as usize
    }

    /// All bins that hold atoms, each whole.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let piece = |bin| Piece { bin, members: self.bin(bin) };
        (0..self.n_bins()).map(piece).filter(|piece| !piece.members.is_empty()).collect()
    }

    /// The place of a bin along each direction.
    pub(super) fn place_of(&self, bin: usize) -> [u32; 3] {
        let ([_, nb, nc], bin) = (self.n_bins, bin as i64);
        [bin / (nb * nc), bin / nc % nb, bin % nc].map(|k| k as u32)
    }

    /// About how many neighbours a member of a bin has.
    pub(super) fn estimate(&self, bin: usize, rcut: f64) -> f64 {
        let mut near = 0;
        self.around(bin, |stretch| near += stretch.members.len());
        let (_, volume) = invert(&self.cell);
        let bins = |k: usize| (2 * self.reach[k] + 1) as f64 / self.n_bins[k] as f64;
        let looked_at = volume.abs() * bins(0) * bins(1) * bins(2);
        let sphere = 4.0 / 3.0 * std::f64::consts::PI * rcut.powi(3);
        near as f64 * (sphere / looked_at).min(1.0)
    }

    /// The lattice vectors of all images, by their number.
    pub(super) fn shifts(&self) -> &[[f64; 3]] {
        &self.shifts
    }

    /// The number of the home cell among the images.
    pub(super) fn home(&self) -> u32 {
        (self.shifts.len() / 2) as u32
    }

    /// Calls `visit` for all members, with all images, that may be within the cutoff of a member of `bin`.
    ///
    /// The images of one atom come in ascending order of their numbers.
    pub(super) fn around(&self, bin: usize, mut visit: impl FnMut(Stretch)) {
        let [_, nb, nc] = self.n_bins;
        let bin = bin as i64;
        self.runs(bin / (nb * nc), 0, |a_run| {
            for a in a_run.first..=a_run.last {
                self.runs(bin / nc % nb, 1, |b_run| {
                    for b in b_run.first..=b_run.last {
                        self.runs(bin % nc, 2, |c_run| {
                            let image = self.image([a_run.image, b_run.image, c_run.image]);
                            let first = self.flat([a, b, c_run.first]);
                            let last = first + (c_run.last - c_run.first) as usize;
                            let members = self.start[first] as usize..self.start[last + 1] as usize;
                            if !members.is_empty() {
                                visit(Stretch { members, image });
                            }
                        });
                    }
                });
            }
        });
    }

    /// The bins within reach of `home` along direction `k`: one run for each image of the cell.
    fn runs(&self, home: i64, k: usize, mut visit: impl FnMut(Run)) {
        let (n, from, to) = (self.n_bins[k], home - self.reach[k], home + self.reach[k]);
        if from >= 0 && to < n {
            return visit(Run { first: from, last: to, image: 0 });
        }
        let images = if self.periodic { from.div_euclid(n)..=to.div_euclid(n) } else { 0..=0 };
        for image in images {
            let first = (from - image * n).max(0);
            let last = (to - image * n).min(n - 1);
            visit(Run { first, last, image });
        }
    }

    /// The number of an image.
    fn image(&self, image: [i64; 3]) -> u32 {
        let [ra, rb, rc] = self.images;
        let [a, b, c] = image;
        (((a + ra) * (2 * rb + 1) + b + rb) * (2 * rc + 1) + c + rc) as u32
    }
}

/// The lattice vectors of all images up to these along each direction.
fn lattice_vectors(cell: &[f64; 9], images: [i64; 3]) -> Result<Vec<[f64; 3]>> {
    let count: i64 = images.iter().map(|n| 2 * n + 1).product();
    if count > MOST_IMAGES as i64 {
        bail!("the cell is so small that {count} of its periodic images are within the cutoff");
    }
    let [ra, rb, rc] = images;
    let mut shifts = Vec::with_capacity(count as usize);
    for a in -ra..=ra {
        for b in -rb..=rb {
            for c in -rc..=rc {
                let mut shift = [0.0; 3];
                for (k, image) in [a, b, c].into_iter().enumerate() {
                    for v in 0..3 {
                        shift[v] += image as f64 * cell[3 * k + v];
                    }
                }
                shifts.push(shift);
            }
        }
    }
    Ok(shifts)
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

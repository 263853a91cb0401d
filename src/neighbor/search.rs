//! Who is within the cutoff of whom, bin by bin.
//!
//! All that may be near the atoms of a bin is gathered once, by component; then each of them takes its distances to all of
//! it by vectors. Sorting is by buckets of r^2, which neighbours fill almost evenly, so it takes a time that is linear in
//! their number.

use super::cells::{Cells, Stretch};
use std::cell::Cell;
use std::ops::Range;

/// Above this, neighbouring numbers are one apart: 2^52.
const WHOLE: f64 = 4503599627370496.0;

/// Working memory of a search, kept from one frame to the next by its thread.
#[derive(Default)]
pub(super) struct Search {
    /// Candidates around the bin at hand: positions by component, and who they are.
    x: [Vec<f64>; 3],
    links: Vec<Link>,
    /// Squares of the distances of all candidates from the centre at hand.
    r2: Vec<f64>,
    /// The first `n_near`: candidates within the cutoff, and the squares of their distances.
    near: Vec<u32>,
    near_r2: Vec<f64>,
    n_near: usize,
    /// What is sorted, and where buckets begin.
    sorted: Vec<Key>,
    bucket: Vec<u32>,
}

/// An image of an atom.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Link {
    pub j: u32,
    pub image: u32,
}

/// A neighbour while it is sorted: distances are not negative, so their bits have the order of the numbers.
#[derive(Clone, Copy, Default)]
struct Key {
    r: u64,
    j: u32,
    candidate: u32,
}

thread_local! {
    static SPARE: Cell<Option<Box<Search>>> = const { Cell::new(None) };
}

/// Calls `work` with the working memory of this thread.
pub(super) fn with_search<R>(work: impl FnOnce(&mut Search) -> R) -> R {
    let mut search = SPARE.take().unwrap_or_default();
    let result = work(&mut search);
    SPARE.set(Some(search));
    result
}

/// Members of one bin, all of them or some that lie side by side.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub bin: usize,
    pub members: Range<usize>,
}

/// What was found around one atom.
pub(super) struct Around<'a> {
    pub i: usize,
    xi: [f64; 3],
    search: &'a mut Search,
}

impl Search {
    /// Calls `visit` for all members of some bins.
    pub(super) fn visit(
        &mut self,
        cells: &Cells,
        pieces: &[Piece],
        rcut: f64,
        mut visit: impl FnMut(Around<'_>),
    ) {
        for Piece { bin, members } in pieces {
            if members.is_empty() {
                continue;
            }
            let all = cells.bin(*bin);
            let first = self.gather(cells, &all, *bin);
            for member in members.clone() {
                let xi = [0, 1, 2].map(|c| cells.wrapped()[c][member]);
                self.measure(xi, rcut * rcut, first + member - all.start);
                visit(Around { i: cells.members()[member] as usize, xi, search: self });
            }
        }
    }

    /// Gathers the candidates around a bin; returns where its own members are among them.
    fn gather(&mut self, cells: &Cells, own: &Range<usize>, bin: usize) -> usize {
        self.x.iter_mut().for_each(Vec::clear);
        self.links.clear();
        let mut first = 0;
        cells.around(bin, |Stretch { members, image }| {
            if image == cells.home() && members.start <= own.start && own.end <= members.end {
                first = self.links.len() + own.start - members.start;
            }
            self.links.extend(cells.members()[members.clone()].iter().map(|&j| Link { j, image }));
            let shift = cells.shifts()[image as usize];
            for ((out, x), shift) in self.x.iter_mut().zip(cells.wrapped()).zip(shift) {
                out.extend(x[members.clone()].iter().map(|x| x + shift));
            }
        });
        let n = self.links.len();
        self.r2.resize(n, 0.0);
        self.near.resize(n, 0);
        self.near_r2.resize(n, 0.0);
        first
    }

    /// Finds the candidates within the cutoff of a centre, which is itself the candidate `own`.
    fn measure(&mut self, xi: [f64; 3], rcut2: f64, own: usize) {
        let n = self.links.len();
        let [x, y, z] = &self.x;
        squares(&mut self.r2[..n], &x[..n], &y[..n], &z[..n], xi);
        self.r2[own] = f64::INFINITY;
        // Every candidate is written down, and counts where it is near: without a jump that nobody can foresee.
        let (near, near_r2) = (&mut self.near[..n], &mut self.near_r2[..n]);
        let mut found = 0;
        for (k, &r2) in self.r2[..n].iter().enumerate() {
            near[found] = k as u32;
            near_r2[found] = r2;
            found += usize::from(r2 < rcut2);
        }
        self.n_near = found;
    }

    /// Sorts the neighbours by distance. Ties are broken by index, direction and image, so that the order never
    /// depends on the bins.
    fn sort(&mut self, xi: f64, rcut2: f64) {
        let n = self.n_near;
        let n_buckets = n.next_power_of_two() + 1;
        let scale = (n_buckets - 1) as f64 / rcut2;
        // The sum's last bits are the product, rounded: cheaper than a conversion.
        let bucket_of = |r2: f64| ((r2 * scale + WHOLE).to_bits() & 0xffff_ffff) as usize;
        self.bucket.clear();
        self.bucket.resize(n_buckets + 1, 0);
        for &r2 in &self.near_r2[..n] {
            self.bucket[bucket_of(r2) + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut self.bucket {
            sum += *start;
            *start = sum;
        }
        self.sorted.resize(n, Key::default());
        for (&candidate, &r2) in self.near[..n].iter().zip(&self.near_r2[..n]) {
            let start = &mut self.bucket[bucket_of(r2)];
            let j = self.links[candidate as usize].j;
            self.sorted[*start as usize] = Key { r: r2.sqrt().to_bits(), j, candidate };
            *start += 1;
        }
        let x = &self.x[0];
        let before = |a: &Key, b: &Key| {
            let d = |key: &Key| x[key.candidate as usize] - xi;
            match a.r.cmp(&b.r).then(a.j.cmp(&b.j)) {
                std::cmp::Ordering::Equal => {
                    d(a).total_cmp(&d(b)).then(a.candidate.cmp(&b.candidate)).is_lt()
                }
                order => order.is_lt(),
            }
        };
        for k in 1..n {
            let key = self.sorted[k];
            let mut at = k;
            while at > 0 && before(&key, &self.sorted[at - 1]) {
                self.sorted[at] = self.sorted[at - 1];
                at -= 1;
            }
            self.sorted[at] = key;
        }
    }
}

impl Around<'_> {
    /// Neighbours in no particular order: index and square of the distance.
    pub(super) fn unsorted(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let (search, n) = (&*self.search, self.search.n_near);
        search.near[..n].iter().zip(&search.near_r2).map(|(&c, &r2)| (search.links[c as usize].j, r2))
    }

    /// Neighbours in no particular order: index, distance vector, square of the distance.
    pub(super) fn vectors(&self) -> impl Iterator<Item = (u32, [f64; 3], f64)> + '_ {
        let (search, n) = (&*self.search, self.search.n_near);
        search.near[..n].iter().zip(&search.near_r2).map(|(&c, &r2)| {
            let c = c as usize;
            (search.links[c].j, [0, 1, 2].map(|k| search.x[k][c] - self.xi[k]), r2)
        })
    }

    /// Neighbours, the nearest first.
    pub(super) fn sorted(&mut self, rcut: f64) -> impl ExactSizeIterator<Item = Link> + Clone + '_ {
        self.search.sort(self.xi[0], rcut * rcut);
        let search = &*self.search;
        search.sorted.iter().map(|key| search.links[key.candidate as usize])
    }
}

/// `r2[k] = |x_k - xi|^2`, by vectors where the machine has wide ones: the same bits either way.
fn squares(r2: &mut [f64], x: &[f64], y: &[f64], z: &[f64], xi: [f64; 3]) {
    #[inline(always)]
    fn body(r2: &mut [f64], x: &[f64], y: &[f64], z: &[f64], xi: [f64; 3]) {
        for (((r2, x), y), z) in r2.iter_mut().zip(x).zip(y).zip(z) {
            let d = [x - xi[0], y - xi[1], z - xi[2]];
            *r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        unsafe fn avx2(r2: &mut [f64], x: &[f64], y: &[f64], z: &[f64], xi: [f64; 3]) {
            body(r2, x, y, z, xi);
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has these instructions.
            return unsafe { avx2(r2, x, y, z, xi) };
        }
    }
    body(r2, x, y, z, xi);
}

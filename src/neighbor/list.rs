//! Neighbours of every atom within the cutoff, grouped by type, nearest first.

use super::cells::Cells;
use crate::data::Frame;
use crate::{Result, err};

/// Atoms closer than this are at the same place, A.
const OVERLAP: f64 = 1e-6;

/// A neighbour of one atom: `d = x_j - x_i` of the image at hand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbors {
    pub j: u32,
    pub d: [f64; 3],
    pub r: f64,
}

/// The neighbour list of a frame: pairs concatenated by centre, then by neighbour type, nearest first.
#[derive(Debug, Clone)]
pub struct NeighborList {
    n_types: usize,
    pairs: Vec<Neighbors>,
    /// `[n_atoms * n_types + 1]`
    start: Vec<u32>,
}

impl NeighborList {
    /// Lists the neighbours within `rcut`: all of them, or with `sel` the nearest.
    ///
    /// As in DeePMD-kit's PyTorch backend the nearest `sum(sel)` neighbours of any type are taken first, then of
    /// these at most `sel[t]` of type t: a crowd of one type can push out far neighbours of another.
    ///
    /// Virtual atoms have no neighbours and are nobody's.
    pub fn new(frame: &Frame, rcut: f64, n_types: usize, sel: Option<&[usize]>) -> Result<Self> {
        let cells = Cells::new(frame, rcut)?;
        let mut list = NeighborList { n_types, pairs: Vec::new(), start: vec![0] };
        let mut found: Vec<Neighbors> = Vec::new();
        for i in 0..frame.n_atoms() {
            found.clear();
            if frame.types[i] >= 0 {
                cells.around(i, |j, d| {
                    let r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
                    let itself = i == j && r2 < 1e-12;
                    if r2 < rcut * rcut && !itself {
                        found.push(Neighbors { j: j as u32, d, r: r2.sqrt() });
                    }
                });
            }
            // Ties are broken by index and direction, so that the order never depends on the bins.
            found.sort_by(|a, b| {
                a.r.total_cmp(&b.r).then(a.j.cmp(&b.j)).then_with(|| a.d[0].total_cmp(&b.d[0]))
            });
            if let Some(sel) = sel {
                found.truncate(sel.iter().sum());
            }
            for t in 0..n_types {
                let most = sel.map_or(usize::MAX, |sel| sel[t]);
                let of_type = found.iter().filter(|n| frame.types[n.j as usize] as usize == t);
                list.pairs.extend(of_type.take(most));
                list.start.push(list.pairs.len() as u32);
            }
        }
        Ok(list)
    }

    /// Refuses atoms that are at the same place: their forces have no direction.
    pub fn refuse_overlap(&self) -> Result<()> {
        for (k, range) in self.start.windows(2).enumerate() {
            // The nearest comes first.
            if let Some(nearest) =
                self.pairs[range[0] as usize..range[1] as usize].first().filter(|n| n.r < OVERLAP)
            {
                let (i, j) = (k / self.n_types, nearest.j);
                return Err(
                    err!("atoms {i} and {j} are at the same place").help("remove one of them, or the frame")
                );
            }
        }
        Ok(())
    }

    /// The neighbours of type `t` around atom `i`.
    pub fn of(&self, i: usize, t: usize) -> &[Neighbors] {
        let k = i * self.n_types + t;
        &self.pairs[self.start[k] as usize..self.start[k + 1] as usize]
    }

    pub fn n_pairs(&self) -> usize {
        self.pairs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Labels;
    use std::sync::Arc;

    fn frame(coord: Vec<f64>, types: &[i32], cell: Option<[f64; 9]>) -> Frame {
        let types: Arc<[i32]> = types.into();
        Frame { types, coord, cell, fparam: vec![], aparam: vec![], labels: Labels::default() }
    }

    /// Every image by brute force.
    fn brute(frame: &Frame, rcut: f64, i: usize) -> Vec<f64> {
        let mut found = Vec::new();
        let reach: i32 = if frame.cell.is_some() { 6 } else { 0 };
        let cell = frame.cell.unwrap_or([0.0; 9]);
        for j in 0..frame.n_atoms() {
            for a in -reach..=reach {
                for b in -reach..=reach {
                    for c in -reach..=reach {
                        let image = [a, b, c].map(f64::from);
                        let mut r2 = 0.0;
                        for k in 0..3 {
                            let shift: f64 = (0..3).map(|v| image[v] * cell[3 * v + k]).sum();
                            r2 += (frame.coord[3 * j + k] + shift - frame.coord[3 * i + k]).powi(2);
                        }
                        if r2 < rcut * rcut && r2 > 1e-12 && frame.types[j] >= 0 {
                            found.push(r2.sqrt());
                        }
                    }
                }
            }
        }
        found.sort_by(f64::total_cmp);
        found
    }

    fn check(frame: &Frame, rcut: f64) {
        let list = NeighborList::new(frame, rcut, 2, None).unwrap();
        for i in (0..frame.n_atoms()).filter(|&i| frame.types[i] >= 0) {
            let mut got: Vec<f64> = (0..2).flat_map(|t| list.of(i, t).iter().map(|n| n.r)).collect();
            got.sort_by(f64::total_cmp);
            let want = brute(frame, rcut, i);
            assert_eq!(got.len(), want.len(), "atom {i}: number of neighbours");
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() < 1e-10, "atom {i}: {g} instead of {w}");
            }
        }
    }

    fn scattered(n: usize, size: f64) -> Vec<f64> {
        (0..3 * n).map(|k| ((k as f64 * 12.9898).sin() * 43758.5453).fract() * size).collect()
    }

    #[test]
    fn every_image_is_found_in_cells_smaller_than_twice_the_cutoff() {
        let cell = [5.0, 0.3, -0.4, 1.1, 4.5, 0.2, -0.7, 0.9, 6.0];
        check(&frame(scattered(12, 14.0), &[0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0], Some(cell)), 4.0);
    }

    #[test]
    fn every_neighbour_is_found_in_a_large_triclinic_cell() {
        let cell = [19.0, 0.0, 0.0, 3.0, 17.0, 0.0, -4.0, 2.0, 21.0];
        let types: Vec<i32> = (0..200).map(|i| i % 2).collect();
        check(&frame(scattered(200, 25.0), &types, Some(cell)), 3.0);
    }

    #[test]
    fn open_boundaries_have_no_images_and_virtual_atoms_no_neighbours() {
        let types: Vec<i32> = (0..60).map(|i| if i % 7 == 3 { -1 } else { i % 2 }).collect();
        check(&frame(scattered(60, 9.0), &types, None), 3.0);
    }

    #[test]
    fn only_the_nearest_are_kept_when_sel_is_small() {
        let types: Vec<i32> = (0..60).map(|i| i % 2).collect();
        let f = frame(scattered(60, 6.0), &types, None);
        let all = NeighborList::new(&f, 3.0, 2, None).unwrap();
        let few = NeighborList::new(&f, 3.0, 2, Some(&[3, 2])).unwrap();
        for i in 0..60 {
            let mut nearest: Vec<Neighbors> = (0..2).flat_map(|t| all.of(i, t).to_vec()).collect();
            nearest.sort_by(|a, b| a.r.total_cmp(&b.r));
            nearest.truncate(5);
            for (t, most) in [(0, 3), (1, 2)] {
                let mut want = nearest.clone();
                want.retain(|n| types[n.j as usize] == t as i32);
                want.truncate(most);
                assert_eq!(few.of(i, t), want, "atom {i}, type {t}");
            }
        }
    }

    #[test]
    fn a_flat_cell_is_refused() {
        let flat = [5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 5.0, 0.0];
        assert!(NeighborList::new(&frame(scattered(2, 1.0), &[0, 0], Some(flat)), 3.0, 1, None).is_err());
    }

    #[test]
    #[ignore = "a measurement: cargo test --release --lib grows_linearly -- --ignored --nocapture"]
    fn the_time_for_a_list_grows_linearly_up_to_100_000_atoms() {
        let mut per_atom = Vec::new();
        for n in [1_000, 10_000, 100_000] {
            // One atom in 10 A^3, as in water.
            let size = (10.0 * n as f64).cbrt();
            let types: Vec<i32> = (0..n).map(|i| (i % 2) as i32).collect();
            let cell = [size, 0.0, 0.0, 0.0, size, 0.0, 0.0, 0.0, size];
            let f = frame(scattered(n, size), &types, Some(cell));
            let began = std::time::Instant::now();
            let list = NeighborList::new(&f, 6.0, 2, None).unwrap();
            let us = began.elapsed().as_secs_f64() * 1e6 / n as f64;
            println!("{n} atoms: {us:.2} us each, {:.1} neighbours", list.n_pairs() as f64 / n as f64);
            per_atom.push(us);
        }
        assert!(per_atom[2] < 2.0 * per_atom[0], "100,000 atoms take {per_atom:?} us each");
    }
}

//! A structure with its pairs and radial functions: what does not change while a network is trained.

use super::radial::Radial;
use crate::model::pinet::PinetModel;
use crate::neighbor::pairs;
use crate::sample::Prepared;
use crate::{Result, bail};

/// A prepared structure. Pairs are sorted by their first atom.
#[derive(Debug, Clone, PartialEq)]
pub struct PinetFrame {
    /// `[n_atoms]` atomic numbers
    pub elems: Vec<i32>,
    /// `[n_atoms]` column of the one-hot row; `None`: a row of zeros
    pub columns: Vec<Option<u32>>,
    /// `[n_atoms, 3]` as given, A
    pub coord: Vec<f64>,
    /// Volume of the cell with the sign of its determinant, A^3; `None` for open boundaries.
    pub volume: Option<f64>,
    /// `[n_atoms + 1]` where the pairs of each atom start
    pub start: Vec<u32>,
    /// `[n_pairs]` the second atom
    pub j: Vec<u32>,
    /// `[n_pairs]` x_j - x_i, A
    pub d: Vec<[f64; 3]>,
    /// `[n_pairs]` A
    pub r: Vec<f64>,
    /// `[n_pairs, n_basis]` radial functions and their slopes
    pub basis: Vec<f64>,
    pub slope: Vec<f64>,
    /// Pairs by their second atom: those of atom j are `by_j[start_j[j]..start_j[j + 1]]`.
    pub start_j: Vec<u32>,
    pub by_j: Vec<u32>,
}

impl PinetFrame {
    /// Prepares a structure for a network.
    ///
    /// - elems  `[n_atoms]`  atomic numbers
    /// - coord  `[n_atoms, 3]`  A
    /// - cell   rows are lattice vectors, A; `None` for open boundaries
    pub fn new(model: &PinetModel, elems: &[i32], coord: &[f64], cell: Option<[f64; 9]>) -> Result<Self> {
        if coord.len() != 3 * elems.len() {
            bail!("{} coordinates for {} atoms", coord.len(), elems.len());
        }
        let pairs = pairs(coord, cell, model.options.rc)?;
        let radial = Radial::new(&model.options);
        let n = elems.len();
        let mut frame = PinetFrame {
            elems: elems.to_vec(),
            columns: elems.iter().map(|&z| model.column(z).map(|c| c as u32)).collect(),
            coord: coord.to_vec(),
            volume: cell.map(|cell| determinant(&cell)),
            start: vec![0; n + 1],
            j: Vec::with_capacity(pairs.len()),
            d: Vec::with_capacity(pairs.len()),
            r: Vec::with_capacity(pairs.len()),
            basis: Vec::with_capacity(pairs.len() * radial.len()),
            slope: Vec::with_capacity(pairs.len() * radial.len()),
            start_j: vec![0; n + 1],
            by_j: vec![0; pairs.len()],
        };
        for pair in &pairs {
            frame.start[pair.i as usize + 1] += 1;
            frame.start_j[pair.j as usize + 1] += 1;
            frame.j.push(pair.j);
            frame.d.push(pair.d);
            frame.r.push(pair.r);
            radial.evaluate(&mut frame.basis, &mut frame.slope, pair.r);
        }
        for a in 0..n {
            frame.start[a + 1] += frame.start[a];
            frame.start_j[a + 1] += frame.start_j[a];
        }
        let mut next = frame.start_j.clone();
        for (p, pair) in pairs.iter().enumerate() {
            let slot = &mut next[pair.j as usize];
            frame.by_j[*slot as usize] = p as u32;
            *slot += 1;
        }
        Ok(frame)
    }

    pub fn n_atoms(&self) -> usize {
        self.elems.len()
    }

    pub fn n_pairs(&self) -> usize {
        self.j.len()
    }

    /// The pairs whose first atom is `i`.
    pub fn pairs_of(&self, i: usize) -> std::ops::Range<usize> {
        self.start[i] as usize..self.start[i + 1] as usize
    }
}

impl Prepared for PinetFrame {
    fn bytes(&self) -> usize {
        let pair = 4 + 4 + 24 + 8;
        let radial = 8 * (self.basis.capacity() + self.slope.capacity());
        size_of::<Self>() + self.n_atoms() * (4 + 8 + 24 + 8) + self.n_pairs() * pair + radial
    }
}

fn determinant(m: &[f64; 9]) -> f64 {
    m[0] * (m[4] * m[8] - m[5] * m[7]) - m[1] * (m[3] * m[8] - m[5] * m[6])
        + m[2] * (m[3] * m[7] - m[4] * m[6])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pinet::options::{NetworkKind, PinetOptions, Wiring};

    #[test]
    fn pairs_by_second_atom_are_the_same_pairs() {
        let model = PinetModel::new(PinetOptions::new(Wiring::Master, NetworkKind::PiNet)).unwrap();
        let coord: Vec<f64> = (0..27).map(|k| 7.0 * (k as f64 * 1.37).sin()).collect();
        let cell = [5.0, 0.0, 0.0, 0.4, 5.5, 0.0, 0.0, -0.7, 6.0];
        let frame = PinetFrame::new(&model, &[1, 8, 1, 6, 99, 7, 1, 1, 8], &coord, Some(cell)).unwrap();
        assert_eq!(frame.columns[3..5], [Some(1), None]);
        assert!((frame.volume.unwrap() - 165.0).abs() < 1e-12);
        let mut seen = vec![false; frame.n_pairs()];
        for j in 0..9 {
            for &p in &frame.by_j[frame.start_j[j] as usize..frame.start_j[j + 1] as usize] {
                assert_eq!(frame.j[p as usize], j as u32);
                seen[p as usize] = true;
            }
        }
        assert!(!seen.is_empty() && seen.iter().all(|&s| s));
    }

    #[test]
    fn a_wrong_number_of_coordinates_is_refused() {
        let model = PinetModel::new(PinetOptions::new(Wiring::Master, NetworkKind::PiNet)).unwrap();
        assert!(PinetFrame::new(&model, &[1, 8], &[0.0; 5], None).is_err());
    }
}

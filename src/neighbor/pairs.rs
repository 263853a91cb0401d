//! Every ordered pair of a structure within a cutoff, types ignored.

use super::cells::Cells;
use super::search::with_search;
use crate::data::{Frame, Labels};
use crate::{Result, bail};

/// A pair `i -> j`: `d = x_j - x_i` of the image at hand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    pub i: u32,
    pub j: u32,
    pub d: [f64; 3],
    pub r: f64,
}

/// All ordered pairs with 0 < r < `rc`, images of an atom itself included, sorted by i, then j, then r.
///
/// - coord  `[n_atoms, 3]`  A
/// - cell   rows are lattice vectors, A; `None` for open boundaries
pub fn pairs(coord: &[f64], cell: Option<[f64; 9]>, rc: f64) -> Result<Vec<Pair>> {
    assert_eq!(coord.len() % 3, 0, "three coordinates for each atom");
    if let Some(k) = coord.iter().position(|x| !x.is_finite()) {
        bail!("coordinate {} of atom {} is {}", ["x", "y", "z"][k % 3], k / 3, coord[k]);
    }
    let n = coord.len() / 3;
    let frame = Frame {
        types: vec![0; n].into(),
        coord: coord.to_vec(),
        cell,
        fparam: vec![],
        aparam: vec![],
        sorted: false,
        labels: Labels::default(),
    };
    let cells = Cells::new(&frame, rc)?;
    let mut place = vec![0..0; n];
    let mut by_bin = Vec::new();
    with_search(|search| {
        search.visit(&cells, &cells.pieces(), rc, |around| {
            let (first, i) = (by_bin.len(), around.i as u32);
            let all = around.vectors().map(|(j, d, r2)| Pair { i, j, d, r: r2.sqrt() });
            by_bin.extend(all.filter(|pair| pair.r > 0.0 && pair.r < rc));
            sort(&mut by_bin[first..]);
            place[i as usize] = first..by_bin.len();
        });
    });
    let mut found = Vec::with_capacity(by_bin.len());
    for range in place {
        found.extend_from_slice(&by_bin[range]);
    }
    Ok(found)
}

/// By neighbour, then distance. Ties are broken by direction, so that the order never depends on the bins.
fn sort(pairs: &mut [Pair]) {
    pairs.sort_unstable_by(|a, b| {
        let by_direction = || a.d.iter().zip(&b.d).map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne());
        a.j.cmp(&b.j)
            .then(a.r.total_cmp(&b.r))
            .then_with(|| by_direction().unwrap_or(std::cmp::Ordering::Equal))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scattered(n: usize, size: f64) -> Vec<f64> {
        (0..3 * n).map(|k| ((k as f64 * 12.9898).sin() * 43758.5453).fract() * size).collect()
    }

    #[test]
    fn pairs_are_the_images_within_the_cutoff_also_in_cells_smaller_than_it() {
        let (cell, rc) = ([3.0, 0.3, -0.4, 1.1, 4.5, 0.2, -0.7, 0.9, 5.0], 4.0);
        let coord = scattered(5, 11.0);
        let got = pairs(&coord, Some(cell), rc).unwrap();
        let mut want = 0;
        for i in 0..5 {
            for j in 0..5 {
                for image in 0..17 * 17 * 17 {
                    let n = [image / 289 - 8, image / 17 % 17 - 8, image % 17 - 8].map(f64::from);
                    let r2: f64 = (0..3)
                        .map(|k| {
                            let shift: f64 = (0..3).map(|v| n[v] * cell[3 * v + k]).sum();
                            (coord[3 * j + k] + shift - coord[3 * i + k]).powi(2)
                        })
                        .sum();
                    want += usize::from(r2 < rc * rc && !(i == j && n == [0.0; 3]));
                }
            }
        }
        assert_eq!(got.len(), want);
        assert!(got.iter().any(|p| p.i == p.j), "an atom sees its own images");
        assert!(got.is_sorted_by(|a, b| (a.i, a.j) <= (b.i, b.j)));
    }

    #[test]
    fn one_atom_without_a_cell_has_no_pairs_and_a_broken_coordinate_is_named() {
        assert!(pairs(&[0.1, 0.2, 0.3], None, 4.0).unwrap().is_empty());
        assert!(pairs(&[], None, 4.0).unwrap().is_empty());
        let error = pairs(&[0.0, 1.0, 2.0, 0.5, f64::NAN, 1.0], None, 4.0).unwrap_err();
        assert_eq!(error.message(), "coordinate y of atom 1 is NaN");
    }
}

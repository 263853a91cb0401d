//! Neighbours that somebody else has listed: the atoms of an MD program's domain, own ones first, then ghosts.

use super::list::{OVERLAP, slots_of};
use crate::{Error, Result, bail, err};
use rayon::prelude::*;

/// Atoms whose lists one task copies.
const CENTERS: usize = 256;

/// Atoms with their neighbour list as an MD program has them.
#[derive(Debug, Clone, Copy)]
pub struct Domain<'a> {
    /// `[n_atoms, 3]` A, of local atoms first, then of ghosts.
    pub coord: &'a [f64],
    /// `[n_atoms]` index into the model's `type_map`; negative: not an atom of the model.
    pub types: &'a [i32],
    /// `[n_local]` the neighbours of each local atom, as indices of atoms, each pair from both sides. Atoms beyond the cutoff may
    /// be among them, and are left out.
    pub lists: &'a [&'a [i32]],
    /// The bits of a list's numbers that are the index; -1 where all of them are.
    pub mask: i32,
}

/// A neighbour within the cutoff.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Near {
    pub j: u32,
    pub neighbor: u32,
    pub d: [f64; 3],
    pub r2: f64,
}

impl Domain<'_> {
    /// Atoms of the domain itself.
    pub fn n_local(&self) -> usize {
        self.lists.len()
    }

    /// Local atoms and ghosts.
    pub fn n_atoms(&self) -> usize {
        self.types.len()
    }

    /// Refuses sizes that contradict each other, unknown types and coordinates that are no numbers.
    pub fn check(&self, n_types: usize) -> Result<()> {
        if self.coord.len() != 3 * self.n_atoms() || self.n_local() > self.n_atoms() {
            bail!(
                "found {} coordinates, {} types and {} neighbour lists, wanted three coordinates for each type and no more \
                 lists than atoms",
                self.coord.len(),
                self.n_atoms(),
                self.n_local()
            );
        }
        check_atoms(self.coord, self.types, n_types)
    }

    /// Overwrites `found` with the neighbours of local atom `i` that count, by type and nearest first: of the nearest `sum(sel)`
    /// of any type at most `sel[t]` of type t, one number being for all types together, as in [`super::NeighborList`].
    pub(crate) fn nearest(&self, found: &mut Vec<Near>, i: usize, rcut: f64, sel: &[usize]) -> Result<()> {
        found.clear();
        let at = |j: usize| [self.coord[3 * j], self.coord[3 * j + 1], self.coord[3 * j + 2]];
        let center = at(i);
        for &listed in self.lists[i] {
            let j = (listed & self.mask) as usize;
            let Some(&neighbor) = self.types.get(j) else { return Err(self.no_such_atom(i, listed)) };
            let x = at(j);
            let d = [x[0] - center[0], x[1] - center[1], x[2] - center[2]];
            let r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
            if r2 < rcut * rcut && neighbor >= 0 {
                found.push(Near { j: j as u32, neighbor: neighbor as u32, d, r2 });
            }
        }
        let most: usize = sel.iter().sum();
        if found.len() > most {
            found.sort_unstable_by(|a, b| a.r2.total_cmp(&b.r2).then(a.j.cmp(&b.j)));
            found.truncate(most);
        }
        found.sort_unstable_by(|a, b| {
            a.neighbor.cmp(&b.neighbor).then(a.r2.total_cmp(&b.r2)).then(a.j.cmp(&b.j))
        });
        let (mut last, mut n) = (u32::MAX, 0);
        found.retain(|near| {
            n = if near.neighbor == last { n + 1 } else { 1 };
            last = near.neighbor;
            n <= slots_of(sel, last as usize)
        });
        Ok(())
    }

    /// Overwrites `starts` `[n_local + 1]` with where each list begins when they stand one behind the other; returns their length.
    pub(crate) fn list_starts(&self, starts: &mut Vec<u32>) -> Result<usize> {
        let mut n = 0usize;
        starts.clear();
        starts.push(0);
        for list in self.lists {
            n += list.len();
            let Ok(n) = u32::try_from(n) else {
                bail!("the neighbour lists have more than {} atoms", u32::MAX)
            };
            starts.push(n);
        }
        Ok(n)
    }

    /// Writes all lists one behind the other, on all threads of the rayon pool that this is called from.
    pub(crate) fn flatten_lists(&self, mut to: &mut [u32], starts: &[u32]) -> Result<()> {
        let mut pieces = Vec::new();
        for first in (0..self.n_local()).step_by(CENTERS) {
            let end = self.n_local().min(first + CENTERS);
            let (own, rest) = to.split_at_mut((starts[end] - starts[first]) as usize);
            pieces.push((first..end, own));
            to = rest;
        }
        let n_atoms = self.n_atoms();
        pieces.into_par_iter().try_for_each(|(centers, mut to)| {
            for i in centers {
                let (own, rest) = to.split_at_mut(self.lists[i].len());
                for (to, &listed) in own.iter_mut().zip(self.lists[i]) {
                    *to = (listed & self.mask) as u32;
                    if *to as usize >= n_atoms {
                        return Err(self.no_such_atom(i, listed));
                    }
                }
                to = rest;
            }
            Ok(())
        })
    }

    /// The shortest distance between listed atoms of the model, A; infinite where there are none.
    pub(crate) fn shortest(&self) -> f64 {
        let at = |j: usize| [self.coord[3 * j], self.coord[3 * j + 1], self.coord[3 * j + 2]];
        let square = |i: usize, j: usize| (0..3).map(|k| (at(j)[k] - at(i)[k]).powi(2)).sum::<f64>();
        let is_real = |j: usize| self.types.get(j).is_some_and(|&t| t >= 0);
        let around = |i: usize| {
            let near = self.lists[i].iter().map(|listed| (listed & self.mask) as usize);
            near.filter(|&j| is_real(i) && is_real(j)).map(|j| square(i, j)).fold(f64::INFINITY, f64::min)
        };
        (0..self.n_local()).into_par_iter().map(around).reduce(|| f64::INFINITY, f64::min).sqrt()
    }

    /// Refuses a neighbour at the same place as atom `i`: the force between them has no direction.
    pub(crate) fn refuse_overlap(found: &[Near], i: usize) -> Result<()> {
        match found.iter().find(|near| near.r2 < OVERLAP * OVERLAP) {
            Some(near) => Err(err!("atoms {i} and {} are at the same place", near.j)),
            None => Ok(()),
        }
    }

    fn no_such_atom(&self, i: usize, listed: i32) -> Error {
        let j = listed & self.mask;
        err!("atom {i}: the neighbour list names atom {j}, and there are {}", self.n_atoms())
    }
}

/// Refuses types that a model does not have and coordinates that are no numbers.
pub fn check_atoms(coord: &[f64], types: &[i32], n_types: usize) -> Result<()> {
    if let Some(i) = types.iter().position(|&t| t >= n_types as i32) {
        bail!("atom {i} has type {}, the model has the types 0 to {}", types[i], n_types - 1);
    }
    if let Some(k) = coord.iter().position(|x| !x.is_finite()) {
        bail!("atom {}: the coordinate {} is not a number", k / 3, coord[k]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COORD: [f64; 15] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.5, 5.0, 0.0, 0.0];
    const TYPES: [i32; 5] = [0, 1, 1, 0, 0];

    fn near(types: &[i32], list: &[i32], sel: &[usize]) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        let domain = Domain { coord: &COORD, types, lists: &[list], mask: 0x1fff_ffff };
        domain.check(2)?;
        domain.nearest(&mut found, 0, 3.0, sel)?;
        Ok(found.iter().map(|near| near.j).collect())
    }

    #[test]
    fn neighbours_within_the_cutoff_come_by_type_nearest_first() {
        let masked = 2 | 0x4000_0000;
        assert_eq!(near(&TYPES, &[4, masked, 1, 3], &[5, 5]).unwrap(), [3, 1, 2]);
        assert_eq!(near(&[0, 1, 1, -1, 0], &[4, 2, 1, 3], &[5, 5]).unwrap(), [1, 2], "no atom of the model");
        assert!(near(&TYPES, &[], &[5, 5]).unwrap().is_empty());
    }

    #[test]
    fn of_the_nearest_of_all_types_only_the_slots_of_a_type_are_filled() {
        assert_eq!(near(&TYPES, &[1, 2, 3], &[5, 1]).unwrap(), [3, 1]);
        assert_eq!(near(&TYPES, &[1, 2, 3], &[0, 2]).unwrap(), [1], "atom 3 pushes out atom 2");
        assert_eq!(near(&TYPES, &[1, 2, 3], &[2]).unwrap(), [3, 1], "two of any type");
    }

    #[test]
    fn nonsense_is_an_error_that_names_the_atom() {
        let text =
            |types: &[i32], list: &[i32]| near(types, list, &[5, 5]).unwrap_err().message().to_string();
        assert_eq!(text(&TYPES, &[1, 5]), "atom 0: the neighbour list names atom 5, and there are 5");
        assert!(text(&TYPES, &[-1]).contains("names atom 536870911"));
        assert_eq!(text(&[0, 1, 2, 0, 0], &[1]), "atom 2 has type 2, the model has the types 0 to 1");
        assert!(text(&[0, 1], &[1]).starts_with("found 15 coordinates, 2 types and 1 neighbour lists"));
        let coord = [0.0, 0.0, f64::NAN];
        let domain = Domain { coord: &coord, types: &[0], lists: &[&[]], mask: -1 };
        assert_eq!(domain.check(1).unwrap_err().message(), "atom 0: the coordinate NaN is not a number");
    }
}

//! A periodic frame as a domain: its atoms, and the images of them that are somebody's neighbours.

use super::{Domain, NeighborList};
use crate::data::Frame;
use crate::{Result, bail};

/// The atoms of a frame and their images, with who is near whom.
#[derive(Debug, Clone, Default)]
pub struct Images {
    /// `[n_atoms + n_images, 3]` atoms wrapped into the cell, then images.
    pub coord: Vec<f64>,
    pub types: Vec<i32>,
    /// `[n_images]` the atom that each is an image of, and the lattice vector that leads to it.
    owners: Vec<(u32, [f64; 3])>,
    /// `[n_atoms + 1]`
    starts: Vec<usize>,
    lists: Vec<i32>,
}

impl Images {
    /// Finds the atoms within `rcut` of each other, on all threads of the rayon pool that this is called from.
    pub fn new(frame: &Frame, rcut: f64, n_types: usize) -> Result<Images> {
        let list = NeighborList::new(frame, rcut, n_types, None)?;
        let (wrapped, shifts) = list.places();
        let n = frame.n_atoms();
        if (n * shifts.len()) as u64 > i32::MAX as u64 {
            bail!("{n} atoms with {} images each are too many for one domain", shifts.len());
        }
        let mut images = Images {
            coord: wrapped.as_flattened().to_vec(),
            types: frame.types.to_vec(),
            starts: Vec::with_capacity(n + 1),
            lists: Vec::with_capacity(list.n_pairs()),
            owners: Vec::new(),
        };
        images.starts.push(0);
        let mut known = vec![-1i32; n * shifts.len()];
        for i in 0..n {
            for (j, image) in list.named(i) {
                let (j, shift) = (j as usize, shifts[image as usize]);
                let at = &mut known[image as usize * n + j];
                if *at < 0 {
                    *at = if shift == [0.0; 3] { j as i32 } else { images.add(j, shift) };
                }
                images.lists.push(*at);
            }
            images.starts.push(images.lists.len());
        }
        Ok(images)
    }

    fn add(&mut self, j: usize, shift: [f64; 3]) -> i32 {
        for k in 0..3 {
            self.coord.push(self.coord[3 * j + k] + shift[k]);
        }
        self.types.push(self.types[j]);
        self.owners.push((j as u32, shift));
        self.types.len() as i32 - 1
    }

    fn n_local(&self) -> usize {
        self.starts.len() - 1
    }

    /// Moves every atom, and its images with it.
    pub fn displace(&mut self, by: impl Fn(usize) -> [f64; 3]) {
        let (own, images) = self.coord.split_at_mut(3 * (self.starts.len() - 1));
        for (i, x) in own.chunks_exact_mut(3).enumerate() {
            by(i).iter().zip(x).for_each(|(by, x)| *x += by);
        }
        for (x, (j, shift)) in images.chunks_exact_mut(3).zip(&self.owners) {
            (0..3).for_each(|k| x[k] = own[3 * *j as usize + k] + shift[k]);
        }
    }

    /// `[n_atoms]` the neighbours of each atom, for a [`Domain`].
    pub fn lists(&self) -> Vec<&[i32]> {
        self.starts.windows(2).map(|ends| &self.lists[ends[0]..ends[1]]).collect()
    }

    /// The domain, given its [`Images::lists`].
    pub fn domain<'a>(&'a self, lists: &'a [&'a [i32]]) -> Domain<'a> {
        Domain { coord: &self.coord, types: &self.types, lists, mask: -1 }
    }

    /// Adds what was found for images, `width` numbers each, to their atoms, and leaves those.
    pub fn fold(&self, found: &mut Vec<f64>, width: usize) {
        if found.is_empty() {
            return;
        }
        let (own, images) = found.split_at_mut(width * self.n_local());
        for (from, (j, _)) in images.chunks_exact(width).zip(&self.owners) {
            let to = &mut own[width * *j as usize..][..width];
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        found.truncate(width * self.n_local());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Labels;

    /// A crowded frame with one virtual atom.
    fn frame(n: usize, salt: usize) -> Frame {
        let noise = |k: usize| (((k * 7 + salt) as f64 * 12.9898).sin() * 43758.5453).fract().abs();
        Frame {
            types: (0..n).map(|i| if i == 3 { -1 } else { (i % 3 == 0) as i32 }).collect(),
            coord: (0..3 * n).map(|k| 6.0 * noise(k)).collect(),
            cell: Some([5.2, 0.1, 0.0, 0.7, 5.5, -0.3, 0.2, 0.4, 6.1]),
            fparam: vec![],
            aparam: vec![],
            sorted: false,
            labels: Labels::default(),
        }
    }

    #[test]
    fn neighbours_by_images_are_those_of_the_list() {
        let frame = frame(17, 3);
        let list = NeighborList::new(&frame, 4.0, 2, None).unwrap();
        let images = Images::new(&frame, 4.0, 2).unwrap();
        let lists = images.lists();
        let domain = images.domain(&lists);
        domain.check(2).unwrap();
        let mut found = Vec::new();
        for i in (0..17).filter(|&i| frame.types[i] >= 0) {
            domain.nearest(&mut found, i, 4.0, &[1000, 1000]).unwrap();
            let got: Vec<f64> = found.iter().map(|near| near.r2.sqrt()).collect();
            let want: Vec<f64> = (0..2).flat_map(|t| list.of(i, t)).map(|near| near.r).collect();
            assert_eq!(got.len(), want.len(), "atom {i}");
            got.iter().zip(&want).for_each(|(got, want)| assert!((got - want).abs() < 1e-9, "{got} {want}"));
        }
    }

    #[test]
    fn what_images_have_goes_to_their_atoms() {
        let mut images = Images::new(&frame(5, 3), 4.0, 2).unwrap();
        let n = images.types.len();
        assert!(n > 5, "a small cell has images");
        let mut ones = vec![1.0; 2 * n];
        images.fold(&mut ones, 2);
        assert_eq!((ones.len(), ones.iter().sum::<f64>()), (10, 2.0 * n as f64));
        let before = images.coord.clone();
        images.displace(|_| [0.5, 0.0, -0.25]);
        let moved = images.coord.iter().zip(&before).map(|(x, y)| x - y).collect::<Vec<_>>();
        moved.chunks(3).for_each(|d| assert!((d[0] - 0.5).abs() < 1e-12 && (d[2] + 0.25).abs() < 1e-12));
    }
}

//! The built-in engine for ranks of several hosts: TCP between all pairs of ranks, no library.
//!
//! Long vectors go around a ring: each share is summed along the ring by one rank after the other, then passed
//! around once more. Short ones are exchanged in pairs of growing distance. Either way each share has one order of
//! summation that depends on the number of ranks alone, and every rank gets the same bits.

mod mesh;

use std::net::TcpStream;

use super::element::{Element, all_reduce_methods, bytes_of, bytes_of_mut, share};
use super::pulse::{End, Patience};
use super::star::Star;
use super::{CommOptions, Communicator};
use crate::error::Result;
use mesh::Mesh;

/// Vectors up to this many bytes take few steps rather than little traffic.
const SHORT_BYTES: usize = 16 << 10;

/// Ranks joined by TCP.
pub struct Tcp {
    mesh: Mesh,
    star: Star,
    rank: usize,
    size: usize,
    options: CommOptions,
    /// Collectives entered so far.
    entered: u64,
}

impl Tcp {
    /// Takes the place of `rank` over open connections with all others, by rank.
    pub fn new(rank: usize, data: Vec<Option<TcpStream>>, star: Star, options: &CommOptions) -> Result<Tcp> {
        let size = data.len();
        let mesh = Mesh::new(data)?;
        Ok(Tcp { mesh, star, rank, size, options: options.clone(), entered: 0 })
    }

    /// Sends to one rank and receives from another, both at once.
    fn exchange(
        &mut self,
        what: &'static str,
        out: Option<(usize, &[u8])>,
        into: Option<(usize, &mut [u8])>,
    ) -> Result<()> {
        let patience = Patience::new(&self.options, what, self.entered);
        let done = self.mesh.exchange(out, into, &self.star, patience, self.rank);
        done.inspect_err(|e| self.star.end(End::Followed(e.message().to_string())))
    }

    fn enter(&mut self) {
        self.entered = self.star.enter();
    }

    fn all_reduce<T: Element>(&mut self, x: &mut [T]) -> Result<()> {
        self.enter();
        self.sum("all-reduce", x)
    }

    fn sum<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        let mut theirs = vec![T::ZERO; 0];
        // One buffer for all calls would need one element type; the allocator gives the same pages back anyway.
        match size_of_val(x) <= SHORT_BYTES || x.len() < self.size {
            true => {
                theirs.resize(x.len(), T::ZERO);
                self.sum_in_pairs(what, x, &mut theirs)
            }
            false => {
                theirs.resize(x.len().div_ceil(self.size), T::ZERO);
                self.sum_around_ring(what, x, &mut theirs)
            }
        }
    }

    fn sum_around_ring<T: Element>(
        &mut self,
        what: &'static str,
        x: &mut [T],
        theirs: &mut [T],
    ) -> Result<()> {
        let (rank, size, n) = (self.rank, self.size, x.len());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let part = |k: usize| share(n, size, k % size);
        for step in 0..size - 1 {
            let (give, take) = (part(rank + size - step), part(rank + 2 * size - step - 1));
            let theirs = &mut theirs[..take.len()];
            self.exchange(what, Some((next, bytes_of(&x[give]))), Some((previous, bytes_of_mut(theirs))))?;
            x[take].iter_mut().zip(&*theirs).for_each(|(mine, &sum)| *mine = sum.plus(*mine));
        }
        for step in 0..size - 1 {
            let (give, take) = (part(rank + 1 + size - step), part(rank + size - step));
            let out = x[give].to_vec();
            self.exchange(what, Some((next, bytes_of(&out))), Some((previous, bytes_of_mut(&mut x[take]))))?;
        }
        Ok(())
    }

    /// Ranks beyond the largest power of two hand theirs to a partner first, and get the result last.
    fn sum_in_pairs<T: Element>(&mut self, what: &'static str, x: &mut [T], theirs: &mut [T]) -> Result<()> {
        let (rank, power) = (self.rank, 1usize << self.size.ilog2());
        if rank >= power {
            self.exchange(what, Some((rank - power, bytes_of(x))), None)?;
            return self.exchange(what, None, Some((rank - power, bytes_of_mut(x))));
        }
        let has_extra = rank + power < self.size;
        if has_extra {
            self.exchange(what, None, Some((rank + power, bytes_of_mut(theirs))))?;
            x.iter_mut().zip(&*theirs).for_each(|(mine, &other)| *mine = mine.plus(other));
        }
        for distance in (0..power.ilog2()).map(|k| 1usize << k) {
            let partner = rank ^ distance;
            self.exchange(what, Some((partner, bytes_of(x))), Some((partner, bytes_of_mut(theirs))))?;
            // The lower rank's sum stands first on both sides, so that even the bits of a NaN agree.
            let low_first =
                |mine: T, other: T| if rank < partner { mine.plus(other) } else { other.plus(mine) };
            x.iter_mut().zip(&*theirs).for_each(|(mine, &other)| *mine = low_first(*mine, other));
        }
        if has_extra {
            self.exchange(what, Some((rank + power, bytes_of(x))), None)?;
        }
        Ok(())
    }

    /// Passes `bytes`, whose length all know, down a tree of doubling breadth.
    fn spread(&mut self, what: &'static str, root: usize, bytes: &mut [u8]) -> Result<()> {
        let (size, place) = (self.size, (self.rank + self.size - root) % self.size);
        let rank_at = |place: usize| (place + root) % size;
        for reach in (0..usize::BITS).map(|k| 1usize << k).take_while(|&reach| reach < size) {
            if place < reach && place + reach < size {
                self.exchange(what, Some((rank_at(place + reach), &*bytes)), None)?;
            } else if (reach..2 * reach).contains(&place) {
                self.exchange(what, None, Some((rank_at(place - reach), &mut *bytes)))?;
            }
        }
        Ok(())
    }
}

impl Communicator for Tcp {
    fn name(&self) -> &str {
        "TCP"
    }
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    all_reduce_methods!(all_reduce);

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        assert!(root < self.size, "a broadcast from a rank that does not exist");
        self.enter();
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.spread("broadcast", root, &mut length)?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        self.spread("broadcast", root, bytes)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.enter();
        let (rank, size) = (self.rank, self.size);
        let mut lengths = vec![0i64; size];
        lengths[rank] = bytes.len() as i64;
        self.sum("gather", &mut lengths)?;
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|&n| vec![0; n as usize]).collect();
        all[rank].copy_from_slice(bytes);
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        for step in 0..size - 1 {
            let (give, take) = ((rank + size - step) % size, (rank + 2 * size - step - 1) % size);
            let mut theirs = std::mem::take(&mut all[take]);
            self.exchange("gather", Some((next, &all[give])), Some((previous, &mut theirs)))?;
            all[take] = theirs;
        }
        Ok(all)
    }

    fn barrier(&mut self) -> Result<()> {
        self.enter();
        self.sum("barrier", &mut [0i64])
    }

    fn abort(&self, why: &str) {
        self.star.end(End::Aborted(why.to_string()));
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.barrier()?;
        self.star.end(End::Finished);
        Ok(())
    }
}

//! Every collective in terms of one operation: send to one rank while receiving from another.
//!
//! Long vectors go around a ring where ranks are few: each share is summed along the ring by one rank after the other,
//! then passed around once more. Where they are many, pairs of shrinking distance exchange halves, and the sums come
//! back the same way: as little traffic in far fewer steps. Short vectors are exchanged whole, in pairs of growing
//! distance. Each way a share has one order of summation that depends on the number of ranks alone, and every rank gets
//! the same bits: which MPI's own all-reduce does not promise, and no library has to be trusted with.

use std::time::Duration;

use super::element::{Element, all_reduce_methods, bytes_of, bytes_of_mut, share};
use super::pulse::{End, Patience, Vital};
use super::star::Star;
use super::{CommOptions, Communicator};
use crate::err;
use crate::error::{Error, Result};

/// Vectors up to this many bytes take few steps rather than little traffic.
const SHORT_BYTES: usize = 16 << 10;
/// From so many ranks on halves are exchanged, where the number of ranks is a power of two.
const HALVES_RANKS: usize = 8;
/// The same for other numbers of ranks, where it costs twice the traffic.
const UNEVEN_HALVES_RANKS: usize = 32;
/// How long to wait for the reason when a connection closes.
const REASON: Duration = Duration::from_secs(1);

/// What carries bytes between pairs of ranks.
pub trait Link: Send {
    /// The name in logs.
    fn name(&self) -> &str;
    /// Sends to one rank and receives from another (it may be the same), both at once. Neither message is empty.
    /// While it waits it asks `watch` a few times a second whether there still is hope.
    fn exchange(&mut self, out: Option<Out>, into: Option<Into>, watch: &mut Watch) -> Result<()>;
    /// This rank is about to end with an error, and the others may have no other way to learn it.
    fn abort(&self) {}
    /// Whether what the others have not received yet is lost when this rank closes its connections.
    fn forgets_at_close(&self) -> bool {
        false
    }
    /// See [`Communicator::hurry`].
    fn hurry(&mut self) {}
    /// All ranks agree to part.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A message to a rank.
pub type Out<'a> = (usize, &'a [u8]);
/// A place for a message from a rank.
pub type Into<'a> = (usize, &'a mut [u8]);

/// Hope within one collective.
pub struct Watch<'a> {
    star: Option<&'a Star>,
    patience: Patience<'a>,
    me: usize,
    size: usize,
}

impl Watch<'_> {
    /// An error if a rank is lost.
    pub fn check(&mut self) -> Result<()> {
        let vitals = match self.star {
            Some(star) => star.vitals(),
            None => vec![Vital { entered: u64::MAX, ..Vital::default() }; self.size],
        };
        self.patience.check(&vitals, self.me)
    }

    /// A connection closed. The star soon knows who ended first, and why; the rank at the other end may only have
    /// followed.
    pub fn lost(&mut self, peer: usize, error: &dyn std::fmt::Display) -> Error {
        self.gone().unwrap_or_else(|| err!("rank {peer} closed its connection: {error}"))
    }

    /// The verdict on a rank that has just gone, if the star learns of it in time.
    pub fn gone(&mut self) -> Option<Error> {
        let start = std::time::Instant::now();
        while self.star.is_some() && start.elapsed() < REASON {
            if let Err(verdict) = self.check() {
                return Some(verdict);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

/// Ranks joined by links between all pairs.
pub struct Pairwise<L: Link> {
    link: L,
    star: Option<Star>,
    rank: usize,
    size: usize,
    options: CommOptions,
    /// Collectives entered so far.
    entered: u64,
}

impl<L: Link> Pairwise<L> {
    /// Takes the place of `rank`. Without a star only the late limit holds, and silent ranks cannot be named.
    pub fn new(link: L, rank: usize, size: usize, options: &CommOptions) -> Self {
        Pairwise { link, star: None, rank, size, options: options.clone(), entered: 0 }
    }

    /// Listens to signs of life from now on. Every rank begins at the same collective.
    pub fn with_star(mut self, star: Star) -> Self {
        self.star = Some(star);
        self.entered = 0;
        self
    }

    /// Waits by other limits from now on.
    pub fn with_options(mut self, options: &CommOptions) -> Self {
        self.options = options.clone();
        self
    }

    fn exchange(&mut self, what: &'static str, out: Option<Out>, into: Option<Into>) -> Result<()> {
        let out = out.filter(|(_, bytes)| !bytes.is_empty());
        let into = into.filter(|(_, bytes)| !bytes.is_empty());
        let patience = Patience::new(&self.options, what, self.entered);
        let mut watch = Watch { star: self.star.as_ref(), patience, me: self.rank, size: self.size };
        let done = self.link.exchange(out, into, &mut watch);
        done.inspect_err(|verdict| self.end(End::Followed(verdict.message().to_string())))
    }

    fn end(&self, end: End) {
        if let Some(star) = &self.star {
            star.end(end);
        }
    }

    fn enter(&mut self) {
        self.entered += 1;
        if let Some(star) = &self.star {
            star.enter();
        }
    }

    fn all_reduce<T: Element>(&mut self, x: &mut [T]) -> Result<()> {
        self.enter();
        self.sum("all-reduce", x)
    }

    fn sum<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        if size_of_val(x) <= SHORT_BYTES || x.len() < self.size {
            return self.sum_in_pairs(what, x);
        }
        let many = if self.size.is_power_of_two() { HALVES_RANKS } else { UNEVEN_HALVES_RANKS };
        if self.size < many { self.sum_around_ring(what, x) } else { self.sum_by_halves(what, x) }
    }

    fn sum_around_ring<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        let (rank, size, n) = (self.rank, self.size, x.len());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let part = |k: usize| share(n, size, k % size);
        let mut theirs = vec![T::ZERO; n.div_ceil(size)];
        for step in 0..size - 1 {
            let (give, take) = (part(rank + size - step), part(rank + 2 * size - step - 1));
            let theirs = &mut theirs[..take.len()];
            self.exchange(what, Some((next, bytes_of(&x[give]))), Some((previous, bytes_of_mut(theirs))))?;
            x[take].iter_mut().zip(&*theirs).for_each(|(mine, &sum)| *mine = sum.plus(*mine));
        }
        for step in 0..size - 1 {
            let (give, take) = (part(rank + 1 + size - step), part(rank + size - step));
            let (give, take) = two_parts(x, give, take);
            self.exchange(what, Some((next, bytes_of(give))), Some((previous, bytes_of_mut(take))))?;
        }
        Ok(())
    }

    fn sum_in_pairs<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        self.with_a_power_of_two(what, x, |team, power, x, theirs| {
            for distance in (0..power.ilog2()).map(|k| 1usize << k) {
                let partner = team.rank ^ distance;
                team.exchange(what, Some((partner, bytes_of(x))), Some((partner, bytes_of_mut(theirs))))?;
                add_low_first(x, theirs, team.rank < partner);
            }
            Ok(())
        })
    }

    /// Half of what is left goes to a partner, whose sums of the other half come back; then the same in reverse, with
    /// sums that are complete.
    fn sum_by_halves<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        self.with_a_power_of_two(what, x, |team, power, x, theirs| {
            let rank = team.rank;
            let mut mine = 0..x.len();
            let mut given = Vec::new();
            for distance in (0..power.ilog2()).rev().map(|k| 1usize << k) {
                let partner = rank ^ distance;
                let middle = mine.start + mine.len() / 2;
                let (low, high) = (mine.start..middle, middle..mine.end);
                let (keep, give) = if rank < partner { (low, high) } else { (high, low) };
                let theirs = &mut theirs[..keep.len()];
                let out = Some((partner, bytes_of(&x[give.clone()])));
                team.exchange(what, out, Some((partner, bytes_of_mut(theirs))))?;
                add_low_first(&mut x[keep.clone()], theirs, rank < partner);
                given.push((partner, give));
                mine = keep;
            }
            for (partner, take) in given.into_iter().rev() {
                let whole = mine.start.min(take.start)..mine.end.max(take.end);
                let (out, into) = two_parts(x, mine, take);
                team.exchange(what, Some((partner, bytes_of(out))), Some((partner, bytes_of_mut(into))))?;
                mine = whole;
            }
            Ok(())
        })
    }

    /// Ranks beyond the largest power of two hand theirs to a partner first, and get the result last; the others sum.
    fn with_a_power_of_two<T: Element>(
        &mut self,
        what: &'static str,
        x: &mut [T],
        sum: impl FnOnce(&mut Self, usize, &mut [T], &mut [T]) -> Result<()>,
    ) -> Result<()> {
        let (rank, power) = (self.rank, 1usize << self.size.ilog2());
        if rank >= power {
            self.exchange(what, Some((rank - power, bytes_of(x))), None)?;
            return self.exchange(what, None, Some((rank - power, bytes_of_mut(x))));
        }
        let mut theirs = vec![T::ZERO; x.len()];
        let has_extra = rank + power < self.size;
        if has_extra {
            self.exchange(what, None, Some((rank + power, bytes_of_mut(&mut theirs))))?;
            add_low_first(x, &theirs, true);
        }
        sum(self, power, x, &mut theirs)?;
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

/// Adds a partner's numbers. The lower rank's stand first on both sides, so that even the bits of a NaN agree.
fn add_low_first<T: Element>(mine: &mut [T], theirs: &[T], mine_is_lower: bool) {
    for (mine, &other) in mine.iter_mut().zip(theirs) {
        *mine = if mine_is_lower { mine.plus(other) } else { other.plus(*mine) };
    }
}

/// Two parts of `x` that do not overlap, the second to be written.
fn two_parts<T>(x: &mut [T], give: std::ops::Range<usize>, take: std::ops::Range<usize>) -> (&[T], &mut [T]) {
    if give.start < take.start {
        let (low, high) = x.split_at_mut(take.start);
        (&low[give], &mut high[..take.len()])
    } else {
        let (low, high) = x.split_at_mut(give.start);
        (&high[..give.len()], &mut low[take])
    }
}

impl<L: Link> Communicator for Pairwise<L> {
    fn name(&self) -> &str {
        self.link.name()
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
        match &self.star {
            Some(star) => star.end(End::Aborted(why.to_string())),
            None => self.link.abort(),
        }
    }

    fn hurry(&mut self) {
        self.link.hurry();
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.barrier()?;
        self.end(End::Finished);
        if let (Some(star), true) = (&self.star, self.link.forgets_at_close()) {
            star.await_ends(REASON);
        }
        self.link.finish()
    }
}

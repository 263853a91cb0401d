//! Every collective in terms of one operation: send to one rank while receiving from another.
//!
//! Long vectors go around a ring where ranks are few: each part is summed along the ring by one rank after the other,
//! then passed around once more. Where they are many, pairs of shrinking distance exchange halves, and the sums come
//! back the same way: as little traffic in far fewer steps. An update stops in the middle: the owner of a part changes it
//! before it is passed on. Short vectors are exchanged whole, in pairs of growing
//! distance. Each way a share has one order of summation that depends on the number of ranks alone, and every rank gets
//! the same bits: which MPI's own all-reduce does not promise, and no library has to be trusted with.

use std::ops::Range;
use std::time::Duration;

use super::element::{Element, all_reduce_methods, bytes_of, bytes_of_mut, group_of, share};
use super::pulse::{End, Patience, Vital};
use super::star::Star;
use super::vectors::{CommonVector, RankVector, slice_of};
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
    /// Room for what a partner sends.
    spare: Vec<i64>,
    /// The ranks that take part, where not all do: `rank` and `size` are then those among them.
    group: Option<Vec<usize>>,
    /// Rank and size in the whole job.
    world: (usize, usize),
    /// The ranks of my group: see [`Communicator::form_groups`].
    mates: Vec<usize>,
    /// The first error. After it messages would be taken for others, here and by a rank that was late.
    failed: Option<Error>,
}

impl<L: Link> Pairwise<L> {
    /// Takes the place of `rank`. Without a star only the late limit holds, and silent ranks cannot be named.
    pub fn new(link: L, rank: usize, size: usize, options: &CommOptions) -> Self {
        Pairwise {
            link,
            star: None,
            rank,
            size,
            options: options.clone(),
            entered: 0,
            spare: Vec::new(),
            group: None,
            world: (rank, size),
            mates: vec![rank],
            failed: None,
        }
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

    /// What carries the messages, for whoever goes on another way.
    pub fn into_link(self) -> L {
        self.link
    }

    fn exchange(&mut self, what: &'static str, out: Option<Out>, into: Option<Into>) -> Result<()> {
        let number = |rank: usize| self.group.as_ref().map_or(rank, |group| group[rank]);
        let out = out.filter(|(_, bytes)| !bytes.is_empty()).map(|(to, bytes)| (number(to), bytes));
        let into = into.filter(|(_, bytes)| !bytes.is_empty()).map(|(from, bytes)| (number(from), bytes));
        let patience = Patience::new(&self.options, what, self.entered);
        let (me, size) = self.world;
        let mut watch = Watch { star: self.star.as_ref(), patience, me, size };
        let done = self.link.exchange(out, into, &mut watch);
        done.inspect_err(|verdict| {
            self.follow(verdict.message());
            self.failed = Some(verdict.clone());
        })
    }

    /// Tells the others that this rank ends because of another one.
    pub fn follow(&self, verdict: &str) {
        self.end(End::Followed(verdict.to_string()));
    }

    /// Does `work` with some of the ranks, of which this one is one.
    fn among<T>(&mut self, ranks: &[usize], work: impl FnOnce(&mut Self) -> T) -> T {
        let place = ranks.iter().position(|&rank| rank == self.world.0).expect("a rank is one of its group");
        (self.rank, self.size, self.group) = (place, ranks.len(), Some(ranks.to_vec()));
        let done = work(self);
        (self.rank, self.size) = self.world;
        self.group = None;
        done
    }

    /// [`Communicator::slice`] among some of the ranks.
    pub fn slice_among(&self, ranks: &[usize], n: usize) -> Range<usize> {
        let place = ranks.iter().position(|&rank| rank == self.world.0).expect("a rank is one of its group");
        slice_in(n, place, ranks.len())
    }

    /// Sums up this rank's slice among some of the ranks; what stands elsewhere in `x` is of no use afterwards.
    pub fn reduce_scatter_among(&mut self, ranks: &[usize], x: &mut [f64]) -> Result<()> {
        self.among(ranks, |group| group.scatter_slices(x))
    }

    /// Gives some of the ranks each other's slices.
    pub fn all_gather_among(&mut self, ranks: &[usize], x: &mut [f64]) -> Result<()> {
        self.among(ranks, |group| group.gather_slices(x))
    }

    /// Sums over some of the ranks. Groups may do different numbers of them, so that they do not count as collectives of all.
    pub fn all_reduce_among(&mut self, ranks: &[usize], x: &mut [f64]) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)?;
        self.among(ranks, |group| group.sum("the sum of a group", x))
    }

    fn scatter_slices(&mut self, x: &mut [f64]) -> Result<()> {
        self.enter()?;
        let (n, owners) = (x.len(), owners(self.size));
        match is_short(8 * n) {
            true => self.sum_in_pairs("reduce-scatter", x),
            false => self.scatter_sums("reduce-scatter", x, &|k| slice_of(n, owners, k)),
        }
    }

    fn gather_slices(&mut self, x: &mut [f64]) -> Result<()> {
        self.enter()?;
        let (n, owners) = (x.len(), owners(self.size));
        match is_short(8 * n) {
            true => Ok(()),
            false => self.gather_parts("gather", x, &|k| slice_of(n, owners, k)),
        }
    }

    fn end(&self, end: End) {
        if let Some(star) = &self.star {
            star.end(end);
        }
    }

    /// Begins a collective. Not after a failure: see `failed`.
    fn enter(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.entered += 1;
        if let Some(star) = &self.star {
            star.enter();
        }
        Ok(())
    }

    fn all_reduce<T: Element>(&mut self, x: &mut [T]) -> Result<()> {
        self.enter()?;
        self.sum("all-reduce", x)
    }

    fn sum<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        if is_short(size_of_val(x)) || x.len() < self.size {
            return self.sum_in_pairs(what, x);
        }
        let (n, owners) = (x.len(), owners(self.size));
        self.scatter_sums(what, x, &|k| share(n, owners, k))?;
        self.gather_parts(what, x, &|k| share(n, owners, k))
    }

    /// Sums up `part(rank)`; what stands elsewhere in `x` is of no use afterwards.
    fn scatter_sums<T: Element>(&mut self, what: &'static str, x: &mut [T], part: Part) -> Result<()> {
        if by_halves(self.size) {
            self.scatter_by_halves(what, x, part)
        } else {
            self.scatter_around_ring(what, x, part)
        }
    }

    /// Gives every rank `part(k)` of rank k.
    fn gather_parts<T: Element>(&mut self, what: &'static str, x: &mut [T], part: Part) -> Result<()> {
        if by_halves(self.size) {
            self.gather_by_halves(what, x, part)
        } else {
            self.gather_around_ring(what, x, part)
        }
    }

    fn scatter_around_ring<T: Element>(&mut self, what: &'static str, x: &mut [T], part: Part) -> Result<()> {
        let (rank, size) = (self.rank, self.size);
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        self.with_spare(part(0).len(), |team, theirs: &mut [T]| {
            for step in 1..size {
                let (give, take) =
                    (part((rank + size - step) % size), part((rank + 2 * size - step - 1) % size));
                let theirs = &mut theirs[..take.len()];
                team.exchange(
                    what,
                    Some((next, bytes_of(&x[give]))),
                    Some((previous, bytes_of_mut(theirs))),
                )?;
                x[take].iter_mut().zip(&*theirs).for_each(|(mine, &sum)| *mine = sum.plus(*mine));
            }
            Ok(())
        })
    }

    fn gather_around_ring<T: Element>(&mut self, what: &'static str, x: &mut [T], part: Part) -> Result<()> {
        let (rank, size) = (self.rank, self.size);
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        for step in 0..size - 1 {
            let (give, take) = (part((rank + size - step) % size), part((rank + 2 * size - step - 1) % size));
            let (give, take) = two_parts(x, give, take);
            self.exchange(what, Some((next, bytes_of(give))), Some((previous, bytes_of_mut(take))))?;
        }
        Ok(())
    }

    fn sum_in_pairs<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        let power = 1usize << self.size.ilog2();
        self.take_from_extra(what, x)?;
        if self.rank < power {
            self.with_spare(x.len(), |team, theirs| {
                for distance in (0..power.ilog2()).map(|k| 1usize << k) {
                    let partner = team.rank ^ distance;
                    team.exchange(what, Some((partner, bytes_of(x))), Some((partner, bytes_of_mut(theirs))))?;
                    add_low_first(x, theirs, team.rank < partner);
                }
                Ok(())
            })?;
        }
        self.give_to_extra(what, x)
    }

    /// Half of what is left goes to a partner, whose sums of the other half come back, until one part is left.
    fn scatter_by_halves<T: Element>(&mut self, what: &'static str, x: &mut [T], part: Part) -> Result<()> {
        let (rank, power) = (self.rank, owners(self.size));
        self.take_from_extra(what, x)?;
        if rank >= power {
            return Ok(());
        }
        self.with_spare(run_of(part, 0, power / 2).len(), |team, theirs| {
            for distance in (0..power.ilog2()).rev().map(|k| 1usize << k) {
                let partner = rank ^ distance;
                let (keep, give) = (run_of(part, rank, distance), run_of(part, partner, distance));
                let theirs = &mut theirs[..keep.len()];
                let out = Some((partner, bytes_of(&x[give])));
                team.exchange(what, out, Some((partner, bytes_of_mut(theirs))))?;
                add_low_first(&mut x[keep], theirs, rank < partner);
            }
            Ok(())
        })
    }

    /// The way of [`Pairwise::scatter_by_halves`] in reverse, with parts that are complete.
    fn gather_by_halves<T: Element>(&mut self, what: &'static str, x: &mut [T], part: Part) -> Result<()> {
        let (rank, power) = (self.rank, owners(self.size));
        for distance in (0..power.ilog2()).map(|k| 1usize << k).filter(|_| rank < power) {
            let partner = rank ^ distance;
            let (out, into) = two_parts(x, run_of(part, rank, distance), run_of(part, partner, distance));
            self.exchange(what, Some((partner, bytes_of(out))), Some((partner, bytes_of_mut(into))))?;
        }
        self.give_to_extra(what, x)
    }

    /// Ranks beyond the largest power of two hand theirs to a partner, who adds it to its own.
    fn take_from_extra<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        let (rank, power) = (self.rank, 1usize << self.size.ilog2());
        if rank >= power {
            return self.exchange(what, Some((rank - power, bytes_of(x))), None);
        }
        if rank + power >= self.size {
            return Ok(());
        }
        self.with_spare(x.len(), |team, theirs| {
            team.exchange(what, None, Some((rank + power, bytes_of_mut(theirs))))?;
            add_low_first(x, theirs, true);
            Ok(())
        })
    }

    /// Ranks beyond the largest power of two get the result from their partner.
    fn give_to_extra<T: Element>(&mut self, what: &'static str, x: &mut [T]) -> Result<()> {
        let (rank, power) = (self.rank, 1usize << self.size.ilog2());
        if rank >= power {
            return self.exchange(what, None, Some((rank - power, bytes_of_mut(x))));
        }
        if rank + power >= self.size {
            return Ok(());
        }
        self.exchange(what, Some((rank + power, bytes_of(x))), None)
    }

    /// Lends room for `n` numbers. It is kept from one sum to the next: new memory would take longer to fill than to send.
    fn with_spare<T: Element>(
        &mut self,
        n: usize,
        work: impl FnOnce(&mut Self, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        let mut spare = std::mem::take(&mut self.spare);
        spare.resize(spare.len().max((n * size_of::<T>()).div_ceil(8)), 0);
        // SAFETY: long enough, aligned for the largest element, and every byte pattern is a number.
        let room = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast::<T>(), n) };
        let done = work(self, room);
        self.spare = spare;
        done
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

/// Whether steps count for more than traffic.
fn is_short(bytes: usize) -> bool {
    bytes <= SHORT_BYTES
}

/// Whether so many ranks exchange halves, or pass parts around the ring.
fn by_halves(size: usize) -> bool {
    size >= if size.is_power_of_two() { HALVES_RANKS } else { UNEVEN_HALVES_RANKS }
}

/// How many of `size` ranks own a part of a long vector.
fn owners(size: usize) -> usize {
    if by_halves(size) { 1 << size.ilog2() } else { size }
}

/// The slice of a vector of `n` numbers that a rank owns.
fn slice_in(n: usize, rank: usize, size: usize) -> Range<usize> {
    match rank {
        _ if is_short(8 * n) => 0..n, // repeating a short update takes less than one more exchange
        rank if rank < owners(size) => slice_of(n, owners(size), rank),
        _ => n..n,
    }
}

/// The part of a vector that belongs to a rank.
type Part<'a> = &'a dyn Fn(usize) -> Range<usize>;

/// The parts of `distance` ranks in a row, aligned, of which `rank` is one.
fn run_of(part: Part, rank: usize, distance: usize) -> Range<usize> {
    let first = rank & !(distance - 1);
    part(first).start..part(first + distance - 1).end
}

/// Adds a partner's numbers. The lower rank's stand first on both sides, so that even the bits of a NaN agree.
fn add_low_first<T: Element>(mine: &mut [T], theirs: &[T], mine_is_lower: bool) {
    for (mine, &other) in mine.iter_mut().zip(theirs) {
        *mine = if mine_is_lower { mine.plus(other) } else { other.plus(*mine) };
    }
}

/// Two parts of `x` that do not overlap, the second to be written.
fn two_parts<T>(x: &mut [T], give: Range<usize>, take: Range<usize>) -> (&[T], &mut [T]) {
    if give.end <= take.start {
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

    fn form_groups(&mut self, each: usize) -> Result<()> {
        self.mates = group_of(self.rank, self.size, each).collect();
        Ok(())
    }

    fn all_reduce_group_f64(&mut self, x: &mut [f64]) -> Result<()> {
        let mates = std::mem::take(&mut self.mates);
        let done = self.all_reduce_among(&mates, x);
        self.mates = mates;
        done
    }

    fn slice(&self, n: usize) -> Range<usize> {
        slice_in(n, self.rank, self.size)
    }

    fn reduce_scatter(&mut self, x: &mut RankVector) -> Result<()> {
        self.scatter_slices(x)
    }

    fn all_gather_slices(&mut self, x: &mut CommonVector) -> Result<()> {
        self.gather_slices(x)
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        assert!(root < self.size, "a broadcast from a rank that does not exist");
        self.enter()?;
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.spread("broadcast", root, &mut length)?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        self.spread("broadcast", root, bytes)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.enter()?;
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
        self.enter()?;
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

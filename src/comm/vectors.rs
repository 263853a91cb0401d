//! The vectors of an update that ranks make together.
//!
//! Each rank has a term of a sum ([`RankVector`]), and owns one slice of it: it adds up that slice over ranks, changes the
//! same slice of a vector that all have in common ([`CommonVector`]), and all get each other's slices. Ranks of one host
//! have both vectors in memory that they share, so that nothing is copied; others exchange messages.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::Communicator;
use super::element::share;
use super::shm::Mapping;
use crate::err;
use crate::error::Result;

/// Slices begin at multiples of this: pages and lines of the cache have one owner, and whatever is computed cell by cell does not
/// depend on the number of ranks.
pub const CELL: usize = 2048;
/// Numbers that are added up at a time: they stay in the nearest cache while one rank's after the other's are read. Few enough to
/// be copied by loads and stores: see `copy` in `shm`.
const STRIP: usize = 256;

/// The `part`-th of `parts` slices of a vector of `n` numbers, in whole cells.
pub fn slice_of(n: usize, parts: usize, part: usize) -> Range<usize> {
    let cells = share(n.div_ceil(CELL), parts, part);
    (cells.start * CELL).min(n)..(cells.end * CELL).min(n)
}

/// The owners' slices for all, of numbers that only their owners have kept up to date, such as the state of an optimiser. `slice`
/// is this rank's.
pub fn gather_slices(ranks: &mut dyn Communicator, x: &mut [f64], slice: Range<usize>) -> Result<()> {
    if ranks.size() == 1 {
        return Ok(());
    }
    let mut mine = (slice.start as u64).to_le_bytes().to_vec();
    mine.extend(x[slice].iter().flat_map(|x| x.to_le_bytes()));
    for theirs in ranks.all_gather(&mine)? {
        let (words, _) = theirs.as_chunks::<8>();
        let Some((start, numbers)) = words.split_first() else { continue };
        let out = x.get_mut(u64::from_le_bytes(*start) as usize..);
        let out =
            out.ok_or_else(|| err!("a rank gathers something else: the ranks have come apart"))?.iter_mut();
        out.zip(numbers).for_each(|(x, bytes)| *x = f64::from_le_bytes(*bytes));
    }
    Ok(())
}

/// This rank's term of a sum over ranks. Dereferences to its numbers.
pub struct RankVector {
    place: Place,
    /// Whether the sums stand here already, or are to be made from everybody's numbers.
    summed: bool,
}

/// Numbers that are the same on all ranks. Dereferences to them.
///
/// Ranks that share memory have one copy of it: who changes a slice must own it, and may do so only after a
/// [`reduce_scatter`](super::Communicator::reduce_scatter), when all have stopped reading, and before the
/// [`all_gather_slices`](super::Communicator::all_gather_slices) that follows.
pub struct CommonVector(Place);

/// Where numbers lie.
enum Place {
    Own(Vec<f64>),
    /// In memory of all ranks: one vector for each of them, `stride` numbers apart, or one for all (`stride` 0).
    Shared {
        memory: Arc<Mapping>,
        n: usize,
        stride: usize,
        rank: usize,
        size: usize,
    },
}

impl Place {
    fn len(&self) -> usize {
        match self {
            Place::Own(x) => x.len(),
            Place::Shared { n, .. } => *n,
        }
    }

    fn start(&self) -> *mut f64 {
        match self {
            Place::Own(x) => x.as_ptr().cast_mut(),
            // SAFETY: the memory holds a vector for each rank.
            Place::Shared { memory, stride, rank, .. } => unsafe {
                memory.base().cast::<f64>().add(stride * rank)
            },
        }
    }
}

impl RankVector {
    /// `n` zeros of this rank's own.
    pub fn own(n: usize) -> Self {
        RankVector { place: Place::Own(vec![0.0; n]), summed: true }
    }

    /// The vector of `rank` in memory of `size` ranks, which holds `n` numbers every `stride`.
    pub(super) fn shared(memory: Arc<Mapping>, n: usize, stride: usize, rank: usize, size: usize) -> Self {
        assert!(
            n <= stride && size * stride * 8 <= memory.bytes(),
            "the memory holds a vector for each rank"
        );
        RankVector { place: Place::Shared { memory, n, stride, rank, size }, summed: false }
    }

    /// Whether other ranks can read it.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.place, Place::Shared { .. })
    }

    /// Says whether the sums stand here already.
    pub(super) fn set_summed(&mut self, yes: bool) {
        self.summed = yes;
    }

    /// The sums of this rank's slice, after a [`reduce_scatter`](super::Communicator::reduce_scatter).
    pub fn sums(&mut self) -> Sums<'_> {
        let others = match &self.place {
            Place::Shared { memory, stride, size, .. } if !self.summed => {
                Some((memory.base().cast::<f64>().cast_const(), *stride, *size))
            }
            _ => None,
        };
        Sums { mine: self.place.start(), n: self.place.len(), others, borrowed: PhantomData }
    }
}

impl CommonVector {
    /// A copy of this rank's own.
    pub fn own(x: Vec<f64>) -> Self {
        CommonVector(Place::Own(x))
    }

    /// The first `n` numbers in memory of all ranks.
    pub(super) fn shared(memory: Arc<Mapping>, n: usize) -> Self {
        assert!(n * 8 <= memory.bytes(), "the memory holds the vector");
        CommonVector(Place::Shared { memory, n, stride: 0, rank: 0, size: 1 })
    }

    /// Whether other ranks have the very same memory.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.0, Place::Shared { .. })
    }
}

impl Deref for RankVector {
    type Target = [f64];
    fn deref(&self) -> &[f64] {
        // SAFETY: these numbers are written by this rank alone, through a mutable reference.
        unsafe { std::slice::from_raw_parts(self.place.start(), self.place.len()) }
    }
}

impl DerefMut for RankVector {
    fn deref_mut(&mut self) -> &mut [f64] {
        // SAFETY: as above; the others read between two collectives, while this rank only holds `Sums`.
        unsafe { std::slice::from_raw_parts_mut(self.place.start(), self.place.len()) }
    }
}

impl Deref for CommonVector {
    type Target = [f64];
    fn deref(&self) -> &[f64] {
        // SAFETY: nobody writes while ranks may read: see above.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.len()) }
    }
}

impl DerefMut for CommonVector {
    fn deref_mut(&mut self) -> &mut [f64] {
        // SAFETY: each rank writes to its own slice, while nobody reads.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.len()) }
    }
}

/// Sums over ranks, of the slice that this rank owns.
///
/// Where ranks share memory they are made when they are asked for, so that they can be used while they are in the cache.
pub struct Sums<'a> {
    mine: *mut f64,
    n: usize,
    /// Memory of all ranks, the distance from one vector to the next, and how many there are.
    others: Option<(*const f64, usize, usize)>,
    borrowed: PhantomData<&'a [f64]>,
}

// SAFETY: what threads may do at the same time is said at the functions.
unsafe impl Sync for Sums<'_> {}

impl<'a> Sums<'a> {
    /// Sums that are complete already.
    pub fn of(x: &'a [f64]) -> Self {
        Sums { mine: x.as_ptr().cast_mut(), n: x.len(), others: None, borrowed: PhantomData }
    }

    /// Makes the sums of a part of this rank's slice, in the order of ranks.
    ///
    /// # Safety
    /// Each part is added up once, and lies within the slice that this rank owns.
    pub unsafe fn add_up(&self, part: Range<usize>) -> &[f64] {
        let Some((all, stride, size)) = self.others else { return self.part(part) };
        assert!(part.end <= self.n, "the part lies within the vector");
        let mut strip = [0.0; STRIP];
        for start in part.clone().step_by(STRIP) {
            let n = STRIP.min(part.end - start);
            for rank in 0..size {
                // SAFETY: between two collectives a slice of every rank's vector is used by its owner alone.
                let term = unsafe { std::slice::from_raw_parts(all.add(rank * stride + start), n) };
                match rank {
                    0 => strip[..n].copy_from_slice(term),
                    _ => strip[..n].iter_mut().zip(term).for_each(|(sum, x)| *sum += x),
                }
            }
            // SAFETY: as above, and by the caller's promise nobody has asked for these sums yet.
            unsafe { self.mine.add(start).copy_from_nonoverlapping(strip.as_ptr(), n) };
        }
        self.part(part)
    }

    /// Sums that were added up before.
    pub fn part(&self, part: Range<usize>) -> &[f64] {
        assert!(part.start <= part.end && part.end <= self.n, "the part lies within the vector");
        // SAFETY: within the vector; it is written by `add_up` alone, once, before anybody has it.
        unsafe { std::slice::from_raw_parts(self.mine.add(part.start), part.len()) }
    }
}

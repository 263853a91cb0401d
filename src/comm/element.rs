//! Numbers that can be summed over ranks.

/// A number that engines sum over ranks.
pub trait Element: Copy + Send + Sync + 'static {
    /// Which one it is, for libraries with run-time types.
    const KIND: Kind;
    /// The neutral element.
    const ZERO: Self;
    /// `self + other`; integers wrap around.
    fn plus(self, other: Self) -> Self;
}

/// The types of [`Element`], as values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    F64,
    F32,
    I64,
}

impl Element for f64 {
    const KIND: Kind = Kind::F64;
    const ZERO: f64 = 0.0;
    #[inline]
    fn plus(self, other: f64) -> f64 {
        self + other
    }
}

impl Element for f32 {
    const KIND: Kind = Kind::F32;
    const ZERO: f32 = 0.0;
    #[inline]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
}

impl Element for i64 {
    const KIND: Kind = Kind::I64;
    const ZERO: i64 = 0;
    #[inline]
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
}

/// The bytes of numbers, to be sent to a process of the same machine type.
pub fn bytes_of<T: Element>(x: &[T]) -> &[u8] {
    // SAFETY: f64, f32 and i64 have no padding, and every byte pattern of theirs is a valid u8.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

/// The bytes of numbers, to be received into.
pub fn bytes_of_mut<T: Element>(x: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every byte pattern is also a valid f64, f32 or i64.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
}

/// Cuts `n` elements into `parts` runs that differ by one at most; gives the `part`-th.
pub fn share(n: usize, parts: usize, part: usize) -> std::ops::Range<usize> {
    let (each, more) = (n / parts, n % parts);
    let start = part * each + part.min(more);
    start..start + each + usize::from(part < more)
}

/// The `each` ranks in a row of which `rank` is one; `each` divides `size`.
pub fn group_of(rank: usize, size: usize, each: usize) -> std::ops::Range<usize> {
    assert!(each > 0 && size.is_multiple_of(each), "{size} ranks do not make groups of {each}");
    let first = rank - rank % each;
    first..first + each
}

/// Writes the three all-reduce methods of a [`Communicator`](super::Communicator) in terms of one generic method.
macro_rules! all_reduce_methods {
    ($method:ident) => {
        fn all_reduce_sum_f64(&mut self, x: &mut [f64]) -> $crate::error::Result<()> {
            self.$method(x)
        }
        fn all_reduce_sum_f32(&mut self, x: &mut [f32]) -> $crate::error::Result<()> {
            self.$method(x)
        }
        fn all_reduce_sum_i64(&mut self, x: &mut [i64]) -> $crate::error::Result<()> {
            self.$method(x)
        }
    };
}
pub(super) use all_reduce_methods;

//! Working memory of a task, kept by its thread: a step allocates nothing.

use super::real::Real;
use std::cell::RefCell;

thread_local! {
    /// Buffers that are not in use, largest last.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A line of the cache: buffers begin with one, so that their vectors do not lie across two.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub struct Line(#[allow(dead_code)] [u64; 8]);

/// Calls `work` with `len` numbers of any value. Calls may be nested.
pub fn scratch<T: Real, R>(len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut buffer = FREE.with(|free| free.borrow_mut().pop()).unwrap_or_default();
    let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
    if buffer.len() < lines {
        buffer.resize(lines, Line::default());
    }
    // SAFETY: the buffer holds `len` numbers; every pattern of bits is a number.
    let numbers = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<T>(), len) };
    let result = work(numbers);
    FREE.with(|free| free.borrow_mut().push(buffer));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_buffers_are_different() {
        for _ in 0..3 {
            scratch::<f64, _>(100, |a| {
                a.fill(1.0);
                scratch::<f32, _>(300, |b| b.fill(2.0));
                assert!(a.iter().all(|&x| x == 1.0));
            });
        }
    }
}

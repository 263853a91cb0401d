//! Working memory of a task, kept by its thread: a step allocates nothing.

use super::real::Real;
use std::cell::RefCell;

thread_local! {
    /// Buffers that are not in use, largest last.
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with `len` numbers of any value. Calls may be nested.
pub fn scratch<T: Real, R>(len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut buffer = FREE.with(|free| free.borrow_mut().pop()).unwrap_or_default();
    let words = (len * size_of::<T>()).div_ceil(size_of::<u64>());
    if buffer.len() < words {
        buffer.resize(words, 0);
    }
    assert!(align_of::<T>() <= align_of::<u64>(), "words are aligned well enough");
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

//! Memory: what there is of it, and the allocator, which puts large buffers on huge pages.
//!
//! A step walks matrices whose rows are far apart. With pages of 4 KB nearly every row is on a page of its own, and the
//! processor spends its time looking up addresses. Linux gives pages of 2 MB to whoever asks for them by `madvise`.
//!
//! The programs choose it, not this library: whoever embeds it may have an allocator of their own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Fails where something would need more memory than this host has to give, before any of it is taken.
pub fn afford(bytes: u128, what: impl std::fmt::Display) -> crate::Result<()> {
    match available() {
        Some(free) if bytes > u128::from(free) => {
            let gb = |bytes: f64| bytes / 1e9;
            Err(crate::err!(
                "{what} would need {:.1} GB of memory; {:.1} GB are free",
                gb(bytes as f64),
                gb(free as f64)
            ))
        }
        _ => Ok(()),
    }
}

/// Bytes that a process may still take: what the system has, swap included, and what its group may have. None where the
/// system does not tell.
fn available() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = |name: &str| -> Option<u64> {
        table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    let free = 1024 * (kilobytes("MemAvailable:")? + kilobytes("SwapFree:").unwrap_or(0));
    let limit =
        std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(free.min(limit.unwrap_or(u64::MAX)))
}

/// A huge page.
const PAGE: usize = 2 << 20;

/// The system's allocator, which is asked for huge pages where a buffer is large.
pub struct Huge;

/// The layout of a large buffer: it begins where a huge page does.
fn aligned(layout: Layout) -> Option<Layout> {
    if layout.size() < PAGE { None } else { layout.align_to(PAGE).ok() }
}

fn advise(p: *mut u8, size: usize) {
    #[cfg(target_os = "linux")]
    if !p.is_null() {
        // SAFETY: whole huge pages of a buffer that was just allocated. Advice may be refused, without harm.
        unsafe { libc::madvise(p.cast(), size / PAGE * PAGE, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (p, size);
}

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts a request where someone wants to know.
fn note() {
    if COUNTING.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls `work` and counts the requests for memory, of all threads, meanwhile. One call at a time.
pub fn count_requests<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = COUNT.load(Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    let result = work();
    COUNTING.store(false, Ordering::SeqCst);
    (result, COUNT.load(Ordering::SeqCst) - before)
}

// SAFETY: everything is passed on to the system's allocator; a layout is changed in the same way on the way in and out.
unsafe impl GlobalAlloc for Huge {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        let Some(large) = aligned(layout) else { return unsafe { System.alloc(layout) } };
        let p = unsafe { System.alloc(large) };
        advise(p, large.size());
        p
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // The system's own way for aligned memory writes the zeros: that is one pass that a large buffer gets anyway.
        let Some(large) = aligned(layout) else { return unsafe { System.alloc_zeroed(layout) } };
        let p = unsafe { self.alloc(large) };
        if !p.is_null() {
            unsafe { p.write_bytes(0, large.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        unsafe { System.dealloc(p, aligned(layout).unwrap_or(layout)) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        if aligned(layout).is_none() && aligned(new).is_none() {
            return unsafe { System.realloc(p, layout, size) };
        }
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            unsafe {
                std::ptr::copy_nonoverlapping(p, moved, layout.size().min(size));
                self.dealloc(p, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_no_host_has_is_refused_with_the_sizes() {
        super::afford(1 << 20, "a megabyte").unwrap();
        let error = super::afford(u128::MAX, "model.fitting_net.neuron: so wide a network").unwrap_err();
        assert!(error.message().contains("neuron: so wide a network would need "), "{error}");
    }

    #[test]
    fn buffers_keep_what_they_hold_while_they_grow_and_shrink_across_the_size_of_a_page() {
        let mut x: Vec<u64> = Vec::new();
        for k in 0..1_000_000 {
            x.push(k * 7);
        }
        assert_eq!(x.as_ptr() as usize % super::PAGE, 0, "a large buffer begins with a huge page");
        x.truncate(1000);
        x.shrink_to_fit();
        assert!(x.iter().enumerate().all(|(k, &v)| v == 7 * k as u64));
        assert!(vec![0u8; 3 * super::PAGE + 5].iter().all(|&b| b == 0));
    }
}

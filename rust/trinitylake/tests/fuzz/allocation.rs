//! Measures the memory that one run requests. Memory that is never touched, or freed immediately, counts as well,
//! although the resident memory of the process does not show it.

#![allow(unsafe_code, reason = "an allocator that counts, for this test alone")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Allocated bytes of this thread, and their maximum since the last reset. The numbers are signed, because another
    /// thread may free the memory.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(size_bytes: isize) {
    // The counter of a thread that is ending is no longer accessible.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + size_bytes, most.max(now + size_bytes)));
    });
}

// Each call is forwarded unchanged to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size_bytes: usize) -> *mut u8 {
        count(size_bytes as isize - layout.size() as isize);
        unsafe { System.realloc(memory, layout, size_bytes) }
    }
}

/// Runs work and returns the maximum memory that it allocated in addition to the memory allocated before.
pub fn most_allocated_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(|held| {
        let (now, _) = held.get();
        held.set((now, now));
        now
    });
    let result = work();
    let most = HELD.with(|held| held.get().1);
    (result, usize::try_from(most - before).unwrap_or_default())
}

//! What one run allocates: memory that was asked for counts, also if it is never touched, and so does what is freed
//! at once. The memory of the process shows neither.

#![allow(unsafe_code, reason = "an allocator that counts, for this test alone")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread holds, and the most since it was last reset. Others may free what it allocated.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(size_bytes: isize) {
    // A thread that ends has no counter any more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + size_bytes, most.max(now + size_bytes)));
    });
}

// Each call is handed on to the allocator of the system as it came.
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

/// The most bytes that the work held at any time, beside what there was before it.
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

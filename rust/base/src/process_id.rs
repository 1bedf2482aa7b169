//! The number of this process, which is asked of the system once: a commit needs it some sixty times.
//!
//! A child must not take the number of its parent for its own, however it was forked. So it stands in a page that Linux
//! empties in each child (`MADV_WIPEONFORK`): who finds nothing there asks the system. Where there is no such page it is
//! asked each time.

use std::sync::atomic::{AtomicU32, Ordering};

/// As `std::process::id`.
pub fn process_id() -> u32 {
    let remembered = remembered();
    match remembered.load(Ordering::Relaxed) {
        0 => {
            let process = asked();
            if !std::ptr::eq(remembered, &NOT_REMEMBERED) {
                remembered.store(process, Ordering::Relaxed);
            }
            process
        }
        process => process,
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that asks the system")]
fn asked() -> u32 {
    std::process::id()
}

/// In the place of a page where there is none: it stays 0.
static NOT_REMEMBERED: AtomicU32 = AtomicU32::new(0);

#[cfg(not(target_os = "linux"))]
fn remembered() -> &'static AtomicU32 {
    &NOT_REMEMBERED
}

#[cfg(target_os = "linux")]
use emptied_by_fork::remembered;

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "no library that we have offers a page that a fork empties")]
mod emptied_by_fork {
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    use super::NOT_REMEMBERED;

    /// The system makes whole pages of it.
    const SIZE_BYTES: usize = size_of::<AtomicU32>();

    /// Once it is made. No lock: a child that was forked while a thread of its parent held that would wait for ever.
    static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

    pub(super) fn remembered() -> &'static AtomicU32 {
        let mut page = PAGE.load(Ordering::Acquire);
        if page.is_null() {
            let made = new_page().unwrap_or((&raw const NOT_REMEMBERED).cast_mut());
            // Of several threads that come first one has its page taken; what the others made is a page each.
            page = match PAGE.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made,
                Err(first) => first,
            };
        }
        // SAFETY: a page that is never given back, or a static. Both are read and written as atomics alone.
        unsafe { &*page }
    }

    fn new_page() -> Option<*mut AtomicU32> {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at a place that the system chooses, and advice on that memory alone. Some emulators say
        // "done" to any advice, also to one that does not exist: they are not believed.
        unsafe {
            let page = libc::mmap(null_mut(), SIZE_BYTES, read_write, private, -1, 0);
            if page == libc::MAP_FAILED {
                return None;
            }
            let knows_advice = libc::madvise(page, SIZE_BYTES, -1) != 0;
            if knows_advice && libc::madvise(page, SIZE_BYTES, libc::MADV_WIPEONFORK) == 0 {
                return Some(page.cast());
            }
            libc::munmap(page, SIZE_BYTES);
            None
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(unsafe_code, clippy::disallowed_methods, reason = "forks, and asks the system")]
mod tests {
    use super::*;

    /// Runs a check in a child that the system was asked for directly, so that no library learns of it.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child reads memory, asks for its number, and ends; it takes no lock.
        unsafe {
            match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
                0 => libc::_exit(if check() { 0 } else { 1 }),
                child => {
                    let mut status = -1;
                    assert_eq!(i64::from(libc::waitpid(child as libc::pid_t, &mut status, 0)), child);
                    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
                }
            }
        }
    }

    /// A child that took itself for its parent used the queue, the locks and the connections of that one.
    #[test]
    fn each_process_of_a_line_finds_its_own_number() {
        assert_eq!((process_id(), process_id()), (std::process::id(), std::process::id()));
        let is_own = || process_id() == std::process::id() && process_id() == std::process::id();
        assert!(in_child(|| is_own() && in_child(is_own)));
        assert!(is_own());
    }

    /// In a child, since others ask at the same time.
    #[test]
    fn the_system_is_asked_once() {
        assert!(in_child(|| {
            let is_kept = process_id() == remembered().load(Ordering::Relaxed);
            remembered().store(7, Ordering::Relaxed);
            is_kept && process_id() == 7
        }));
        assert_eq!(NOT_REMEMBERED.load(Ordering::Relaxed), 0);
    }
}

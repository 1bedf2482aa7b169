//! Catches panics of decoders. Some libraries panic on damaged bytes; callers report such a panic as an error.
//!
//! Rust prints a panic before it can be caught, so users would see a backtrace before the error. A panic in [`quietly`]
//! prints nothing. All other panics reach the previous hook.

#[cfg(not(target_family = "wasm"))]
pub use hook::quietly;

/// The WebAssembly build prints nothing, and only JavaScript can catch a panic there (`page/src/core.js`).
#[cfg(target_family = "wasm")]
pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    Ok(work())
}

#[cfg(not(target_family = "wasm"))]
mod hook {
    use std::any::Any;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
    use std::sync::Once;

    thread_local! {
        /// Depth of nested calls of [`quietly`] in this thread.
        static DEPTH: Cell<usize> = const { Cell::new(0) };
    }

    /// Runs the work. Returns its result, or the message if it panicked. After a panic the caller must not use data
    /// that the work changes.
    pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
        static HOOK: Once = Once::new();
        // A thread that is panicking must not replace the hook: that would panic again and end the process.
        if !std::thread::panicking() {
            HOOK.call_once(|| {
                let before = take_hook();
                set_hook(Box::new(move |panic| {
                    if DEPTH.get() == 0 {
                        before(panic);
                    }
                }));
            });
        }
        DEPTH.set(DEPTH.get() + 1);
        let done = catch_unwind(AssertUnwindSafe(work));
        DEPTH.set(DEPTH.get() - 1);
        done.map_err(|panic| message_of(panic.as_ref()))
    }

    fn message_of(panic: &(dyn Any + Send)) -> String {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;

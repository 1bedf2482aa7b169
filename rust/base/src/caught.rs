//! Catching panics of decoders. Some libraries panic on damaged bytes, which callers report as an error.
//!
//! Rust prints a panic before it can be caught, so users saw a backtrace in front of the error. A panic in [`quietly`]
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

    /// Result of the work, or the message of the panic that ended it. State that the work has changed must not be used.
    pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
        static HOOK: Once = Once::new();
        // A panicking thread cannot replace the hook.
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
mod tests {
    use std::panic::{catch_unwind, set_hook, take_hook};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// For a damaged file a user saw "thread panicked at …/parquet/…" before the error.
    #[test]
    fn only_a_panic_in_quietly_prints_nothing() {
        let printed = Arc::new(Mutex::new(Vec::new()));
        let own_thread = std::thread::current().id();
        let (messages, before) = (printed.clone(), take_hook());
        set_hook(Box::new(move |panic| {
            if std::thread::current().id() != own_thread {
                return before(panic);
            }
            messages.lock().unwrap().push(panic.payload_as_str().unwrap_or_default().to_string());
        }));
        assert_eq!(quietly(|| 7), Ok(7));
        assert_eq!(quietly(|| -> u8 { panic!("text") }), Err("text".to_string()));
        assert_eq!(quietly(|| -> u8 { panic!("number {}", 7) }), Err("number 7".to_string()));
        let inner = quietly(|| quietly(|| -> u8 { panic!("inner") }).map_err(|_| -> u8 { panic!("outer") }));
        assert_eq!(inner, Err("outer".to_string()));
        assert!(printed.lock().unwrap().is_empty());
        // Outside of `quietly` again, although the thread has been in it.
        assert!(catch_unwind(|| panic!("a fault of our own")).is_err());
        assert_eq!(*printed.lock().unwrap(), ["a fault of our own"]);
    }
}

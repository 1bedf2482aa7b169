use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Mutex};

use super::*;

/// A panic in [`quietly`] prints nothing, and any other panic is printed. Otherwise users would see "thread panicked at
/// …/parquet/…" before the error about a damaged file.
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
    // After a call of `quietly`, panics of this thread are printed again.
    assert!(catch_unwind(|| panic!("a fault of our own")).is_err());
    assert_eq!(*printed.lock().unwrap(), ["a fault of our own"]);
}

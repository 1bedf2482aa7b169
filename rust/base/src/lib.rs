//! What all other crates use: the kinds of errors, the spelling of locations and times, the conversion of panics to
//! errors, and the source of time, ids and randomness.

pub mod catch_panic;
#[cfg(not(target_family = "wasm"))]
pub mod environment;
pub mod error;
pub mod iso_8601;
#[cfg(not(target_family = "wasm"))]
pub mod per_process;
pub mod root_uri;

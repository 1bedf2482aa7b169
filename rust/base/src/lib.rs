//! Basics of all layers: the kinds of errors, the spelling of locations and times, panics turned into errors, and the
//! source of time, ids and randomness.

pub mod caught;
#[cfg(not(target_family = "wasm"))]
pub mod environment;
pub mod error;
#[cfg(not(target_family = "wasm"))]
pub mod per_process;
pub mod root_uri;
pub mod utc;

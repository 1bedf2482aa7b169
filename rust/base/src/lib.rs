//! What every layer needs: the kinds of errors, the spelling of locations and moments, panics that are errors, and where
//! time, ids and randomness come from.

pub mod caught;
#[cfg(not(target_family = "wasm"))]
pub mod environment;
pub mod error;
#[cfg(not(target_family = "wasm"))]
pub mod per_process;
pub mod root_uri;
pub mod utc;

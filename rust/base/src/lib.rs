//! What every layer needs: the kinds of errors, the spelling of locations, and where time, ids and
//! randomness come from.

pub mod environment;
pub mod error;
pub mod per_process;
pub mod root_uri;

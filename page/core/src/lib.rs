//! Core of the static web page: reads the files of a lakehouse in a browser, compiled to WebAssembly.
//!
//! Nothing here asks for a file. The page asks a [`question::Question`]; if a node is missing for the answer, the answer
//! is which, and the page fetches it, hands it over and asks again. What has been handed over is kept ([`fetched`]). The
//! same way it learns which files to request until the newest version is found ([`newest`]). Keys, nodes, trees, roots
//! and definitions are read by the crates that the library itself is made of.

#[cfg(target_family = "wasm")]
mod boundary;
pub mod decompression;
mod definitions;
mod fetched;
mod newest;
pub mod question;
pub mod reader;

//! Core of the static web page: reads the files of a lakehouse in a browser, compiled to WebAssembly.
//!
//! This crate sends no requests. The page asks a [`question::Question`]. If nodes are missing, the reply lists them; the
//! page fetches them, passes their bytes and asks again. Nodes stay in a cache ([`fetched`]). In the same way the page
//! learns which files to request until it has found the newest version ([`newest`]). The crates of the library decode
//! keys, nodes, trees, roots and definitions.

pub mod decompression;
mod definitions;
mod fetched;
#[cfg(target_family = "wasm")]
mod javascript_exports;
mod newest;
pub mod question;
pub mod reader;

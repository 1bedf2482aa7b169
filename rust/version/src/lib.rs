//! Versions of the lakehouse: the metadata of roots, the search for the latest version, expiry, and publishing the next
//! version. Transactions appear here only as entries of the log.
//!
//! Each handle has one [`publisher::Publisher`], which publishes roots and reads versions through
//! [`versions::Versions`] (`refresh`: the newest one, `version_lookup`: all others).
//!
//! Version v is defined by the root file with the name of v. Versions are contiguous from the expiry boundary to the
//! latest. A version never changes.
//!
//! The WebAssembly build for browsers contains only the metadata of roots, the search for the latest version and the
//! search by time, because the page fetches files itself.

#[cfg(not(target_family = "wasm"))]
mod damaged_latest_version;
#[cfg(not(target_family = "wasm"))]
pub mod discovery;
#[cfg(not(target_family = "wasm"))]
pub mod expired_versions;
#[cfg(not(target_family = "wasm"))]
pub mod expiry_boundary;
pub mod galloping_search;
#[cfg(not(target_family = "wasm"))]
pub mod gc_markers;
#[cfg(not(target_family = "wasm"))]
pub mod hint;
#[cfg(not(target_family = "wasm"))]
pub mod history;
#[cfg(not(target_family = "wasm"))]
pub mod key_history;
#[cfg(not(target_family = "wasm"))]
mod observations;
#[cfg(not(target_family = "wasm"))]
mod opening;
#[cfg(not(target_family = "wasm"))]
pub mod publisher;
#[cfg(not(target_family = "wasm"))]
mod read_definition;
#[cfg(not(target_family = "wasm"))]
pub mod refresh;
pub mod root_metadata;
#[cfg(not(target_family = "wasm"))]
pub mod store_clock;
pub mod summary_format;
pub mod time_travel;
#[cfg(not(target_family = "wasm"))]
mod version_lookup;
#[cfg(not(target_family = "wasm"))]
pub mod versions;
#[cfg(not(target_family = "wasm"))]
pub mod wait_before_deleting;

#[cfg(not(target_family = "wasm"))]
mod version;

#[cfg(not(target_family = "wasm"))]
pub use opening::newest_intact;
#[cfg(not(target_family = "wasm"))]
pub use read_definition::read_definition;
#[cfg(not(target_family = "wasm"))]
pub use version::{KeyChange, Version};

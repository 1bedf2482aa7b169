//! Versions of the lakehouse: what a root says besides its tree, which version is the latest, which have
//! expired, and how the next one is published. Nothing here knows what a transaction is, but as the log has it.
//!
//! One handle has one [`versions::Versions`], which finds and reads them, and one [`publisher::Publisher`].
//!
//! Version v is the root file with v's name. Versions are contiguous from the expiry boundary to the
//! latest; a version that exists never changes.
//!
//! In a browser there is only what roots say, and which versions to ask for on the way to the latest one, or to that of a
//! moment: its page fetches files by itself.

#[cfg(not(target_family = "wasm"))]
pub mod boundary;
#[cfg(not(target_family = "wasm"))]
mod definitions;
#[cfg(not(target_family = "wasm"))]
pub mod discovery;
pub mod galloping_search;
#[cfg(not(target_family = "wasm"))]
pub mod gc_markers;
#[cfg(not(target_family = "wasm"))]
pub mod hint;
#[cfg(not(target_family = "wasm"))]
pub mod history;
#[cfg(not(target_family = "wasm"))]
pub mod key_history;
pub mod moment;
#[cfg(not(target_family = "wasm"))]
mod observations;
#[cfg(not(target_family = "wasm"))]
mod opening;
#[cfg(not(target_family = "wasm"))]
pub mod publisher;
#[cfg(not(target_family = "wasm"))]
mod recent;
#[cfg(not(target_family = "wasm"))]
pub mod retention;
pub mod root_metadata;
#[cfg(not(target_family = "wasm"))]
pub mod store_time;
pub mod summary;
#[cfg(not(target_family = "wasm"))]
pub mod versions;
#[cfg(not(target_family = "wasm"))]
pub mod wait_before_deleting;

#[cfg(not(target_family = "wasm"))]
mod version;

#[cfg(not(target_family = "wasm"))]
pub use definitions::read_definition;
#[cfg(not(target_family = "wasm"))]
pub use opening::newest_intact;
#[cfg(not(target_family = "wasm"))]
pub use version::{KeyChange, Version};

//! The B-epsilon tree: keys to locations of definition files (format §§1, 5).
//!
//! Every node is an immutable file; a change writes new files from the changed node up to a new root. Changes enter at
//! the root as messages and are flushed downwards in batches. A [`Node`](trinitylake_format::node::Node) is a decoded
//! node, a [`MutableNode`](trinitylake_format::node::mutable_node::MutableNode) is a node that is being changed. A tree
//! is identified by its root.
//!
//! Decisions about nodes are pure functions, in `node::mutable_node` for one node and in [`split_and_merge`] for
//! several. Only `node_store` accesses storage; the WebAssembly build only reads, by its own implementation of
//! [`node_source`]. The crate `version` publishes roots.

#[cfg(not(target_family = "wasm"))]
pub mod apply_changes;
#[cfg(not(target_family = "wasm"))]
pub mod bulk_build;
#[cfg(not(target_family = "wasm"))]
pub mod diff;
#[cfg(not(target_family = "wasm"))]
pub mod distributed_bulk_build;
#[cfg(not(target_family = "wasm"))]
pub mod flush;
#[cfg(not(target_family = "wasm"))]
pub mod invariant;
#[cfg(not(target_family = "wasm"))]
pub mod node_cache;
pub mod node_source;
#[cfg(not(target_family = "wasm"))]
pub mod node_store;
#[cfg(not(target_family = "wasm"))]
mod parked_deletes;
pub mod scan;
pub mod search;
pub mod split_and_merge;

/// Maximum height of a tree. A longer chain of nodes is a cycle, so the files are damaged.
pub const MAX_HEIGHT: u32 = 40;

#[cfg(test)]
mod tests;

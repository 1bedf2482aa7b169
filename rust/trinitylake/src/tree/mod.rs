//! The B-epsilon tree: keys to locations of definition files (format §§1, 5).
//!
//! Every node is an immutable file; a change writes new files from the changed node up to a new root.
//! Changes enter at the root as messages and sink in batches. The data: a [`crate::node::Node`] is what
//! was read, a [`crate::node::draft::Draft`] what is being changed, and a tree is known by its root.
//!
//! Decisions about nodes are pure and live in `node::draft`; this folder decides the order of steps.
//! Only [`node_store`] touches storage. Who may publish a root is not the tree's business.

pub mod advance;
pub mod bulk;
pub mod diff;
pub mod flush;
pub mod invariant;
pub mod leaf_writer;
pub mod node_store;
pub mod scan;
pub mod search;

/// No tree that fits on earth is higher; a chain of nodes that is, is a cycle.
pub const MAX_HEIGHT: u32 = 40;

#[cfg(test)]
mod tests;

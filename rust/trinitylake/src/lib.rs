//! The lakehouse that is nothing but files: a versioned, copy-on-write B-epsilon tree of Arrow IPC node
//! files on plain storage, in which creating the next root file if absent is the commit.
//!
//! Layers are crates, each knowing only those before it: `base` (errors, root URIs, environment), `storage`
//! (files, and claiming one), `format` (names, keys, definitions, one node), `tree` (many nodes), `version` (roots
//! over time: finding, reading and publishing them). This crate is the top: transactions, with the handle that they
//! share, and above them rollback, registration of many objects at once, and expiry. It shows the modules of the
//! others under their own names.

pub mod bulk_registration;
pub mod collection;
pub mod expiry;
pub mod fsck;
mod messages_on_top;
mod rollback;
pub mod transaction;
pub mod tree_compaction;
pub mod tree_copy;

pub use transaction::lakehouse;
pub use trinitylake_base::{environment, error, per_process, root_uri};
pub use trinitylake_format::{
    batch, config, definition, definition_file, key, managed_table_folder, moved_lakehouse, node,
    object_name, path, sort_text, transaction_id,
};
pub use trinitylake_storage as storage;
pub use trinitylake_storage::claim;
pub use trinitylake_tree as tree;
pub use trinitylake_version as version;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

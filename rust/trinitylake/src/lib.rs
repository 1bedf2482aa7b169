//! A lakehouse catalog that consists of files only: a versioned, copy-on-write B-epsilon tree of Arrow IPC node files
//! on plain storage. A commit is the creation of the next root file, which the store allows only once.
//!
//! Layers are crates. Each depends only on crates before it: `base` (errors, root URIs, environment), `storage` (files,
//! and creation of a file if absent), `format` (names, keys, definitions, one node), `tree` (many nodes), `version`
//! (finding, reading and publishing roots). This crate is the top layer and re-exports the modules of the others:
//!
//! - `lakehouse`: the handle that all transactions of a process share.
//! - `transaction`: statements, reads, commit, saved transactions.
//! - `bulk_registration`, `rollback`, `tree_compaction`, `expiry`, `export`: versions that are published without a transaction.
//! - `gc`: garbage collection and disk usage. `fsck`: checks and repairs.

mod apply_many_changes;
pub mod bulk_registration;
pub mod expiry;
pub mod export;
pub mod fsck;
pub mod gc;
pub mod lakehouse;
mod rollback;
pub mod transaction;
pub mod tree_compaction;

pub use trinitylake_base::{environment, error, per_process, root_uri};
pub use trinitylake_format::{
    arrow_columns, config, definition_file, file_names, key, lakehouse_definition, managed_table_folder,
    moved_lakehouse, node, object_name, optimized_path, transaction_id, unpadded_key,
};
pub use trinitylake_iceberg as iceberg;
pub use trinitylake_storage as storage;
pub use trinitylake_storage::create_readback;
pub use trinitylake_tree as tree;
pub use trinitylake_version as version;

#[cfg(test)]
mod tests;

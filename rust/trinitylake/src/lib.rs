//! The lakehouse that is nothing but files: a versioned, copy-on-write B-epsilon tree of Arrow IPC node
//! files on plain storage, in which creating the next root file if absent is the commit.
//!
//! Layers, each knowing only those above it in this list: `error`, `environment`; `storage` (files),
//! `claim` (create one or lose); `path`, `key`, `definition`, `config` (the format's names and numbers);
//! `node` (one file of the tree); `tree` (many); `version` (roots over time); `lakehouse` and
//! `transaction` (who may change what); `register` (many objects at once), with `sort_text`.

pub mod batch;
pub mod claim;
pub mod config;
pub mod definition;
pub mod environment;
pub mod error;
pub mod key;
pub mod lakehouse;
pub mod location;
pub mod node;
pub mod path;
pub mod register;
pub mod sort_text;
pub mod storage;
pub mod transaction;
pub mod tree;
pub mod version;

#[cfg(test)]
mod fixture;

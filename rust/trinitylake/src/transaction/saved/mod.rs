//! Saved transactions and their outcome (format §8).
//!
//! `save` writes the state of a transaction to storage, `resume` continues it in any process, `restart` discards it. `record` is the entry in
//! the tree that says whether an id was committed or rolled back; `chosen_id` makes it part of a commit, `abort` writes
//! it for a rollback. `outcome` answers what became of an id, from its record and the log. `list` finds saved
//! transactions, `cleanup` removes their files and records.

pub(crate) mod abort;
pub(crate) mod chosen_id;
pub mod cleanup;
pub mod list;
pub mod outcome;
pub mod record;
pub(crate) mod restart;
pub(crate) mod resume;
pub(crate) mod save;
pub(crate) mod state_file;

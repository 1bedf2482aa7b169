//! Saved transactions and their outcome (format §8).
//!
//! `save` writes the state of a transaction to storage, `resume` continues it in any process, `restart` discards it.
//! `transaction_record` is the entry in the tree that says whether an id was committed or rolled back. `exactly_once`
//! makes the record part of a commit, `abort` writes it for a rollback. `outcome` returns the outcome of an id, from its
//! record and the log. `list` finds saved transactions, `cleanup` removes their files and records.

pub(crate) mod abort;
pub mod cleanup;
pub(crate) mod exactly_once;
pub mod list;
pub mod outcome;
pub(crate) mod restart;
pub(crate) mod resume;
pub(crate) mod save;
pub(crate) mod state_file;
pub mod transaction_record;

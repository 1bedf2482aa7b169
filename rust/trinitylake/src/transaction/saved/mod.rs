//! Saved transactions and their outcome (format §8).
//!
//! `save` writes the state of a transaction to storage, `resume` continues it in any process, and `restart` discards
//! it. `transaction_record` is the entry in the tree that says whether an id was committed or rolled back: a commit
//! writes it together with its changes, and `abort` for a rollback. `outcome_by_id` returns the outcome of an id, from
//! its record and the log. `list` finds saved transactions, `cleanup` removes their files and records.

pub(crate) mod abort;
pub mod cleanup;
pub mod list;
pub mod outcome_by_id;
pub(crate) mod restart;
pub(crate) mod resume;
pub(crate) mod save;
pub(crate) mod state_file;
pub mod transaction_record;

//! Transactions: statements on one version of the lakehouse, and the commit that publishes them as the next version.
//!
//! A transaction reads its base version and its own writes (`reads`, `statements`). Its footprint records what it read,
//! wrote and requires (`footprint`). Nothing is visible before [`Transaction::commit`] (`commit`) has created a root.
//! Definition files are staged in memory until then. `state_machine` records what is known about the outcome, and
//! decides which steps are allowed. `saved` stores transactions that other processes can continue.

mod append_queue;
mod changes;
pub(crate) mod commit;
mod companions;
pub mod footprint;
pub(crate) mod gc_fence;
mod handle;
mod options;
mod reads;
mod restore;
pub mod saved;
mod state_machine;
mod statements;
mod summarize_changes;

pub use crate::config::Coordination;
pub use append_queue::QueuedAppends;
pub use commit::limits::CommitLimits;
pub use commit::outcome::{ConflictingTable, Conflicts, Outcome};
pub use handle::Transaction;
pub use options::{Isolation, Note, TransactionOptions};
pub use state_machine::{Files, Proof};

#[cfg(test)]
mod tests;

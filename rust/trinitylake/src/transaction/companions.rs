//! Accompanied commit: one transaction commits the changes of others, its companions, with its own.
//!
//! The layer above puts the changes of the companions into the transaction, for instance the rows of many appends into
//! one data file. A companion itself has an id, a message, an author, properties and a summary for the log, and writes
//! nothing. The root that contains the transaction contains its companions, and no other root does, so the outcome of
//! the transaction is the outcome of all.

use super::commit::limits::CommitLimits;
use super::commit::outcome::Outcome;
use super::handle::Transaction;
use crate::error::{Error, Result};
use crate::version::root_metadata::CommittedTransaction;

impl Transaction {
    /// [`Transaction::commit`] together with companions. After a certain failure and after conflicts they are open, as
    /// before; otherwise their outcome is that of this transaction.
    pub async fn commit_with(
        &mut self,
        companions: &mut [impl AsMut<Transaction>],
        limits: CommitLimits,
    ) -> Result<Outcome> {
        let mut entries = Vec::with_capacity(companions.len());
        for companion in companions.iter_mut() {
            let companion = companion.as_mut();
            companion.check_open()?;
            if companion.has_writes() || companion.saved.has_record {
                return Err(Error::InvalidArgument(format!(
                    "transaction {} writes itself, so it is committed by itself",
                    companion.info.id
                )));
            }
            entries.push(CommittedTransaction { summary: companion.summary(), ..companion.info.clone() });
        }
        self.companions = entries;
        let outcome = self.commit(limits).await;
        for companion in companions {
            companion.as_mut().state.follow(&self.state);
        }
        outcome
    }
}

//! Restart of an id: discards an attempt that was not committed, and begins a new one under the same id.
//!
//! At most one attempt of an id commits:
//! - A process that has resumed an older saved state cannot save or commit it, because the restart has used the name of
//!   the next state.
//! - A process that has resumed an attempt that was rolled back cannot commit it, because this requires that the id has
//!   no record. The record of the rollback stays until the commit of the new attempt replaces it (`restarted_from`).

use std::sync::Arc;

use crate::error::Result;
use crate::lakehouse::Lakehouse;
use crate::transaction::handle::Transaction;
use crate::transaction::options::TransactionOptions;
use crate::transaction::saved::outcome_by_id::committed_version;
use crate::transaction::saved::state_file::newest_sequence;
use crate::transaction::saved::transaction_record::{Record, recorded};

impl Transaction {
    /// Begins a transaction with an id that may have been used before. If the id was committed, returns the committed
    /// transaction, or `CommitConflict` if its version was undone since. Garbage collection removes the files of a
    /// discarded attempt.
    pub async fn restart(lakehouse: &Arc<Lakehouse>, options: TransactionOptions) -> Result<Transaction> {
        let latest = lakehouse.latest().await?;
        let mut transaction = Transaction::begin(lakehouse.clone(), latest.clone(), options)?;
        let id = transaction.info.id.clone();
        match recorded(lakehouse, &latest, &id).await? {
            Some(Record::Committed { .. }) => {
                let version = committed_version(lakehouse, &latest, &id).await?;
                transaction.state.committed(version);
                return Ok(transaction);
            }
            Some(Record::RolledBack { location } | Record::Abandoned { location }) => {
                transaction.saved.restarted_from = Some(location);
            }
            None => {}
        }
        if let Some(sequence) = newest_sequence(lakehouse, &id).await? {
            transaction.saved.sequence = sequence;
            transaction.write_state().await?;
        }
        Ok(transaction)
    }
}

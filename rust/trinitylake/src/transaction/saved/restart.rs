//! Restart of an id: discards an attempt that was not committed, and begins a new one under the same id.
//!
//! At most one attempt of an id commits:
//! - A process that holds an older saved state cannot save or commit it, because the restart has used the name of the
//!   next state.
//! - A process that holds a state of an attempt that was rolled back requires that the id has no record. The record of
//!   the rollback stays until the commit of the new attempt replaces it; `restarted_from` names it.

use std::sync::Arc;

use crate::error::Result;
use crate::lakehouse::Lakehouse;
use crate::transaction::handle::Transaction;
use crate::transaction::options::TransactionOptions;
use crate::transaction::saved::outcome_by_id::committed_version;
use crate::transaction::saved::state_file::newest_sequence;
use crate::transaction::saved::transaction_record::{Record, recorded};

impl Transaction {
    /// Begins a transaction under an id that may have been used before. If the id was committed, the result is that
    /// committed transaction, or `CommitConflict` if it was undone since. The files of a discarded attempt are left to
    /// garbage collection.
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

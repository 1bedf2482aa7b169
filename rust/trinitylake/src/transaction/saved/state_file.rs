//! Files of saved transactions: `_txn/<id>/<sequence>`, one for each save.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::file_names::{FIRST_RECORD_SEQUENCE, TRANSACTION_PREFIX, transaction_file, transaction_path};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::proto::DistributedTransactionDef;
use crate::transaction::saved::transaction_record::{RESTARTED_FROM_PROPERTY, Record};
use crate::transaction_id::check_transaction_id;

/// What a transaction knows about its saved states and the record of its id.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    /// Whether the tree gets a record of the id when the transaction ends.
    pub has_record: bool,
    /// Number of saves.
    pub sequence: u64,
    pub began_at_millis: Option<u64>,
    /// Whether it was changed since the last save, or since it was resumed.
    pub is_changed: bool,
    /// Location of the record that the commit puts into the tree.
    pub record: Option<String>,
    /// Location of the record of an earlier attempt that was rolled back. The commit replaces that record (`restart`).
    pub restarted_from: Option<String>,
}

impl Saved {
    /// Returns the record, unless it belongs to an earlier attempt that this transaction replaces.
    pub(crate) fn of_this_attempt(&self, record: Option<Record>) -> Option<Record> {
        record.filter(|record| match record {
            Record::Committed { .. } => true,
            Record::RolledBack { location } | Record::Abandoned { location } => {
                self.restarted_from.as_ref() != Some(location)
            }
        })
    }

    /// Whether this record belongs to the transaction in its current state, and not to one that another process has
    /// resumed and changed.
    pub(crate) fn is_own(&self, record: &str, id: &str) -> bool {
        self.record.as_deref() == Some(record) || (!self.is_changed && record == transaction_path(id, self.sequence))
    }
}

/// Id and sequence number of a saved state. `None` for files with other names.
pub(crate) fn saved_state(path: &str) -> Option<(&str, u64)> {
    transaction_file(path)
        .filter(|(id, sequence)| *sequence < FIRST_RECORD_SEQUENCE && check_transaction_id(id).is_ok())
}

/// Location of the record that the commit of this saved state replaces.
pub(crate) fn restarted_from(state: &DistributedTransactionDef) -> Option<&String> {
    state.properties.get(RESTARTED_FROM_PROPERTY)
}

/// Returns the properties of a saved state for the log.
pub(crate) fn log_properties(state: &DistributedTransactionDef) -> BTreeMap<String, String> {
    let mut properties: BTreeMap<String, String> = state.properties.clone().into_iter().collect();
    properties.remove(RESTARTED_FROM_PROPERTY);
    properties
}

/// Time after the first save during which the transaction can be resumed.
pub(crate) fn lifetime_millis(record: &DistributedTransactionDef) -> u64 {
    record.expire_at_millis.saturating_sub(record.began_at_millis)
}

/// Returns the sequence number of the last save; `None` if the transaction was not saved.
pub(crate) async fn newest_sequence(lakehouse: &Lakehouse, id: &str) -> Result<Option<u64>> {
    let files = lakehouse.storage().list(&format!("{TRANSACTION_PREFIX}{id}/")).await?;
    Ok(files.iter().filter_map(|file| saved_state(&file.path)).map(|(_, sequence)| sequence).max())
}

pub(crate) async fn newest(lakehouse: &Lakehouse, id: &str) -> Result<(u64, DistributedTransactionDef)> {
    let Some(sequence) = newest_sequence(lakehouse, id).await? else {
        return Err(Error::ObjectNotFound(format!("there is no saved transaction {id}")));
    };
    Ok((sequence, read(lakehouse, id, sequence).await?))
}

pub(crate) async fn read(lakehouse: &Lakehouse, id: &str, sequence: u64) -> Result<DistributedTransactionDef> {
    let path = transaction_path(id, sequence);
    let bytes = match lakehouse.storage().get(&path).await {
        Err(Error::FileNotFound { .. }) => {
            return Err(Error::ObjectNotFound(format!("transaction {id} was rolled back a moment ago")));
        }
        bytes => bytes?,
    };
    DistributedTransactionDef::decode(decode_file(&path, &bytes)?)
        .map_err(|error| Error::corrupt(path, format!("not a saved transaction: {error}")))
}

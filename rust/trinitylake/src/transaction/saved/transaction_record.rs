//! Records of ids (format §8): keys in the tree that say that an id was committed or rolled back. Every commit of an
//! id, by any process, requires that its key is absent and adds the record. So an id commits at most once.
//!
//! An id has a record if the user chose it, if its transaction was saved, or if it was aborted while a request that
//! could commit it was in flight (`abort`).
//!
//! Invariants:
//! - A record stays as long as the version that wrote it is retained, even after a rollback of the lakehouse.
//! - Afterwards expiry removes it and its files (`cleanup`). No process can commit the same transaction then: it would
//!   have to validate it against a version that has expired.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::StringArray;
use bytes::Bytes;
use prost::Message as _;

use super::outcome_by_id::committed_version;
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
pub(crate) use crate::file_names::FIRST_RECORD_SEQUENCE;
use crate::file_names::{is_saved_state, root_version, transaction_path};
use crate::key::{KeyRange, ObjectKind};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::proto::{DistributedTransactionDef, DistributedTransactionState};
use crate::transaction::changes::{NewValue, Write};
use crate::transaction::footprint::Requirement;
use crate::transaction::handle::Transaction;
use crate::transaction::state_machine::{Failure, Proof};
use crate::transaction_id::check_transaction_id;
use crate::version::Version;

/// Property of a saved state: location of the record of an earlier, rolled back attempt that this attempt replaces.
pub(crate) const RESTARTED_FROM_PROPERTY: &str = "trinitylake.restarted-from";

/// Property of a record that says that expiry aborted the transaction.
pub(crate) const ABANDONED_PROPERTY: &str = "trinitylake.abandoned";

/// Content of the record of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Committed {
        /// Path of the record, which identifies the saved state that was committed.
        location: String,
        /// Base version of the transaction.
        base: Option<u64>,
    },
    RolledBack {
        location: String,
    },
    /// Expiry aborted the transaction, which could no longer be resumed. An expired version may have committed it.
    Abandoned {
        location: String,
    },
}

impl Record {
    /// "committed", "rolled back" or "aborted by an expiry".
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Record::Committed { .. } => "committed",
            Record::RolledBack { .. } => "rolled back",
            Record::Abandoned { .. } => "aborted by an expiry",
        }
    }
}

/// Returns the record of an id in `latest`. If an expiry has removed the record file since `latest` was read, returns
/// the record in a newer version.
pub(crate) async fn recorded(lakehouse: &Lakehouse, latest: &Arc<Version>, id: &str) -> Result<Option<Record>> {
    let mut version = latest.clone();
    loop {
        match recorded_in(&version, id).await {
            Err(error @ Error::CorruptFile { .. }) => {
                let newer = lakehouse.latest().await?;
                if newer.number <= version.number {
                    return Err(error);
                }
                version = newer;
            }
            outcome => return outcome,
        }
    }
}

async fn recorded_in(version: &Version, id: &str) -> Result<Option<Record>> {
    let Some(location) = version.get(&version.config.names.transaction_key(id)?).await? else {
        return Ok(None);
    };
    let bytes = match version.nodes().storage().get(&location).await {
        // An expiry has removed the saved state and will remove the key that references it.
        Err(Error::FileNotFound { .. }) if is_saved_state(&location) => {
            return Ok(Some(Record::Committed { location, base: None }));
        }
        Err(Error::FileNotFound { .. }) => version.read_definition(&location).await?,
        file => decode_file(&location, &file?)?,
    };
    let record = DistributedTransactionDef::decode(bytes)
        .map_err(|error| Error::corrupt(location.clone(), format!("not a record of a transaction: {error}")))?;
    Ok(Some(match record.state() {
        DistributedTransactionState::RolledBack if record.properties.contains_key(ABANDONED_PROPERTY) => {
            Record::Abandoned { location }
        }
        DistributedTransactionState::RolledBack => Record::RolledBack { location },
        DistributedTransactionState::Open | DistributedTransactionState::Record => {
            Record::Committed { location, base: root_version(&record.beginning_root) }
        }
    }))
}

/// Whether the latest tree has a record that says that the id was committed.
pub async fn is_committed(lakehouse: &Arc<Lakehouse>, id: &str) -> Result<bool> {
    check_transaction_id(id)?;
    let latest = lakehouse.latest().await?;
    Ok(matches!(recorded(lakehouse, &latest, id).await?, Some(Record::Committed { .. })))
}

/// Returns the locations of all records in a version, by key.
pub(crate) async fn records(version: &Version) -> Result<BTreeMap<String, String>> {
    let mut records = BTreeMap::new();
    let mut scan = version.scan(record_keys(), None, true);
    while let Some(batch) = scan.next_batch().await? {
        records.extend(rows(&batch.keys, batch.locations.as_ref()));
    }
    Ok(records)
}

pub(crate) fn record_keys() -> KeyRange {
    KeyRange::prefix(ObjectKind::TransactionRecord.prefix())
}

pub(crate) fn rows(keys: &StringArray, locations: Option<&StringArray>) -> Vec<(String, String)> {
    let locations = locations.into_iter().flat_map(|locations| locations.iter().flatten());
    keys.iter().flatten().zip(locations).map(|(key, at)| (key.to_string(), at.to_string())).collect()
}

impl Transaction {
    pub(crate) fn record_key(&self) -> Result<String> {
        self.base.config.names.transaction_key(&self.info.id)
    }

    /// Adds the record of the id to the writes, and requires that the key is absent. If the id was committed before,
    /// returns the version of that commit.
    pub(crate) async fn record_chosen_id(&mut self) -> Result<Option<u64>, Failure> {
        if !self.saved.has_record || self.saved.record.is_some() {
            return Ok(None);
        }
        let latest = self.lakehouse.latest().await?;
        self.record_chosen_id_after(&latest).await
    }

    /// Like [`Transaction::record_chosen_id`], for a commit that is validated against all versions after `version`.
    /// Called for a companion once per transaction that tries to commit it, because these begin at different versions.
    ///
    /// The id is never looked up in a version before the base of this transaction: if this commit fails, the
    /// transaction may commit alone, and it is then validated only against versions after its base.
    pub(crate) async fn record_chosen_id_after(&mut self, version: &Arc<Version>) -> Result<Option<u64>, Failure> {
        if !self.saved.has_record {
            return Ok(None);
        }
        let key = self.record_key()?;
        let version = if version.number < self.base.number { &self.base.clone() } else { version };
        let record = recorded(&self.lakehouse, version, &self.info.id).await?;
        match self.saved.of_this_attempt(record) {
            Some(Record::Committed { location, .. }) => {
                if self.saved.sequence > 0 && !self.saved.is_own(&location, &self.info.id) {
                    return Err(Failure::before_sending(self.continued_elsewhere("committed")));
                }
                return Ok(Some(committed_version(&self.lakehouse, version, &self.info.id).await?));
            }
            Some(record @ Record::Abandoned { .. }) => {
                return Err(Failure::Certain(Proof::RolledBack, self.continued_elsewhere(record.verb())));
            }
            Some(Record::RolledBack { .. }) => {
                return Err(Failure::Certain(Proof::RolledBack, self.continued_elsewhere("rolled back")));
            }
            None if self.saved.record.is_some() => return Ok(None),
            None => {}
        }
        let value = if self.saved.sequence > 0 {
            // From now on no other process can save or commit the previous state.
            self.write_state().await?;
            NewValue::Existing(transaction_path(&self.info.id, self.saved.sequence))
        } else {
            self.new_record(DistributedTransactionState::Record)
        };
        self.saved.record = value.location().map(str::to_string);
        let base = self.saved.restarted_from.clone();
        if base.is_none() {
            self.footprint_mut().require(Requirement::Absent(key.clone()));
        }
        let checked = self.base.number;
        self.changes.writes.insert(key, Write { base, value, checked, renamed_from: None });
        Ok(None)
    }

    /// Returns a record under a unique name, which no saved state has.
    pub(crate) fn new_record(&self, state: DistributedTransactionState) -> NewValue {
        let record = DistributedTransactionDef {
            id: self.info.id.clone(),
            isolation: self.isolation.to_proto().into(),
            beginning_root: self.base.root_path.clone(),
            commit_message: self.info.message.clone(),
            state: state.into(),
            ..Default::default()
        };
        let sequence = FIRST_RECORD_SEQUENCE | self.lakehouse.environment().uuid().as_u64_pair().0;
        NewValue::Staged {
            path: transaction_path(&self.info.id, sequence),
            bytes: Bytes::from(record.encode_to_vec()),
            written: false,
        }
    }
}

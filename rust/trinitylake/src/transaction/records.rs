//! Records of ids (format §8): a key in the tree says that the id was committed, or rolled back. Every commit of
//! the id, by whichever process, requires that the key is absent. So an id commits at most once.
//!
//! An id has a record if the user chose it, if its transaction was saved, or if it was given up while a request
//! that could commit it was in flight (`give_up`).
//!
//! Invariants:
//! - A record stays as long as the version that wrote it is kept, whatever the lakehouse is rolled back to.
//! - Expiry removes it afterwards, and its files (`saved_files`). Whatever could still commit the same transaction has
//!   expired by then, too: it was last held against a version below that one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow_array::StringArray;
use bytes::Bytes;
use prost::Message as _;

use super::changes::{NewValue, Write};
use super::fate::committed_version;
use super::footprint::Requirement;
use super::life::{Failure, Proof};
use super::saved_files::{remove_records, remove_states};
use super::{CommitLimits, Note, Transaction};
use crate::definition::proto::{DistributedTransactionDef, DistributedTransactionState};
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::key::{KeyRange, ObjectKind};
use crate::lakehouse::Lakehouse;
pub(super) use crate::path::FIRST_RECORD_SEQUENCE;
use crate::path::{is_saved_state, root_version, transaction_path};
use crate::tree::search::get_many;
use crate::version::Version;

/// Property of a record with which expiry gave a transaction up.
pub(super) const ABANDONED_PROPERTY: &str = "trinitylake.abandoned";

/// Message of the versions in which expiry forgets ids.
pub const FORGET_MESSAGE: &str = "forget expired transaction ids";

/// Records that one root takes out of the tree.
const FORGOTTEN_AT_ONCE: usize = 1000;

/// What the record of an id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Committed {
        /// Where the record is: it tells which of the saved states was committed.
        location: String,
        /// The version that the transaction read.
        base: Option<u64>,
    },
    RolledBack,
    /// Expiry gave it up, since nobody could resume it any more. Whether it was committed, in a version that has
    /// expired, is not known.
    Abandoned,
}

impl Record {
    /// "committed", "rolled back" or "given up by an expiry".
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Record::Committed { .. } => "committed",
            Record::RolledBack => "rolled back",
            Record::Abandoned => "given up by an expiry",
        }
    }
}

/// The record of an id in the latest version, which was just read, if there is one. Where an expiry removed the key since,
/// and then the record, it is as newer versions have it.
pub(crate) async fn recorded(
    lakehouse: &Lakehouse,
    latest: &Arc<Version>,
    id: &str,
) -> Result<Option<Record>> {
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
            told => return told,
        }
    }
}

async fn recorded_in(version: &Version, id: &str) -> Result<Option<Record>> {
    let Some(location) = version.get(&version.config.names.transaction_key(id)?).await? else {
        return Ok(None);
    };
    let bytes = match version.nodes().storage().get(&location).await {
        // An expiry is about to remove the key, and has removed the saved state that it names.
        Err(Error::FileNotFound { .. }) if is_saved_state(&location) => {
            return Ok(Some(Record::Committed { location, base: None }));
        }
        Err(Error::FileNotFound { .. }) => version.read_definition(&location).await?,
        file => decode_file(&location, &file?)?,
    };
    let record = DistributedTransactionDef::decode(bytes).map_err(|error| {
        Error::corrupt(location.clone(), format!("not a record of a transaction: {error}"))
    })?;
    Ok(Some(match record.state() {
        DistributedTransactionState::RolledBack if record.properties.contains_key(ABANDONED_PROPERTY) => {
            Record::Abandoned
        }
        DistributedTransactionState::RolledBack => Record::RolledBack,
        DistributedTransactionState::Open | DistributedTransactionState::Record => {
            Record::Committed { location, base: root_version(&record.beginning_root) }
        }
    }))
}

/// The records in a version: locations by key.
pub(crate) async fn records(version: &Version) -> Result<BTreeMap<String, String>> {
    let mut records = BTreeMap::new();
    let mut scan = version.scan(record_keys(), None, true);
    while let Some(batch) = scan.next_batch().await? {
        records.extend(rows(&batch.keys, batch.locations.as_ref()));
    }
    Ok(records)
}

fn record_keys() -> KeyRange {
    KeyRange::prefix(ObjectKind::TransactionRecord.prefix())
}

fn rows(keys: &StringArray, locations: Option<&StringArray>) -> Vec<(String, String)> {
    let locations = locations.into_iter().flat_map(|locations| locations.iter().flatten());
    keys.iter().flatten().zip(locations).map(|(key, at)| (key.to_string(), at.to_string())).collect()
}

/// Removes the records of what was committed before version `oldest`, which is kept: they are those in its
/// tree, but for its own. What is left because others were faster is for the next expiry.
pub(crate) async fn forget_before(lakehouse: &Arc<Lakehouse>, oldest: u64, note: &Note) -> Result<()> {
    let version = match lakehouse.version(oldest).await {
        // Another expiry has come further.
        Err(Error::VersionExpired(_)) => return Ok(()),
        version => version?,
    };
    let names = version.config.names;
    let committed = version.metadata.committed.iter();
    let ids = committed.flat_map(|one| [Some(one.id.as_str()), one.gives_up()]).flatten();
    let own: HashSet<String> = ids.filter_map(|id| names.transaction_key(id).ok()).collect();
    let mut scan = version.scan(record_keys(), None, true);
    while let Some(batch) = scan.next_batch().await? {
        let mut old = rows(&batch.keys, batch.locations.as_ref());
        old.retain(|(key, _)| !own.contains(key));
        for some in old.chunks(FORGOTTEN_AT_ONCE) {
            match forget(lakehouse, some, note).await {
                Err(Error::CommitConflict { .. } | Error::TransactionExpired(_)) => return Ok(()),
                done => done?,
            }
        }
    }
    Ok(())
}

/// Removes those of the records that are still there: an id may have been used again. Their states go before, and the
/// records themselves afterwards, with those that an expiry removed from the tree before it died.
async fn forget(lakehouse: &Arc<Lakehouse>, records: &[(String, String)], note: &Note) -> Result<()> {
    let latest = lakehouse.latest().await?;
    let keys = StringArray::from_iter_values(records.iter().map(|(key, _)| key));
    let now = get_many(lakehouse.nodes(), &latest.root, &keys).await?;
    let there: Vec<(String, String)> = records
        .iter()
        .zip(now)
        .filter(|((_, location), now)| now.as_ref().is_some_and(|now| now.as_str() == location))
        .map(|(record, _)| record.clone())
        .collect();
    remove_states(lakehouse, &there).await?;
    let mut transaction = lakehouse.begin(latest, note.options(FORGET_MESSAGE))?;
    for (key, location) in there {
        transaction.write(key, Some(location), NewValue::Deleted);
    }
    transaction.commit(CommitLimits::default()).await?;
    let locations = records.iter().map(|(_, location)| location.clone()).collect();
    remove_records(lakehouse, locations).await
}

impl Transaction {
    pub(super) fn record_key(&self) -> Result<String> {
        self.base.config.names.transaction_key(&self.info.id)
    }

    /// An id that the user chose commits once: its record is a key like any other, required to be absent.
    /// Returns the version of the first commit if there was one.
    pub(super) async fn record_chosen_id(&mut self) -> Result<Option<u64>, Failure> {
        if !self.saved.has_record || self.saved.record.is_some() {
            return Ok(None);
        }
        let key = self.record_key()?;
        let latest = self.lakehouse.latest().await?;
        match recorded(&self.lakehouse, &latest, &self.info.id).await? {
            Some(Record::Committed { location, .. }) => {
                if self.saved.sequence > 0 && !self.saved.is_own(&location, &self.info.id) {
                    return Err(Failure::before_sending(self.went_on_elsewhere("committed")));
                }
                return Ok(Some(committed_version(&self.lakehouse, &latest, &self.info.id).await?));
            }
            Some(record @ Record::Abandoned) => {
                return Err(Failure::Certain(Proof::RolledBack, self.went_on_elsewhere(record.verb())));
            }
            Some(Record::RolledBack) => {
                return Err(Failure::Certain(Proof::RolledBack, self.went_on_elsewhere("rolled back")));
            }
            None => {}
        }
        let value = if self.saved.sequence > 0 {
            // Nobody else can go on with this state from here.
            self.write_state().await?;
            NewValue::Existing(transaction_path(&self.info.id, self.saved.sequence))
        } else {
            self.new_record(DistributedTransactionState::Record)
        };
        self.saved.record = value.location().map(str::to_string);
        self.footprint_mut().require(Requirement::Absent(key.clone()));
        let checked = self.base.number;
        self.changes.writes.insert(key, Write { base: None, value, checked, renamed_from: None });
        Ok(None)
    }

    /// A record under a name of its own, which no save takes.
    pub(super) fn new_record(&self, state: DistributedTransactionState) -> NewValue {
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

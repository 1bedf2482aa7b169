//! Records of committed ids (format §8): an id that the user chose has a key in the tree, required to be
//! absent by whoever commits it, so it commits once.
//!
//! Invariants:
//! - A record stays as long as the version that its transaction committed is kept, whatever is rolled back.
//! - Expiry removes it afterwards. Whatever could still commit the same transaction has expired by then, too:
//!   it began below that version.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow_array::StringArray;
use bytes::Bytes;
use prost::Message as _;

use super::fate::committed_version;
use super::footprint::Requirement;
use super::{CommitLimits, NewValue, Transaction, TransactionOptions, Write};
use crate::definition::proto::{DistributedTransactionDef, DistributedTransactionState};
use crate::error::{Error, Result};
use crate::key::{KeyRange, ObjectKind};
use crate::lakehouse::Lakehouse;
use crate::path::transaction_path;
use crate::tree::search::get_many;
use crate::version::Version;

/// Sequence numbers from here on are records of commits that were never saved: nothing to resume.
pub(super) const FIRST_RECORD_SEQUENCE: u64 = 1 << 63;

/// Message of the versions that expiry makes.
pub const FORGET_MESSAGE: &str = "forget expired transaction ids";

/// Records that one root takes out of the tree.
const FORGOTTEN_AT_ONCE: usize = 1000;

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
pub(crate) async fn forget_before(lakehouse: &Arc<Lakehouse>, oldest: u64) -> Result<()> {
    let version = match lakehouse.version(oldest).await {
        // Another expiry has come further.
        Err(Error::VersionExpired(_)) => return Ok(()),
        version => version?,
    };
    let names = version.config.names;
    let committed = version.metadata.committed.iter();
    let own: HashSet<String> = committed.filter_map(|one| names.transaction_key(&one.id).ok()).collect();
    let mut scan = version.scan(record_keys(), None, true);
    while let Some(batch) = scan.next_batch().await? {
        let mut old = rows(&batch.keys, batch.locations.as_ref());
        old.retain(|(key, _)| !own.contains(key));
        for some in old.chunks(FORGOTTEN_AT_ONCE) {
            match forget(lakehouse, some).await {
                Err(Error::CommitConflict { .. } | Error::TransactionExpired(_)) => return Ok(()),
                done => done?,
            }
        }
    }
    Ok(())
}

/// Removes those of the records that are still there: an id may have been used again.
async fn forget(lakehouse: &Arc<Lakehouse>, records: &[(String, String)]) -> Result<()> {
    let latest = lakehouse.latest().await?;
    let keys = StringArray::from_iter_values(records.iter().map(|(key, _)| key));
    let now = get_many(lakehouse.nodes(), &latest.root, &keys).await?;
    let options = TransactionOptions { message: FORGET_MESSAGE.into(), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(latest, options)?;
    for ((key, location), now) in records.iter().zip(now) {
        if now.is_some_and(|now| now.as_str() == location) {
            transaction.write(key.clone(), Some(location.clone()), NewValue::Deleted);
        }
    }
    transaction.commit(CommitLimits::default()).await.map(drop)
}

impl Transaction {
    /// An id that the user chose commits once: its record is a key like any other, required to be absent.
    /// Returns the version of the first commit if there was one.
    pub(super) async fn record_chosen_id(&mut self) -> Result<Option<u64>> {
        if !self.has_chosen_id {
            return Ok(None);
        }
        let key = self.base.config.names.transaction_key(&self.info.id)?;
        if self.writes.contains_key(&key) {
            return Ok(None);
        }
        let latest = self.lakehouse.latest().await?;
        if let Some(record) = latest.get(&key).await? {
            self.check_is_record(&record)?;
            return committed_version(&self.lakehouse, &self.info.id).await.map(Some);
        }
        let value = if self.sequence > 0 {
            // Nobody else can go on with this state from here.
            self.save().await?;
            NewValue::Existing(transaction_path(&self.info.id, self.sequence))
        } else {
            self.new_record()
        };
        self.footprint_mut().require(Requirement::Absent(key.clone()));
        self.writes.insert(key, Write { base: None, value, checked: self.base.number });
        Ok(None)
    }

    fn new_record(&self) -> NewValue {
        let record = DistributedTransactionDef {
            id: self.info.id.clone(),
            isolation: self.isolation.to_proto().into(),
            beginning_root: self.base.root_path.clone(),
            commit_message: self.info.message.clone(),
            state: DistributedTransactionState::Record.into(),
            ..Default::default()
        };
        let sequence = FIRST_RECORD_SEQUENCE | self.lakehouse.environment().uuid().as_u64_pair().0;
        NewValue::Staged {
            path: transaction_path(&self.info.id, sequence),
            bytes: Bytes::from(record.encode_to_vec()),
            written: false,
        }
    }

    /// This id was committed, with that record: was it this transaction? A saved one may have been resumed
    /// and changed elsewhere.
    pub(super) fn check_is_record(&self, record: &str) -> Result<()> {
        let is_its = self.sequence == 0
            || (!self.is_changed_since_save && record == transaction_path(&self.info.id, self.sequence));
        if is_its { Ok(()) } else { Err(self.went_on_elsewhere("committed")) }
    }
}

//! When the files of saved transactions go (format §8).
//!
//! Invariants:
//! - A state is removed only while the latest tree has a record of its id. So nobody can go on from an older state,
//!   commit it, or begin another transaction under this id, whose states would have the same names.
//! - What the record itself says is never lost: it is removed after its key, if its name is its own (a random number).
//!   A record that is a saved state may go before: that its key is in the tree says that it was committed.
//! - Whoever dies in between leaves what the next expiry finds by itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message as _;

use super::changes::NewValue;
use super::footprint::Requirement;
use super::records::{ABANDONED_PROPERTY, FIRST_RECORD_SEQUENCE};
use super::saved_list::{FILES_AT_ONCE, SavedWalk, after_files_of};
use super::{CommitLimits, Note, Transaction};
use crate::definition::proto::{DistributedTransactionDef, DistributedTransactionState};
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::path::{TRANSACTION_PREFIX, root_path, transaction_file, transaction_path};
use crate::storage::Storage;
use crate::tree::nodes::PARALLEL_REQUESTS;
use crate::version::store_time::StoreTime;

/// Message of the versions in which expiry gives up what nobody can resume any more.
pub const ABANDON_MESSAGE: &str = "give up expired transactions";

impl Transaction {
    /// The tree has the record, and nobody else needs the states before it. In the background: what is left goes
    /// with the expiry of the record.
    pub(super) async fn remove_states_before(&self, sequence: u64) {
        if sequence <= 1 {
            return;
        }
        let (storage, id) = (self.lakehouse.storage().clone(), self.info.id.clone());
        let work = async move {
            let paths = (1..sequence).map(|sequence| transaction_path(&id, sequence)).collect();
            let _ = remove(storage.as_ref(), paths).await;
        };
        self.lakehouse.environment().background(Box::pin(work)).await;
    }
}

async fn remove(storage: &dyn Storage, paths: Vec<String>) -> Result<()> {
    stream::iter(paths)
        .map(|path| async move { storage.delete(&path).await })
        .buffer_unordered(PARALLEL_REQUESTS)
        .try_collect()
        .await
}

/// Was it a random number that named this record?
fn has_own_name(location: &str) -> bool {
    transaction_file(location).is_some_and(|(_, sequence)| sequence >= FIRST_RECORD_SEQUENCE)
}

/// Removes all states of transactions whose records are in the latest tree. Goes once through the files between the
/// first and the last of them.
pub(super) async fn remove_states(lakehouse: &Lakehouse, records: &[(String, String)]) -> Result<()> {
    let kept: HashMap<&str, &str> = records
        .iter()
        .filter_map(|(_, location)| Some((transaction_file(location)?.0, location.as_str())))
        .collect();
    let ids: BTreeSet<String> = kept.keys().map(|id| format!("{TRANSACTION_PREFIX}{id}/")).collect();
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(()) };
    let end = after_files_of(&last[TRANSACTION_PREFIX.len()..last.len() - 1]);
    let mut after = Some(first.trim_end_matches('/').to_string());
    while let Some(from) = after.take() {
        let files = lakehouse.storage().list_page(TRANSACTION_PREFIX, &from, FILES_AT_ONCE).await?;
        if files.len() == FILES_AT_ONCE {
            after = files.last().map(|file| file.path.clone()).filter(|path| *path < end);
        }
        let paths = files.into_iter().map(|file| file.path).filter(|path| {
            let record = transaction_file(path).and_then(|(id, _)| kept.get(id));
            record.is_some_and(|record| !(record == path && has_own_name(path)))
        });
        remove(lakehouse.storage().as_ref(), paths.collect()).await?;
    }
    Ok(())
}

/// Removes records whose keys are not in the latest tree any more.
pub(super) async fn remove_records(lakehouse: &Lakehouse, mut locations: Vec<String>) -> Result<()> {
    locations.retain(|location| has_own_name(location));
    remove(lakehouse.storage().as_ref(), locations).await
}

/// Gives up the transactions that were saved, and that nobody can resume any more since they are too old and the
/// version that they began on has expired; then removes their states. The record proves that nobody commits them
/// either. What is left because others were faster is for the next expiry.
pub(crate) async fn give_up_abandoned(
    lakehouse: &Arc<Lakehouse>,
    oldest: u64,
    time: StoreTime,
    note: &Note,
) -> Result<()> {
    let mut walk = SavedWalk::begin(lakehouse, Some(time)).await?;
    while let Some(page) = walk.next().await? {
        let abandoned = page.into_iter().filter(|one| !one.is_resumable && one.is_over_age);
        let too_old = abandoned.map(|one| one.transaction).filter(|one| one.base_version < oldest);
        let ids: Vec<String> = too_old.map(|one| one.id).collect();
        match give_up_all(lakehouse, &ids, note).await {
            Err(Error::CommitConflict { .. } | Error::TransactionExpired(_)) => return Ok(()),
            Ok(records) => remove_states(lakehouse, &records).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the records: keys and locations. An id that has a record by now is left alone: its commit, or another expiry,
/// came first, and each would remove the record of the other.
pub(super) async fn give_up_all(
    lakehouse: &Arc<Lakehouse>,
    ids: &[String],
    note: &Note,
) -> Result<Vec<(String, String)>> {
    let latest = lakehouse.latest().await?;
    let names = latest.config.names;
    let mut given_up = Vec::with_capacity(ids.len());
    for id in ids {
        if latest.get(&names.transaction_key(id)?).await?.is_none() {
            given_up.push(id);
        }
    }
    let ids = given_up;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut transaction = lakehouse.begin(latest.clone(), note.options(ABANDON_MESSAGE))?;
    let mut records = Vec::with_capacity(ids.len());
    for id in ids {
        let record = DistributedTransactionDef {
            id: id.clone(),
            beginning_root: root_path(latest.number),
            state: DistributedTransactionState::RolledBack.into(),
            properties: [(ABANDONED_PROPERTY.to_string(), "true".to_string())].into(),
            ..Default::default()
        };
        let number = FIRST_RECORD_SEQUENCE | lakehouse.environment().uuid().as_u64_pair().0;
        let path = transaction_path(id, number);
        let bytes = Bytes::from(record.encode_to_vec());
        let key = names.transaction_key(id)?;
        transaction.footprint_mut().require(Requirement::Absent(key.clone()));
        transaction.write(key.clone(), None, NewValue::Staged { path: path.clone(), bytes, written: false });
        records.push((key, path));
    }
    transaction.commit(CommitLimits::default()).await?;
    Ok(records)
}

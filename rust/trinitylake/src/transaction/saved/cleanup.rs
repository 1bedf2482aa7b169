//! Removal of records and of files of saved transactions (format §8).
//!
//! Invariants:
//! - A saved state is removed only while the latest tree has a record of its id. Otherwise a process could resume an
//!   older state and commit it, or begin another transaction with this id, whose states would have the same names.
//! - A record can be read as long as its key exists: a record file with a unique name is removed after its key. A
//!   record that is a saved state may be removed before its key, because the key alone shows that the id was committed.
//! - If the process dies, the next expiry removes the remaining files and records.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow_array::StringArray;
use bytes::Bytes;
use prost::Message as _;

use crate::error::{Error, Result};
use crate::file_names::{TRANSACTION_PREFIX, root_path, transaction_file, transaction_path};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::proto::{DistributedTransactionDef, DistributedTransactionState};
use crate::storage::{Place, Step, delete_all};
use crate::transaction::changes::NewValue;
use crate::transaction::commit::limits::CommitLimits;
use crate::transaction::footprint::Requirement;
use crate::transaction::handle::Transaction;
use crate::transaction::options::Note;
use crate::transaction::saved::list::{SavedWalk, after_files_of};
use crate::transaction::saved::transaction_record::{ABANDONED_PROPERTY, FIRST_RECORD_SEQUENCE, record_keys, rows};
use crate::tree::search::get_many;
use crate::version::store_clock::StoreTime;

/// Commit message of the versions in which expiry removes the records of ids.
pub const FORGET_MESSAGE: &str = "forget expired transaction ids";

/// Maximum number of records that one version removes from the tree.
const FORGOTTEN_AT_ONCE: usize = 1000;

/// Commit message of the versions in which expiry aborts saved transactions that can no longer be resumed.
pub const ABANDON_MESSAGE: &str = "roll back expired transactions";

impl Transaction {
    /// Removes the saved states before `sequence` in the background. States that remain are removed with the record.
    pub(crate) async fn remove_states_before(&self, sequence: u64) {
        if sequence <= 1 {
            return;
        }
        let (storage, id) = (self.lakehouse.storage().clone(), self.info.id.clone());
        let work = async move {
            let paths = (1..sequence).map(|sequence| transaction_path(&id, sequence)).collect();
            let _ = delete_all(storage.as_ref(), paths).await;
        };
        self.lakehouse.environment().background(Box::pin(work)).await;
    }
}

/// Whether the record is a file with a unique name, and not a saved state.
fn has_own_name(location: &str) -> bool {
    transaction_file(location).is_some_and(|(_, sequence)| sequence >= FIRST_RECORD_SEQUENCE)
}

/// Removes all saved states of transactions whose records are in the latest tree, in one walk through the files between
/// the first and the last id. A record file with a unique name remains.
pub(crate) async fn remove_states(lakehouse: &Lakehouse, records: &[(String, String)]) -> Result<()> {
    let kept: HashMap<&str, &str> =
        records.iter().filter_map(|(_, location)| Some((transaction_file(location)?.0, location.as_str()))).collect();
    let ids: BTreeSet<String> = kept.keys().map(|id| format!("{TRANSACTION_PREFIX}{id}/")).collect();
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(()) };
    let end = after_files_of(&last[TRANSACTION_PREFIX.len()..last.len() - 1]);
    let after = Some(first.trim_end_matches('/').to_string());
    let mut places = vec![Place { folder: TRANSACTION_PREFIX.to_string(), after }];
    while let Some(place) = places.pop() {
        let Step { files, places: rest } = lakehouse.storage().walk(&place).await?;
        places.extend(rest.into_iter().filter(|rest| match &rest.after {
            Some(after) => *after < end,
            None => ids.contains(&rest.folder),
        }));
        let paths = files.into_iter().map(|file| file.path).filter(|path| {
            let record = transaction_file(path).and_then(|(id, _)| kept.get(id));
            record.is_some_and(|record| !(record == path && has_own_name(path)))
        });
        delete_all(lakehouse.storage().as_ref(), paths.collect()).await?;
    }
    Ok(())
}

/// Removes records whose keys are no longer in the latest tree.
pub(crate) async fn remove_records(lakehouse: &Lakehouse, mut locations: Vec<String>) -> Result<()> {
    locations.retain(|location| has_own_name(location));
    delete_all(lakehouse.storage().as_ref(), locations).await
}

/// Aborts saved transactions that can no longer be resumed, because they are too old and their base version has
/// expired, and removes their states. Their records prevent every later commit. After a lost race, the next expiry
/// aborts the remaining transactions.
pub(crate) async fn abort_abandoned(
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
        match abort_all(lakehouse, &ids, note).await {
            Err(Error::CommitConflict { .. } | Error::TransactionExpired(_)) => return Ok(()),
            Ok(records) => remove_states(lakehouse, &records).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Commits a record of an abort for each id without a record. Returns the keys and locations of the new records.
pub(crate) async fn abort_all(
    lakehouse: &Arc<Lakehouse>,
    ids: &[String],
    note: &Note,
) -> Result<Vec<(String, String)>> {
    let latest = lakehouse.latest().await?;
    let names = latest.config.names;
    let mut aborted = Vec::with_capacity(ids.len());
    for id in ids {
        if latest.get(&names.transaction_key(id)?).await?.is_none() {
            aborted.push(id);
        }
    }
    let ids = aborted;
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

/// Removes the records of transactions that were committed before the retained version `oldest`: all records in its
/// tree, except the records that it wrote itself. After a lost race, the next expiry removes the remaining records.
pub(crate) async fn forget_before(lakehouse: &Arc<Lakehouse>, oldest: u64, note: &Note) -> Result<()> {
    let version = match lakehouse.version(oldest).await {
        // Another expiry has already moved the boundary further.
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

/// Removes the records that are unchanged in the latest tree. A record has changed if its id was used again. Removes
/// saved states first, then the keys, then the record files.
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

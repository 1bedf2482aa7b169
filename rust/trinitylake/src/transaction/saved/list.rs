//! Listing of saved transactions, in steps, because `_txn/` may have very many files.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, Result};
use crate::file_names::{TRANSACTION_PREFIX, root_version};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::proto::{DistributedTransactionDef, DistributedTransactionState as SavedState};
use crate::storage::{Place, Step};
use crate::transaction::options::Isolation;
use crate::transaction::saved::state_file::{
    lifetime_millis, log_properties, newest_sequence, read, restarted_from, saved_state,
};
use crate::tree::node_source::PARALLEL_REQUESTS;
use crate::version::Version;
use crate::version::store_clock::StoreTime;

/// A saved transaction that can be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTransaction {
    pub id: String,
    pub isolation: Isolation,
    pub message: String,
    pub author: String,
    pub properties: BTreeMap<String, String>,
    pub base_version: u64,
    pub began_at_millis: u64,
    pub expire_at_millis: u64,
    /// Number of saves.
    pub sequence: u64,
    /// No file of the transaction was written before this time of the store; 0 if unknown.
    pub files_since_millis: u64,
}

/// Returns the saved transactions that can be resumed, sorted by id. Their age is measured with the store's clock, or
/// with this machine's clock if the store is read-only.
pub async fn saved(lakehouse: &Arc<Lakehouse>) -> Result<Vec<SavedTransaction>> {
    let time = StoreTime::ask(lakehouse.storage().as_ref(), lakehouse.environment().as_ref()).await;
    let mut walk = SavedWalk::begin(lakehouse, time.ok()).await?;
    let mut found = Vec::new();
    while let Some(page) = walk.next().await? {
        found.extend(page.into_iter().filter(|one| one.is_resumable).map(|one| one.transaction));
    }
    found.sort_unstable_by(|left, right| left.id.cmp(&right.id));
    Ok(found)
}

/// A transaction without a record, and whether it can be resumed.
pub(crate) struct Unfinished {
    pub transaction: SavedTransaction,
    pub is_resumable: bool,
    /// Whether the first save of the transaction is older than its lifetime.
    pub is_over_age: bool,
}

/// Iterates over saved transactions without a record in the latest tree. A step takes a fixed number of list requests,
/// and at most two other requests for each of its files.
pub(crate) struct SavedWalk {
    lakehouse: Arc<Lakehouse>,
    latest: Arc<Version>,
    oldest: u64,
    /// Clock of the store to measure the age of transactions. If `None`, the clock of this machine is used.
    time: Option<StoreTime>,
    places: Vec<Place>,
}

impl SavedWalk {
    pub async fn begin(lakehouse: &Arc<Lakehouse>, time: Option<StoreTime>) -> Result<SavedWalk> {
        let latest = lakehouse.latest().await?;
        let oldest = lakehouse.oldest_version().await?;
        let places = vec![Place { folder: TRANSACTION_PREFIX.to_string(), after: None }];
        Ok(SavedWalk { lakehouse: lakehouse.clone(), latest, oldest, time, places })
    }

    /// Returns the transactions of the next step, which may be none; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Unfinished>>> {
        let Some(place) = self.places.pop() else { return Ok(None) };
        let Step { files, places } = self.lakehouse.storage().walk(&place).await?;
        // For each id, the number of the last save and the age of the first one.
        let mut newest: BTreeMap<String, (u64, Option<u64>)> = BTreeMap::new();
        for file in &files {
            if let Some((id, sequence)) = saved_state(&file.path) {
                let age_millis = self.time.map(|time| time.age_millis(file));
                let (highest, _) = newest.entry(id.to_string()).or_insert((sequence, age_millis));
                *highest = sequence.max(*highest);
            }
        }
        for mut rest in places {
            // A step may end between the files of one transaction. Its other files are skipped.
            if let Some((id, _)) = rest.after.as_deref().and_then(saved_state) {
                if let Some(sequence) = newest_sequence(&self.lakehouse, id).await? {
                    newest.entry(id.to_string()).and_modify(|(highest, _)| *highest = sequence);
                }
                rest.after = Some(after_files_of(id));
            }
            self.places.push(rest);
        }
        let now = self.lakehouse.environment().now_millis();
        let (lakehouse, latest, oldest) = (&self.lakehouse, &self.latest, self.oldest);
        let page: Vec<Option<Unfinished>> = stream::iter(newest)
            .map(|(id, (sequence, age_millis))| {
                let age = age_millis.map_or(Age::AtHost { now_millis: now }, Age::AtStore);
                unfinished(lakehouse.clone(), latest.clone(), oldest, age, id, sequence)
            })
            .buffered(PARALLEL_REQUESTS)
            .try_collect()
            .await?;
        Ok(Some(page.into_iter().flatten().collect()))
    }
}

/// Age of a saved transaction.
enum Age {
    /// Time since the transaction was first saved.
    AtStore(u64),
    AtHost {
        now_millis: u64,
    },
}

/// Reads a saved transaction. `None` if it has a record or was removed.
async fn unfinished(
    lakehouse: Arc<Lakehouse>,
    latest: Arc<Version>,
    oldest: u64,
    age: Age,
    id: String,
    sequence: u64,
) -> Result<Option<Unfinished>> {
    let record = match read(&lakehouse, &id, sequence).await {
        Err(Error::ObjectNotFound(_)) => return Ok(None),
        record => record?,
    };
    let recorded = latest.get(&latest.config.names.transaction_key(&id)?).await?;
    if recorded.is_some_and(|location| restarted_from(&record) != Some(&location)) {
        return Ok(None);
    }
    let is_over_age = match age {
        Age::AtStore(age_millis) => age_millis > lifetime_millis(&record),
        Age::AtHost { now_millis } => record.expire_at_millis < now_millis,
    };
    let base_version = root_version(&record.beginning_root);
    Ok(Some(Unfinished {
        is_resumable: is_alive(&record, false, is_over_age, oldest),
        is_over_age,
        transaction: SavedTransaction {
            isolation: Isolation::of_proto(record.isolation()),
            message: record.commit_message.clone(),
            author: record.author.clone(),
            properties: log_properties(&record),
            base_version: base_version.unwrap_or_default(),
            began_at_millis: record.began_at_millis,
            expire_at_millis: record.expire_at_millis,
            files_since_millis: record.files_since_millis,
            id,
            sequence,
        },
    }))
}

/// Whether a saved transaction can be resumed. While it can, its files must exist; afterwards they may be deleted.
///
/// # Arguments
///
/// * `has_record`: the latest tree has a record of its id.
/// * `is_over_age`: its first save is older than its lifetime.
/// * `oldest`: the oldest version that has not expired.
pub(crate) fn is_alive(saved: &DistributedTransactionDef, has_record: bool, is_over_age: bool, oldest: u64) -> bool {
    let is_base_kept = root_version(&saved.beginning_root).is_some_and(|base| base >= oldest);
    saved.state() == SavedState::Open && !has_record && !is_over_age && is_base_kept
}

/// Returns a name that sorts after all files of a transaction and before all files of the next one.
pub(crate) fn after_files_of(id: &str) -> String {
    // `0` is the character after `/`.
    format!("{TRANSACTION_PREFIX}{id}0")
}

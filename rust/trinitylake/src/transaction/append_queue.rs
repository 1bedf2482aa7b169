//! Append queue: appends of one process wait for a process that writes their rows together with its own (format §8).
//!
//! A process that lost a race for a table, and whose lakehouse uses the queue, stores the rows of its appends in a file
//! below `_queue/`, with the log entries of their transactions. The owner of the oldest file leads, as in the intent
//! queue: it takes the rows of all files, writes one data file, and commits one transaction with all these entries.
//! The layer above reads and writes the rows.
//!
//! Invariants:
//! - The appends of a file commit together or not at all. So the first of them decides the outcome of all, and an abort
//!   of any of them aborts all.
//! - No append is in two versions. Its file names the version up to which no version contains it, and a leader examines
//!   all later ones up to the base of its transaction. From there on the commit compares each version
//!   ([`Transaction::commit_with`]), also after a rebase. Two leaders of the same append both write the table, so
//!   the root of the second one would conflict with the version of the first one.
//! - The transaction of the owner has the id of its first append. If another process commits the append, the owner finds
//!   that id.
//! - From the moment when the file is sent, the outcome of its appends is unknown until a version contains them or their
//!   abort. The owner aborts them ([`QueuedAppends::withdraw`]) before it reports a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join_all};
use prost::Message as _;
use uuid::Uuid;

use super::commit::intent_queue::{
    self, Files, Patience, QUEUED_VERSIONS, Turn, of_log_entry, to_log_entry, wait_for_turn,
};
use super::commit::limits::{CommitLimits, VERSIONS_AT_ONCE};
use super::handle::Transaction;
use crate::definition_file::encode_file;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::proto::{self, CommitIntent, IntendedTransaction, TableDef};
use crate::lakehouse_definition::{MANIFEST_LIST, METADATA_LOCATION};
use crate::path::{is_in_queue, queued_appends_file, queued_appends_path};
use crate::storage::is_remote;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

/// Maximum size of the files that one leader takes: of all of them together, and without their rows.
const MAX_SIZE_BYTES: usize = 32 << 20;
const MAX_LOG_SIZE_BYTES: usize = 256 << 10;
/// [`Patience::requests`] of a leader that reads and writes rows in the meantime.
const PATIENCE_REQUESTS: u64 = 15;
/// On a fast store the rows take longer than the requests.
const MIN_REQUEST_MILLIS: u64 = 10;
/// Maximum wait of a leader for the processes of the last version, in requests: to notice the version, and to create
/// their next files.
const GATHER_REQUESTS: u64 = 3;
/// Number of looks for further files per duration of one request.
const LOOKS_PER_REQUEST: u64 = 8;

/// Appends to one table whose rows are in a file of the queue.
#[derive(Debug)]
pub struct QueuedAppends {
    pub(super) path: String,
    /// Key of the table.
    table: String,
    /// Their entries in the log of the version that commits them.
    pub(super) entries: Vec<CommittedTransaction>,
    /// No version up to this one contains them.
    validated: u64,
    /// The last version into which another process may put them.
    last_version: u64,
    log_size_bytes: usize,
    /// Duration of the request that created the file; `None` before that.
    request_millis: Option<u64>,
    /// After this time its owner leads, once. Set when it begins to wait.
    deadline_millis: Option<u64>,
    /// No transactions of other tables are in the queue.
    pub(super) is_alone: bool,
    files: Files,
    /// The rows as an Arrow IPC stream.
    pub rows: Bytes,
}

impl QueuedAppends {
    /// Appends of this process to the table with an id and a full name. `transactions` are their entries in the log, and
    /// have no writes.
    pub fn new(
        lakehouse: &Lakehouse,
        id: &str,
        table: (&str, &str),
        transactions: &mut [impl AsMut<Transaction>],
        rows: Bytes,
    ) -> Result<QueuedAppends> {
        let environment = lakehouse.environment();
        if let Some(one) = transactions.iter_mut().map(AsMut::as_mut).find(|one| one.saved.has_record) {
            let message =
                format!("transaction {} has a chosen id, so it cannot wait in the queue", one.info.id);
            return Err(Error::InvalidArgument(message));
        }
        let id = Uuid::parse_str(id)
            .map_err(|error| Error::InvalidArgument(format!("table id {id:?}: {error}")))?;
        let bases = transactions.iter_mut().map(|one| one.as_mut().base.number);
        let validated = bases.min().unwrap_or_default();
        let entries = transactions.iter_mut().map(|one| {
            let transaction = one.as_mut();
            CommittedTransaction { summary: transaction.summary(), ..transaction.info.clone() }
        });
        Ok(QueuedAppends {
            path: queued_appends_path(environment.now_millis(), environment.uuid(), id),
            table: lakehouse.known().config.names.table_key(table.0, table.1)?,
            entries: entries.collect(),
            validated,
            last_version: validated + QUEUED_VERSIONS,
            log_size_bytes: 0,
            request_millis: None,
            deadline_millis: None,
            is_alone: false,
            files: Files::new(),
            rows,
        })
    }

    /// Creates the file, if that is not done yet, and waits for the own turn. Returns the appends of others, whose rows
    /// the caller has to append with its own; `None` if a version contains the own ones, which are then committed.
    pub async fn wait(
        &mut self,
        lakehouse: &Lakehouse,
        transactions: &mut [impl AsMut<Transaction>],
    ) -> Result<Option<Vec<QueuedAppends>>> {
        let (publisher, environment) = (lakehouse.publisher(), lakehouse.environment());
        let now = environment.elapsed_millis();
        let deadline_millis =
            *self.deadline_millis.get_or_insert(now + CommitLimits::default().timeout_millis);
        if now >= deadline_millis {
            return Err(Error::conflict(
                "other processes changed the table first every time; try again".into(),
            ));
        }
        let request_millis = match self.request_millis {
            Some(millis) => millis,
            None => self.publish(lakehouse, transactions).await?,
        };
        let table = queued_appends_file(&self.path).map(|(_, _, table)| table);
        let others_wait = AtomicBool::new(false);
        let is_of_table = |path: &str| {
            let is_of_table = queued_appends_file(path).map(|(_, _, other)| other) == table;
            others_wait.fetch_or(!is_of_table && is_in_queue(path), Ordering::Relaxed);
            is_of_table
        };
        let is_committed =
            |version: &Version| self.entries.iter().all(|one| version.metadata.commits(&one.id));
        let patience = Patience {
            request_millis: request_millis.max(MIN_REQUEST_MILLIS),
            requests: PATIENCE_REQUESTS,
            deadline_millis,
        };
        let mut gathers_until = None;
        let version = loop {
            let files = &mut self.files;
            let turn = wait_for_turn(
                publisher,
                &self.path,
                self.validated,
                patience,
                files,
                is_of_table,
                is_committed,
            );
            let (turn, looked) = join(turn, lakehouse.latest()).await;
            let paths = match turn? {
                Turn::Committed(version) => break version,
                Turn::First(paths) => paths,
            };
            looked?;
            let latest = lakehouse.known();
            if gathers_until.is_none() {
                self.prefetch(lakehouse, latest.clone()).await;
            }
            let now = environment.elapsed_millis();
            if now < *gathers_until.get_or_insert(now + GATHER_REQUESTS * request_millis)
                && self.misses_some(&latest, &paths)
            {
                let pause_millis = request_millis.div_ceil(LOOKS_PER_REQUEST);
                environment.sleep(Duration::from_millis(pause_millis)).await;
                continue;
            }
            self.is_alone = !others_wait.load(Ordering::Relaxed);
            match self.find(lakehouse, &latest).await? {
                Some(version) if version.metadata.commits(&self.entries[0].id) => break version.number,
                Some(_) => return Err(Error::conflict("another process rolled the appends back".into())),
                None => {
                    let files = &mut self.files;
                    let others = paths.into_iter().filter_map(|path| Some((files.remove(&path)??, path)));
                    let others = others.filter_map(QueuedAppends::of_intent).collect();
                    return Ok(Some(QueuedAppends::waiting(lakehouse, &latest, others).await));
                }
            }
        };
        for transaction in transactions {
            transaction.as_mut().state.committed(version);
        }
        lakehouse.commits().set_contended();
        intent_queue::clear(publisher, vec![self.path.clone()]).await;
        Ok(None)
    }

    /// Whether fewer appends are in the queue than can be expected: those of the latest version, whose callers usually
    /// append again, and those that were already in the queue when it was created. Otherwise processes split into two
    /// halves that alternate.
    fn misses_some(&self, latest: &Version, paths: &[String]) -> bool {
        let group = &latest.metadata.committed;
        let changes = latest.recorded_changes();
        let appends = changes.is_some_and(|changes| changes.iter().any(|change| change.key == self.table));
        if !appends || group.len() == 1 {
            return false;
        }
        let of_others = paths.iter().filter_map(|path| self.files.get(path)?.as_ref());
        let of_others = of_others.flat_map(|file| &file.transactions).map(|one| {
            let base = one.footprint.as_ref().map_or(0, |footprint| footprint.base_version);
            (one.id.as_str(), base)
        });
        let own = self.entries.iter().map(|entry| (entry.id.as_str(), entry.began_at_version));
        let waiting = own.chain(of_others).filter(|(id, _)| !latest.metadata.commits(id));
        waiting.filter(|(_, base)| *base >= latest.number).count() < group.len()
    }

    /// Fetches what the transaction of a leader reads into the caches, while the leader waits for others.
    async fn prefetch(&self, lakehouse: &Lakehouse, latest: Arc<Version>) {
        let (storage, key) = (lakehouse.storage().clone(), self.table.clone());
        let work = async move {
            let Ok(Some(location)) = latest.get(&key).await else { return };
            let Ok(definition) = latest.read_definition(&location).await else { return };
            let Ok(table) = TableDef::decode(definition) else { return };
            let paths = [METADATA_LOCATION, MANIFEST_LIST].into_iter();
            join_all(paths.filter_map(|name| Some(storage.get(table.format_properties.get(name)?)))).await;
        };
        if is_remote(lakehouse.storage().as_ref()) {
            lakehouse.environment().background(Box::pin(work)).await;
        }
    }

    /// Creates the file. The outcome of the appends is unknown from now on. Returns the duration of the request.
    async fn publish(
        &mut self,
        lakehouse: &Lakehouse,
        transactions: &mut [impl AsMut<Transaction>],
    ) -> Result<u64> {
        for transaction in transactions {
            let state = &mut transaction.as_mut().state;
            state.begin_commit()?;
            state.sending(Some(self.last_version));
        }
        let transactions = self.entries.iter().map(|entry| {
            let footprint = proto::Footprint {
                base_version: entry.began_at_version,
                validated_version: self.validated,
                ..Default::default()
            };
            let last_version = self.last_version;
            IntendedTransaction { footprint: Some(footprint), last_version, ..to_log_entry(entry) }
        });
        let intent = CommitIntent { transactions: transactions.collect(), rows: self.rows.to_vec() };
        let file = encode_file(&self.path, &intent.encode_to_vec());
        let environment = lakehouse.environment();
        let started = environment.elapsed_millis();
        // The name is unique: a file that exists is this one, after a repeated request.
        lakehouse.storage().put_if_absent(&self.path, file).await?;
        Ok(*self.request_millis.insert(environment.elapsed_millis() - started + 1))
    }

    fn of_intent((mut intent, path): (CommitIntent, String)) -> Option<QueuedAppends> {
        let rows = Bytes::from(std::mem::take(&mut intent.rows));
        let log_size_bytes = intent.encoded_len();
        let footprints = intent.transactions.iter().filter_map(|one| one.footprint.as_ref());
        let validated = footprints.map(|footprint| footprint.validated_version).min()?;
        let last_version = intent.transactions.iter().map(|one| one.last_version).min()?;
        let entries = intent.transactions.into_iter().map(of_log_entry).collect();
        Some(QueuedAppends {
            path,
            table: String::new(),
            entries,
            validated,
            last_version,
            log_size_bytes,
            request_millis: None,
            deadline_millis: None,
            is_alone: false,
            files: Files::new(),
            rows,
        })
    }

    /// Those of the given files that wait for a leader, up to the size limit. Deletes files whose appends are settled.
    async fn waiting(
        lakehouse: &Lakehouse,
        latest: &Version,
        files: Vec<QueuedAppends>,
    ) -> Vec<QueuedAppends> {
        let (mut waiting, mut done) = (Vec::new(), Vec::new());
        let (mut size_bytes, mut log_size_bytes) = (0, 0);
        let found =
            join_all(files.into_iter().map(async |mut file| (file.find(lakehouse, latest).await, file)));
        for (found, file) in found.await {
            match found {
                _ if file.last_version <= latest.number => done.push(file.path),
                Ok(None) => {
                    size_bytes += file.rows.len();
                    log_size_bytes += file.log_size_bytes;
                    if size_bytes <= MAX_SIZE_BYTES && log_size_bytes <= MAX_LOG_SIZE_BYTES {
                        waiting.push(file);
                    }
                }
                Ok(Some(_)) => done.push(file.path),
                // It is unknown whether an expired version contains them. Their owner examines each version in time.
                Err(_) => {}
            }
        }
        intent_queue::clear(lakehouse.publisher(), done).await;
        waiting
    }

    /// The version up to `latest` that contains the appends or an abort of them.
    pub(super) async fn find(
        &mut self,
        lakehouse: &Lakehouse,
        latest: &Version,
    ) -> Result<Option<Arc<Version>>> {
        while self.validated < latest.number {
            let from = self.validated + 1;
            let to = latest.number.min(from + VERSIONS_AT_ONCE - 1);
            for version in lakehouse.versions(from, to, &lakehouse.known()).await? {
                let metadata = &version.metadata;
                let is_settled = |id: &str| metadata.commits(id) || metadata.gives_up(id);
                if self.entries.iter().any(|entry| is_settled(&entry.id)) {
                    return Ok(Some(version));
                }
            }
            self.validated = to;
        }
        Ok(None)
    }

    /// Deletes the file of appends of another process that the caller cannot append: their owner commits them.
    pub async fn refuse(&self, lakehouse: &Lakehouse) {
        intent_queue::clear(lakehouse.publisher(), vec![self.path.clone()]).await;
    }

    /// Aborts the appends, so that no process can commit them. Returns the version if one contains them.
    /// `CommitStateUnknown` if they cannot be aborted: other processes may still commit them.
    pub async fn withdraw(transactions: &mut [impl AsMut<Transaction>]) -> Result<Option<u64>> {
        let Some((first, rest)) = transactions.split_first_mut() else { return Ok(None) };
        let first = first.as_mut();
        let outcome = first.rollback().await;
        let version = first.committed_version();
        if version.is_none() {
            outcome.map_err(|error| match error {
                error @ Error::CommitStateUnknown(_) => error,
                error => Error::CommitStateUnknown(format!(
                    "another process may still append the rows of transaction {} from the queue, because they cannot \
                     be withdrawn: {error}",
                    first.info.id
                )),
            })?;
        }
        for transaction in rest {
            match version {
                Some(version) => transaction.as_mut().state.committed(version),
                None => transaction.as_mut().state.rolled_back(),
            }
        }
        Ok(version)
    }
}

//! Append queue: appends of one process wait for a process that writes their rows together with its own (format §8).
//!
//! A process that lost a race for a table, and whose lakehouse uses the queue, stores the rows of its appends in an
//! intent (`intent_queue`). The leader takes the rows of all intents for the table, writes one data file, and commits
//! one transaction with the log entries of all appends. The layer above reads and writes the rows.
//!
//! Invariants:
//! - The appends of an intent commit together or not at all. So the first append decides the outcome of all, and the
//!   abort of any append aborts all.
//! - No append is in two versions. An intent names a version up to which no version contains its appends. A leader
//!   searches all later versions up to the base of its transaction; its commit searches the following ones
//!   ([`Transaction::commit_with`]), also after a rebase. Two leaders of the same append both write the table, so the
//!   second one has a conflict with the version of the first one.
//! - The transaction of an owner has the id of its first append. If another process commits the append, the owner finds
//!   that id in the log.
//! - From the moment when an intent is sent, the outcome of its appends is unknown until a version contains or aborts
//!   them. The owner aborts them ([`QueuedAppends::withdraw`]) before it reports a failure.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use prost::Message as _;
use uuid::Uuid;

use super::commit::intent_queue::{Intent, Place, QUEUED_VERSIONS, Turn, clear, of_log_entry, to_log_entry};
use super::commit::limits::CommitLimits;
use super::handle::Transaction;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::proto::{self, IntendedTransaction, TableDef};
use crate::lakehouse_definition::{MANIFEST_LIST, METADATA_LOCATION};
use crate::storage::is_remote;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

/// Maximum total size of the intents that one leader takes: of their rows, and of their log entries.
const MAX_SIZE_BYTES: usize = 32 << 20;
const MAX_LOG_SIZE_BYTES: usize = 256 << 10;
/// Longest time that a leader waits for new intents, in durations of one request. It waits only for processes whose
/// appends are in the latest version: they have to notice that version before they write their next intents.
const GATHER_REQUESTS: u64 = 3;
/// Number of polls for further intents per duration of one request.
const LOOKS_PER_REQUEST: u64 = 8;

/// Appends of this process to one table, with their rows in an intent.
#[derive(Debug)]
pub struct QueuedAppends {
    place: Place,
    /// Key of the table.
    table: String,
    /// Time after which this process no longer waits for other processes.
    deadline_millis: u64,
    /// Intents of other processes whose rows the caller appends as well.
    others: Vec<Intent>,
}

impl QueuedAppends {
    /// Creates appends to the table with this id and this (namespace, name). `transactions` provide the log entries of
    /// the appends, and have no writes.
    pub fn new(
        lakehouse: &Lakehouse,
        id: &str,
        table: (&str, &str),
        transactions: &mut [impl AsMut<Transaction>],
        rows: Bytes,
    ) -> Result<QueuedAppends> {
        let environment = lakehouse.environment();
        if let Some(one) = transactions.iter_mut().map(AsMut::as_mut).find(|one| one.saved.has_record) {
            let message = format!("transaction {} has a chosen id, so it cannot wait in the queue", one.info.id);
            return Err(Error::InvalidArgument(message));
        }
        let id = Uuid::parse_str(id).map_err(|error| Error::InvalidArgument(format!("table id {id:?}: {error}")))?;
        let bases = transactions.iter_mut().map(|one| one.as_mut().base.number);
        let validated_version = bases.min().unwrap_or_default();
        let entries = transactions.iter_mut().map(|one| {
            let transaction = one.as_mut();
            let base_version = transaction.info.began_at_version;
            let footprint = proto::Footprint { base_version, validated_version, ..Default::default() };
            let entry = CommittedTransaction { summary: transaction.summary(), ..transaction.info.clone() };
            IntendedTransaction {
                footprint: Some(footprint),
                last_version: validated_version + QUEUED_VERSIONS,
                ..to_log_entry(&entry)
            }
        });
        let path = lakehouse.commits().intent_path(environment.as_ref(), Some(id));
        let intent = Intent::of(path, entries.collect(), rows);
        Ok(QueuedAppends {
            place: Place::new(intent),
            table: lakehouse.known().config.names.table_key(table.0, table.1)?,
            deadline_millis: environment.elapsed_millis() + CommitLimits::default().timeout_millis,
            others: Vec::new(),
        })
    }

    /// Creates the intent, if that is not done yet, and waits until this process leads or the appends are committed.
    /// Returns true if the caller has to append its rows together with [`QueuedAppends::rows_of_others`], and false if
    /// its appends are committed.
    pub async fn wait(&mut self, lakehouse: &Lakehouse, transactions: &mut [impl AsMut<Transaction>]) -> Result<bool> {
        let (publisher, environment) = (lakehouse.publisher(), lakehouse.environment());
        if environment.elapsed_millis() >= self.deadline_millis {
            return Err(Error::conflict("other processes changed the table first every time; try again".into()));
        }
        if self.place.request_millis.is_none() {
            // From now on the outcome is unknown.
            for transaction in transactions.iter_mut() {
                let state = &mut transaction.as_mut().state;
                state.begin_commit()?;
                state.sending(self.place.intent.transactions.first().map(|one| one.last_version));
            }
        }
        let mut gathers_until = None;
        let version = loop {
            let paths = match self.place.wait(publisher, self.deadline_millis).await? {
                Turn::Lead(paths) => paths,
                Turn::Settled(version) => break version,
            };
            let latest = lakehouse.known();
            if gathers_until.is_none() {
                self.prefetch(lakehouse, latest.clone()).await;
            }
            let (now, request_millis) = (environment.elapsed_millis(), self.place.request_millis.unwrap_or(1));
            if now >= *gathers_until.get_or_insert(now + GATHER_REQUESTS * request_millis)
                || !self.misses_some(&latest, &paths)
            {
                self.take(&paths);
                return Ok(true);
            }
            environment.sleep(Duration::from_millis(request_millis.div_ceil(LOOKS_PER_REQUEST))).await;
        };
        clear(publisher, vec![self.place.intent.path.clone()]).await;
        if !self.own().all(|one| version.metadata.commits(&one.id)) {
            return Err(Error::conflict("another process rolled the appends back".into()));
        }
        for transaction in transactions {
            transaction.as_mut().state.committed(version.number);
        }
        lakehouse.commits().set_contended();
        Ok(false)
    }

    fn own(&self) -> impl Iterator<Item = &IntendedTransaction> {
        self.place.intent.transactions.iter()
    }

    /// Takes the first intents of `paths`, up to the size limits.
    fn take(&mut self, paths: &[String]) {
        let (mut size_bytes, mut log_size_bytes) = (0, 0);
        let fits = |intent: &Intent| {
            size_bytes += intent.rows.len();
            log_size_bytes += intent.transactions.iter().map(prost::Message::encoded_len).sum::<usize>();
            size_bytes <= MAX_SIZE_BYTES && log_size_bytes <= MAX_LOG_SIZE_BYTES
        };
        let others = paths.iter().filter_map(|path| self.place.take(path)).filter(|intent| !intent.is_turn());
        self.others = others.take_while(fits).collect();
    }

    /// Whether the queue holds fewer new appends than the latest version contains. Then the leader waits, because the
    /// callers of the committed appends usually append again at once. Otherwise the processes would split into two
    /// halves that commit alternately. An append is new if it began at the latest version.
    fn misses_some(&self, latest: &Version, paths: &[String]) -> bool {
        let group = &latest.metadata.committed;
        let changes = latest.recorded_changes();
        let appends = changes.is_some_and(|changes| changes.iter().any(|change| change.key == self.table));
        if !appends {
            return false;
        }
        let others = paths.iter().filter_map(|path| self.place.read(path));
        let waiting = self.own().chain(others.flat_map(|intent| &intent.transactions));
        let base = |one: &IntendedTransaction| one.footprint.as_ref().map_or(0, |saved| saved.base_version);
        waiting.filter(|one| base(one) >= latest.number).count() < group.len()
    }

    /// Fills the caches with the files that the leader's transaction will read, while the leader waits for others.
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

    /// Returns the rows of other processes that the caller has to append, as Arrow IPC streams.
    pub fn rows_of_others(&self) -> impl Iterator<Item = &Bytes> {
        self.others.iter().map(|intent| &intent.rows)
    }

    /// Removes some of [`QueuedAppends::rows_of_others`], which the caller cannot append, and deletes their intents.
    /// Their owners then append them.
    pub async fn refuse(&mut self, lakehouse: &Lakehouse, positions: &[usize]) {
        let refused = positions.iter().filter_map(|position| self.others.get(*position));
        let refused: Vec<String> = refused.map(|intent| intent.path.clone()).collect();
        self.others.retain(|intent| !refused.contains(&intent.path));
        clear(lakehouse.publisher(), refused).await;
    }

    /// Returns `CommitConflict` if a version up to `base` contains or aborts appends of this process or of others.
    pub(super) async fn check_waiting(&mut self, lakehouse: &Lakehouse, base: &Arc<Version>) -> Result<()> {
        for intent in std::iter::once(&mut self.place.intent).chain(&mut self.others) {
            if let Some(version) = intent.settled_by(lakehouse.publisher(), base).await? {
                let number = version.number;
                return Err(Error::conflict(format!("version {number} contains appends of {}", intent.path)));
            }
        }
        Ok(())
    }

    /// Returns the log entries of the appends of other processes.
    pub(super) fn entries_of_others(&self) -> impl Iterator<Item = CommittedTransaction> {
        self.others.iter().flat_map(|intent| intent.transactions.iter().cloned().map(of_log_entry))
    }

    pub(super) fn paths(&self) -> Vec<String> {
        std::iter::once(&self.place.intent).chain(&self.others).map(|intent| intent.path.clone()).collect()
    }

    /// Whether all waiting intents are for this table.
    pub(super) fn is_alone(&self) -> bool {
        self.place.is_alone
    }

    /// Aborts the appends, so that no process can commit them. If a version contains them already, returns its number.
    /// `CommitStateUnknown` if they cannot be aborted, so that other processes may still commit them.
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

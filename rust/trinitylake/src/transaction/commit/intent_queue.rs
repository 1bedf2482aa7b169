//! Intent queue: after a lost race, transactions of several processes wait in a queue, and one of the processes commits
//! them together (format §8).
//!
//! An intent is a file below `_queue/` with the log entries of transactions, and with all data that another process
//! needs to commit them. There are three types. The first type has one queue; the other two share one queue per table:
//!
//! - The transactions of a group, with their footprints and writes; their definitions are durable. The leader puts
//!   these transactions into its root (`group`).
//! - Appends to one table, with their rows; the id of the table is in the path. The leader adds all these rows to its
//!   own transaction (`append_queue`), which then commits as usual, and joins the first queue if intents wait in it.
//! - A turn (`turn`), which announces a transaction that changes a table in another way. It has no rows and no writes,
//!   so only its owner can commit the transaction. The owners of younger intents for the table wait for it.
//!
//! There is no elected leader and no lock: the owner of the oldest intent leads, and an owner that has waited too long
//! for another leader becomes a leader, too. As in every commit, only the creation of the root decides. Two leaders at
//! the same time cost additional requests and do no harm. If a leader dies, the next leader finds the intents.
//!
//! Invariants:
//! - No transaction is in two roots. A transaction of a group writes at least one key, so it conflicts with the version
//!   that contains it, and no later version admits it. A transaction whose owner has found a conflict is not admitted
//!   either, for the same reason. For appends see `append_queue`.
//! - No version after the `last_version` of an intent contains it. Its owner can therefore abort safely after that
//!   version; until then the outcome is unknown.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join_all};
use prost::Message as _;

use crate::config::Coordination;
use crate::definition_file::{decode_file, encode_file, is_intact_copy};
use crate::error::Result;
use crate::file_names::{INTENT_PREFIX, intent_file};
use crate::lakehouse_definition::proto::{self, CommitIntent, IntendedTransaction};
use crate::node::mutable_node::{Message, Text};
use crate::transaction::commit::limits::VERSIONS_AT_ONCE;
use crate::transaction::commit::submission::Submission;
use crate::transaction::footprint::Footprint;
use crate::transaction::options::Isolation;
use crate::version::Version;
use crate::version::publisher::Publisher;
use crate::version::root_metadata::CommittedTransaction;
use crate::version::summary_format::Summary;

/// Number of versions for which other processes may commit a queued transaction.
pub(crate) const QUEUED_VERSIONS: u64 = 64;
/// Maximum number of intents that one leader reads, in parallel.
const MAX_INTENTS: usize = 256;
/// Number of polls for the version of another leader per duration of one request.
const LOOKS_PER_REQUEST: u64 = 2;
/// Number of sequential requests that a leader needs, with some margin. The leader of a table writes rows before it
/// creates a root.
const PATIENCE_REQUESTS: u64 = 5;
const PATIENCE_REQUESTS_FOR_TABLE: u64 = 15;
/// Minimum duration to assume for a request if rows are written, because that takes longer than a request to a fast
/// store.
const MIN_REQUEST_MILLIS_FOR_TABLE: u64 = 10;

/// A file of the queue.
#[derive(Debug)]
pub(crate) struct Intent {
    pub path: String,
    pub transactions: Vec<IntendedTransaction>,
    /// Rows of appends as an Arrow IPC stream.
    pub rows: Bytes,
    /// No version up to this number contains or aborts one of the transactions.
    validated: u64,
}

impl Intent {
    /// Whether the intent is a turn, which only its owner can commit.
    pub fn is_turn(&self) -> bool {
        let has_table = || intent_file(&self.path).is_some_and(|(.., table)| table.is_some());
        self.rows.is_empty() && has_table()
    }

    pub fn of(path: String, transactions: Vec<IntendedTransaction>, rows: Bytes) -> Intent {
        let footprints = transactions.iter().filter_map(|one| one.footprint.as_ref());
        let validated = footprints.map(|footprint| footprint.validated_version).min().unwrap_or_default();
        Intent { path, transactions, rows, validated }
    }

    fn encode(&self) -> Bytes {
        let intent = CommitIntent { transactions: self.transactions.clone(), rows: self.rows.to_vec() };
        encode_file(&self.path, &intent.encode_to_vec())
    }

    /// Returns `None` for a damaged file or a newer format. Only the owner of such an intent can commit its
    /// transactions.
    fn decode(path: &str, file: &Bytes) -> Option<Intent> {
        if !is_intact_copy(path, file) {
            return None;
        }
        let intent = CommitIntent::decode(decode_file(path, file).ok()?).ok()?;
        let has_table = intent_file(path)?.2.is_some();
        let has_changes = |footprint: &proto::Footprint| !footprint.writes.is_empty() || has_table;
        let is_complete = |one: &IntendedTransaction| one.footprint.as_ref().is_some_and(has_changes);
        let is_complete = intent.transactions.iter().all(is_complete);
        is_complete.then(|| Intent::of(path.into(), intent.transactions, intent.rows.into()))
    }

    /// Returns the first version up to `latest` that contains or aborts one of the transactions.
    pub async fn settled_by(&mut self, publisher: &Publisher, latest: &Arc<Version>) -> Result<Option<Arc<Version>>> {
        while self.validated < latest.number {
            let to = latest.number.min(self.validated + VERSIONS_AT_ONCE);
            for version in publisher.versions(self.validated + 1, to, latest).await? {
                let metadata = &version.metadata;
                let is_settled = |id: &str| metadata.commits(id) || metadata.gives_up(id);
                if self.transactions.iter().any(|one| is_settled(&one.id)) {
                    return Ok(Some(version));
                }
            }
            self.validated = to;
        }
        Ok(None)
    }

    /// Whether no process can commit the intent any more: a version up to `latest` contains or aborts one of its
    /// transactions, or no later version may contain any of them.
    async fn is_over(&mut self, publisher: &Publisher, latest: &Arc<Version>) -> Result<bool> {
        let last_version = self.transactions.iter().map(|one| one.last_version).max().unwrap_or_default();
        Ok(last_version <= latest.number || self.settled_by(publisher, latest).await?.is_some())
    }
}

/// Result of [`Place::wait`].
pub(crate) enum Turn {
    /// Commit together with the intents of other processes at these paths; [`Place::take`] returns each of them.
    Lead(Vec<String>),
    /// This version contains or aborts a transaction of the own intent.
    Settled(Arc<Version>),
}

/// An intent of this process, and its place in the queue.
#[derive(Debug)]
pub(crate) struct Place {
    pub intent: Intent,
    /// Duration of the request that created the file; `None` before that.
    pub request_millis: Option<u64>,
    /// Whether all waiting intents are in the same queue as this one. Known after [`Place::wait`].
    pub is_alone: bool,
    /// Intents of other processes that were read, by path; `None` for a damaged one.
    files: HashMap<String, Option<Intent>>,
}

impl Place {
    pub fn new(intent: Intent) -> Place {
        Place { intent, request_millis: None, is_alone: false, files: HashMap::new() }
    }

    /// Creates the file of the intent, unless that is done. Waits until the intent is committed or aborted, or until it
    /// is the oldest one; intents whose owners have died or are slow do not count. Stops waiting if no new version
    /// appears for too long.
    pub async fn wait(&mut self, publisher: &Publisher, deadline_millis: u64) -> Result<Turn> {
        let (storage, environment) = (publisher.storage().as_ref(), publisher.environment().as_ref());
        if self.request_millis.is_none() {
            let started = environment.elapsed_millis();
            // The name is unique, so an existing file is this intent, which an earlier attempt of the request created.
            storage.put_if_absent(&self.intent.path, self.intent.encode()).await?;
            self.request_millis = Some(environment.elapsed_millis() - started + 1);
        }
        let table = |path: &str| intent_file(path).and_then(|(.., table)| table);
        let own_table = table(&self.intent.path);
        let (requests, min_request_millis) = match own_table {
            None => (PATIENCE_REQUESTS, 1),
            Some(_) => (PATIENCE_REQUESTS_FOR_TABLE, MIN_REQUEST_MILLIS_FOR_TABLE),
        };
        let request_millis = self.request_millis.unwrap_or(1).max(min_request_millis);
        let patience_millis = request_millis * requests;
        let ends = || {
            let ends = environment.elapsed_millis() + patience_millis + environment.random_below(patience_millis);
            ends.min(deadline_millis)
        };
        let mut patience_ends = ends();
        // Older intents for which this one no longer waits.
        let mut passed: HashSet<String> = HashSet::new();
        let mut turn = String::new();
        loop {
            let (listed, latest) = join(storage.list(INTENT_PREFIX), publisher.latest()).await;
            let (mut listed, latest) = (listed?, latest?);
            listed.retain(|file| file.path != self.intent.path && intent_file(&file.path).is_some());
            let waiting = listed.len();
            listed.retain(|file| table(&file.path) == own_table);
            self.is_alone = listed.len() == waiting;
            let max_size_bytes = publisher.known().config.node_max_size_bytes as u64;
            listed.retain(|file| file.size_bytes <= max_size_bytes);
            let mut paths: Vec<String> = listed.into_iter().map(|file| file.path).collect();
            paths.truncate(MAX_INTENTS);
            let may_wait = environment.elapsed_millis() < patience_ends;
            let is_older = |path: &&String| **path < self.intent.path && !passed.contains(*path);
            let older = paths.iter().filter(|path| may_wait && is_older(path)).cloned().collect();
            let Some(leader) = self.waiting(publisher, &latest, older).await.into_iter().next() else {
                let settled = self.intent.settled_by(publisher, &latest).await?;
                return Ok(match settled {
                    Some(version) => Turn::Settled(version),
                    None => Turn::Lead(self.waiting(publisher, &latest, paths).await),
                });
            };
            let is_turn = self.read(&leader).is_some_and(Intent::is_turn);
            if is_turn && turn != leader {
                turn.clone_from(&leader);
                patience_ends = ends();
            }
            while publisher.known().number <= latest.number && environment.elapsed_millis() < patience_ends {
                environment.sleep(Duration::from_millis(request_millis.div_ceil(LOOKS_PER_REQUEST))).await;
                publisher.latest().await?;
            }
            if let Some(version) = self.intent.settled_by(publisher, &publisher.known()).await? {
                return Ok(Turn::Settled(version));
            }
            if !is_turn {
                if publisher.known().number > latest.number {
                    patience_ends = ends();
                }
                passed.insert(leader);
            } else if environment.elapsed_millis() >= patience_ends {
                // The owner of the turn may have died. If it lives, it commits without its turn.
                clear(publisher, vec![leader]).await;
            }
        }
    }

    /// Returns the intents among `paths` that still wait for a leader, sorted by path. Deletes intents that are
    /// damaged, committed, aborted, or past their last version.
    async fn waiting(&mut self, publisher: &Publisher, latest: &Arc<Version>, paths: Vec<String>) -> Vec<String> {
        let new = paths.iter().filter(|path| !self.files.contains_key(*path));
        // A file that cannot be read is not added.
        let read = async |path: &String| {
            let file = publisher.storage().get(path).await.ok()?;
            Some((path.clone(), Intent::decode(path, &file)))
        };
        let read = join_all(new.map(read)).await;
        self.files.extend(read.into_iter().flatten());
        let files = self.files.iter_mut().filter(|(path, _)| paths.contains(path));
        let states = join_all(files.map(async |(path, intent)| match intent {
            Some(intent) => (path.clone(), intent.is_over(publisher, latest).await),
            None => (path.clone(), Ok(true)),
        }));
        let (mut waiting, mut over) = (Vec::new(), Vec::new());
        for (path, is_over) in states.await {
            match is_over {
                Ok(false) => waiting.push(path),
                Ok(true) => over.push(path),
                // A version that may contain the intent cannot be read, usually because it has expired. So the intent
                // is neither committed nor deleted.
                Err(_) => {}
            }
        }
        waiting.sort();
        clear(publisher, over).await;
        waiting
    }

    /// Returns an intent of another process that [`Place::wait`] has read.
    pub fn read(&self, path: &str) -> Option<&Intent> {
        self.files.get(path)?.as_ref()
    }

    /// Removes and returns an intent of another process, so that the caller can commit it.
    pub fn take(&mut self, path: &str) -> Option<Intent> {
        self.files.remove(path)?
    }
}

/// Result of waiting in the queue.
pub(crate) enum Waited {
    Lead(Intents),
    /// A version contains or aborts queued members of the group.
    Served,
}

/// The own intent of a leader, and the intents of other processes that it may commit.
#[derive(Default)]
pub(crate) struct Intents {
    own: Option<String>,
    others: Vec<Intent>,
}

/// Waits in the queue until the group may create a root. Groups without a queued member do not wait. If a request to
/// the store fails, the group continues without transactions of other processes.
pub(crate) async fn wait_in_queue(
    publisher: &Publisher,
    path: String,
    group: &[Submission],
    deadline_millis: u64,
) -> Waited {
    let waiting = group.iter().filter(|member| member.last_version.is_some() && member.is_complete());
    let waiting: Vec<IntendedTransaction> = waiting.map(to_intended).collect();
    if waiting.is_empty() {
        return Waited::Lead(Intents::default());
    }
    let mut place = Place::new(Intent::of(path, waiting, Bytes::new()));
    match place.wait(publisher, deadline_millis).await {
        Ok(Turn::Settled(_)) => {
            clear(publisher, vec![place.intent.path]).await;
            Waited::Served
        }
        Ok(Turn::Lead(others)) => {
            let others = others.iter().filter_map(|path| place.take(path)).collect();
            Waited::Lead(Intents { own: Some(place.intent.path), others })
        }
        Err(_) => Waited::Lead(Intents::default()),
    }
}

/// Returns the paths of all intents if a member of the group uses the queue. The request runs while the root is
/// created, so that a writer that wins every race still notices the waiting processes.
pub(crate) async fn waiting_intents(publisher: &Publisher, group: &[Submission]) -> Vec<String> {
    if group.iter().all(|member| member.coordination != Coordination::Queue) {
        return Vec::new();
    }
    let listed = publisher.storage().list(INTENT_PREFIX).await.unwrap_or_default();
    listed.into_iter().map(|file| file.path).filter(|path| intent_file(path).is_some()).collect()
}

impl Intents {
    /// Returns the transactions of other processes that may be in the version after `previous`, oldest intent first, up
    /// to `room_bytes`.
    pub(crate) fn guests(&self, previous: u64, room_bytes: usize) -> Vec<Submission> {
        let transactions = self.others.iter().flat_map(|intent| &intent.transactions);
        let may_come = transactions.filter(|one| one.last_version > previous);
        let mut size_bytes = 0;
        let fits = |guest: &Submission| {
            size_bytes += guest.size_bytes();
            size_bytes <= room_bytes
        };
        may_come.cloned().map(to_submission).take_while(fits).collect()
    }

    /// Deletes the intent of this group, and committed intents of other processes, because their owners may have died.
    pub(crate) async fn leave(self, publisher: &Publisher, is_committed: impl Fn(&str) -> bool) {
        let is_done = |intent: &Intent| intent.transactions.iter().all(|one| is_committed(&one.id));
        let done = self.others.into_iter().filter(is_done).map(|intent| intent.path);
        clear(publisher, self.own.into_iter().chain(done).collect()).await;
    }
}

/// Deletes intents in the background. If this fails, a later leader deletes them.
pub(crate) async fn clear(publisher: &Publisher, paths: Vec<String>) {
    if paths.is_empty() {
        return;
    }
    let storage = publisher.storage().clone();
    let work = async move {
        join_all(paths.iter().map(|path| storage.delete(path))).await;
    };
    publisher.environment().background(Box::pin(work)).await;
}

fn to_intended(member: &Submission) -> IntendedTransaction {
    IntendedTransaction {
        footprint: Some(to_footprint(member)),
        last_version: member.last_version.unwrap_or_default(),
        companions: member.companions.iter().map(to_log_entry).collect(),
        ..to_log_entry(&member.info)
    }
}

/// Encodes the log entry of a transaction, without the keys of its footprint.
pub(crate) fn to_log_entry(info: &CommittedTransaction) -> IntendedTransaction {
    let isolation = Isolation::parse(&info.isolation).unwrap_or_default();
    let footprint = proto::Footprint { base_version: info.began_at_version, ..Default::default() };
    IntendedTransaction {
        id: info.id.clone(),
        isolation: isolation.to_proto().into(),
        commit_message: info.message.clone(),
        author: info.author.clone(),
        properties: info.properties.clone(),
        footprint: Some(footprint),
        summary: info.summary.as_str().to_string(),
        ..Default::default()
    }
}

/// The inverse of [`to_log_entry`].
pub(crate) fn of_log_entry(entry: IntendedTransaction) -> CommittedTransaction {
    CommittedTransaction {
        isolation: Isolation::of_proto(entry.isolation()).word().into(),
        id: entry.id,
        message: entry.commit_message,
        author: entry.author,
        began_at_version: entry.footprint.map_or(0, |footprint| footprint.base_version),
        properties: entry.properties,
        summary: Summary::stored(entry.summary),
    }
}

/// Returns the footprint to store in an intent. Watched reads are stored as requirements, because the leader checks
/// both in the same way: whether a version wrote one of the keys.
fn to_footprint(member: &Submission) -> proto::Footprint {
    let mut footprint = member.footprint.to_proto();
    footprint.keys_required.append(&mut footprint.keys_watched);
    footprint.ranges_required_empty.append(&mut footprint.ranges_watched);
    proto::Footprint {
        base_version: member.info.began_at_version,
        validated_version: member.validated,
        writes: member.messages.iter().map(to_write).collect(),
        ..footprint
    }
}

fn to_write(message: &Message) -> proto::footprint::Write {
    proto::footprint::Write {
        key: message.key.to_string(),
        location: message.value.as_ref().map(|location| location.to_string()),
        ..Default::default()
    }
}

fn to_submission(mut intended: IntendedTransaction) -> Submission {
    let saved = intended.footprint.clone().unwrap_or_default();
    let companions = std::mem::take(&mut intended.companions);
    let txn: Text = intended.id.as_str().into();
    let messages = saved
        .writes
        .iter()
        .map(|write| Message::new(write.key.as_str().into(), write.location.as_deref().map(Into::into), txn.clone()));
    Submission {
        isolation: Isolation::of_proto(intended.isolation()),
        footprint: Arc::new(Footprint::of_proto(&saved)),
        messages: messages.collect(),
        companions: companions.into_iter().map(of_log_entry).collect(),
        coordination: Coordination::Queue,
        validated: saved.validated_version,
        last_version: Some(intended.last_version),
        info: of_log_entry(intended),
        ..Submission::default()
    }
}

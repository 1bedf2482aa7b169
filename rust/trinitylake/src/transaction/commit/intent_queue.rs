//! Intent queue: after a lost race, transactions of several processes wait in a queue, and one of the processes creates
//! one root for all of them (format §8).
//!
//! An intent is a file below `_queue/` with everything that a root has to record about a group of transactions, whose
//! definitions are durable. There is no elected leader and no lock: the owner of the oldest intent leads, and an owner
//! that has waited too long for another leader goes ahead alone. As in every commit, only the creation of the root
//! decides. Two leaders at the same time cost additional requests and do no harm. If a leader dies, the next leader
//! finds the intents.
//!
//! Invariants:
//! - No transaction is in two roots. It writes at least one key, so it conflicts with the version that contains it, and
//!   no later version admits it. For the same reason an intent whose owner has met a conflict is not admitted.
//! - No intent is put into a version after its `last_version`. Its owner can therefore abort safely after that version;
//!   until then the outcome is unknown.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use prost::Message as _;

use crate::config::Coordination;
use crate::definition_file::{decode_file, encode_file, is_intact_copy};
use crate::error::Result;
use crate::lakehouse_definition::proto::{self, CommitIntent, IntendedTransaction};
use crate::node::mutable_node::{Message, Text};
use crate::path::{INTENT_PREFIX, intent_file, intent_path, is_in_queue};
use crate::storage::{FileInfo, PutOutcome, Storage};
use crate::transaction::commit::submission::Submission;
use crate::transaction::footprint::Footprint;
use crate::transaction::options::Isolation;
use crate::version::Version;
use crate::version::log_summary::Summary;
use crate::version::publisher::Publisher;
use crate::version::root_metadata::CommittedTransaction;

/// Number of versions for which other processes may put a queued transaction into a root.
pub(crate) const QUEUED_VERSIONS: u64 = 64;
/// Maximum number of intents that one leader reads, in parallel.
const MAX_INTENTS: usize = 256;
/// Number of polls for the root of another leader per duration of one request.
const LOOKS_PER_REQUEST: u64 = 2;
/// [`Patience::requests`] of intents.
const PATIENCE_REQUESTS: u64 = 5;

/// Result of waiting in the queue.
pub(crate) enum Waited {
    Lead(Intents),
    /// A version contains members of the group.
    Served,
}

/// The intents that a leader found, and its own.
#[derive(Default)]
pub(crate) struct Intents {
    own: Option<String>,
    others: Vec<Intent>,
}

struct Intent {
    path: String,
    submissions: Vec<Submission>,
}

/// Waits in the queue until the group may create a root. Groups without a queued member do not wait. If the store
/// fails, the group goes ahead without transactions of other processes.
pub(crate) async fn wait_in_queue(
    publisher: &Publisher,
    group: &[Submission],
    deadline_millis: u64,
) -> Waited {
    match try_to_wait(publisher, group, deadline_millis).await {
        Ok(turn) => turn,
        Err(_) => Waited::Lead(Intents::default()),
    }
}

async fn try_to_wait(publisher: &Publisher, group: &[Submission], deadline_millis: u64) -> Result<Waited> {
    let (storage, environment) = (publisher.storage().as_ref(), publisher.environment().as_ref());
    let waiting: Vec<&Submission> =
        group.iter().filter(|member| member.last_version.is_some() && member.is_complete()).collect();
    if waiting.is_empty() {
        return Ok(Waited::Lead(Intents::default()));
    }
    let known = publisher.known().number;
    let own = intent_path(environment.now_millis(), environment.uuid());
    let started = environment.elapsed_millis();
    if storage.put_if_absent(&own, encode(&own, &waiting)).await? != PutOutcome::Created {
        return Ok(Waited::Lead(Intents::default()));
    }
    let request_millis = environment.elapsed_millis() - started + 1;
    let is_committed =
        |version: &Version| group.iter().any(|member| version.metadata.commits(&member.info.id));
    let is_intent = |path: &str| intent_file(path).is_some();
    let patience = Patience { request_millis, requests: PATIENCE_REQUESTS, deadline_millis };
    let mut files = Files::new();
    match wait_for_turn(publisher, &own, known, patience, &mut files, is_intent, is_committed).await? {
        Turn::Committed(_) => {
            clear(publisher, vec![own]).await;
            Ok(Waited::Served)
        }
        Turn::First(others) => {
            let others = others.into_iter().filter_map(|path| {
                let intent = files.remove(&path)??;
                Some(Intent {
                    path,
                    submissions: intent.transactions.into_iter().map(to_submission).collect(),
                })
            });
            Ok(Waited::Lead(Intents { own: Some(own), others: others.collect() }))
        }
    }
}

/// How long to wait for another leader.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Duration of one request.
    pub request_millis: u64,
    /// Number of sequential requests that a leader needs, with some margin.
    pub requests: u64,
    pub deadline_millis: u64,
}

/// Result of waiting for the own turn.
pub(crate) enum Turn {
    /// Commit, together with these files of others, which were read.
    First(Vec<String>),
    Committed(u64),
}

/// Files of the queue that were read: an intent, or `None` for a damaged one or one that is over.
pub(crate) type Files = HashMap<String, Option<CommitIntent>>;

/// Waits until no file that is older than `own` has an owner that can be expected to commit first, or until a version
/// contains the own transactions, which no version up to `validated` does. An owner that has waited too long since the
/// newest version goes ahead.
///
/// `is_in_queue` selects the files by path.
pub(crate) async fn wait_for_turn(
    publisher: &Publisher,
    own: &str,
    validated: u64,
    patience: Patience,
    files: &mut Files,
    is_in_queue: impl Fn(&str) -> bool,
    is_committed: impl Fn(&Version) -> bool,
) -> Result<Turn> {
    let (storage, environment) = (publisher.storage().as_ref(), publisher.environment().as_ref());
    let ends = || {
        let millis = patience.request_millis * patience.requests;
        (environment.elapsed_millis() + millis + environment.random_below(millis))
            .min(patience.deadline_millis)
    };
    let mut patience_ends = ends();
    let mut seen = validated;
    // Files whose owners cannot be expected to commit first any more.
    let mut passed: HashSet<String> = HashSet::new();
    loop {
        let mut listed = storage.list(INTENT_PREFIX).await?;
        listed.retain(|file| {
            is_in_queue(&file.path) && file.path != own && file.size_bytes <= max_size_bytes(publisher)
        });
        let mut paths: Vec<String> = listed.into_iter().map(|file| file.path).collect();
        paths.truncate(MAX_INTENTS);
        let may_wait = environment.elapsed_millis() < patience_ends;
        let older = |path: &&String| path.as_str() < own && may_wait && !passed.contains(*path);
        let older: Vec<String> = paths.iter().filter(older).cloned().collect();
        read_into(files, storage, &older).await;
        let mut leader = None;
        let mut over = Vec::new();
        for path in older {
            match files.get(&path) {
                Some(Some(intent)) if !is_over(publisher, intent).await => {
                    leader = Some(path);
                    break;
                }
                Some(_) => over.push(path),
                None => {}
            }
        }
        if !over.is_empty() {
            files.extend(over.iter().map(|path| (path.clone(), None)));
            passed.extend(over.iter().cloned());
            clear(publisher, over).await;
        }
        let Some(leader) = leader else {
            read_into(files, storage, &paths).await;
            return Ok(Turn::First(paths));
        };
        while publisher.known().number <= seen && environment.elapsed_millis() < patience_ends {
            let pause_millis = patience.request_millis.div_ceil(LOOKS_PER_REQUEST);
            environment.sleep(Duration::from_millis(pause_millis)).await;
            publisher.latest().await?;
        }
        let latest = publisher.known();
        for version in publisher.versions(seen + 1, latest.number, &latest).await? {
            if is_committed(&version) {
                return Ok(Turn::Committed(version.number));
            }
            patience_ends = ends();
        }
        seen = latest.number;
        passed.insert(leader);
    }
}

/// Reads files that are not in `files` yet. A file that is missing is not added, nor is one after a failed request.
async fn read_into(files: &mut Files, storage: &dyn Storage, paths: &[String]) {
    let new: Vec<&String> = paths.iter().filter(|path| !files.contains_key(*path)).collect();
    let read = join_all(new.iter().map(|path| read(storage, path))).await;
    files.extend(new.into_iter().cloned().zip(read).filter_map(|(path, read)| Some((path, read?))));
}

/// Whether no later version may contain the transactions of an intent, or a known one contains them: its owner deletes
/// it a request later.
async fn is_over(publisher: &Publisher, intent: &CommitIntent) -> bool {
    let known = publisher.known();
    let last_version = intent.transactions.iter().map(|one| one.last_version).max().unwrap_or_default();
    let validated = |one: &IntendedTransaction| one.footprint.as_ref().map(|saved| saved.validated_version);
    let validated = intent.transactions.iter().filter_map(validated).min().unwrap_or_default();
    let versions = async || publisher.versions(validated + 1, known.number, &known).await.unwrap_or_default();
    last_version <= known.number
        || versions()
            .await
            .iter()
            .any(|version| intent.transactions.iter().any(|one| version.metadata.commits(&one.id)))
}

/// Whether transactions of others wait, for a group that goes ahead alone. The request runs while the root is created,
/// so that a writer that always wins finds out about others.
pub(crate) async fn are_others_waiting(publisher: &Publisher, group: &[Submission]) -> bool {
    let is_asked =
        |member: &Submission| member.coordination == Coordination::Queue && member.last_version.is_none();
    let is_of_group = |path: &String| group.iter().any(|member| member.queued_appends.contains(path));
    let is_waiting = |file: &FileInfo| is_in_queue(&file.path) && !is_of_group(&file.path);
    group.iter().any(is_asked)
        && publisher.storage().list(INTENT_PREFIX).await.is_ok_and(|files| files.iter().any(is_waiting))
}

impl Intents {
    /// Transactions of other processes that may be in the version after `previous`, up to the size limit, those that
    /// have waited longest first.
    pub(crate) fn guests(&self, previous: u64, room_bytes: usize) -> Vec<Submission> {
        let may_come = |guest: &&Submission| guest.last_version.is_some_and(|last| last > previous);
        let mut size_bytes = 0;
        let fits = |guest: &&Submission| {
            size_bytes += guest.size_bytes();
            size_bytes <= room_bytes
        };
        self.others
            .iter()
            .flat_map(|intent| &intent.submissions)
            .filter(may_come)
            .take_while(fits)
            .cloned()
            .collect()
    }

    /// Removes the intent of this group, and completed intents of others, whose owners may have died. `tip` is the
    /// newest version; `is_committed` returns whether it contains an id.
    pub(crate) async fn leave(self, publisher: &Publisher, tip: u64, is_committed: impl Fn(&str) -> bool) {
        let is_done = |guest: &Submission| {
            is_committed(&guest.info.id) || guest.last_version.is_none_or(|last| last <= tip)
        };
        let done = self.others.into_iter().filter(|intent| intent.submissions.iter().all(is_done));
        let paths: Vec<String> = self.own.into_iter().chain(done.map(|intent| intent.path)).collect();
        if !paths.is_empty() {
            clear(publisher, paths).await;
        }
    }
}

/// Deletes intents in the background. A later leader deletes those that remain.
pub(crate) async fn clear(publisher: &Publisher, paths: Vec<String>) {
    let storage = publisher.storage().clone();
    let work = async move {
        join_all(paths.iter().map(|path| storage.delete(path))).await;
    };
    publisher.environment().background(Box::pin(work)).await;
}

fn max_size_bytes(publisher: &Publisher) -> u64 {
    publisher.known().config.node_max_size_bytes as u64
}

/// The content of an intent file; `Some(None)` if it is damaged or of a newer format, so that only its owner can commit
/// its transactions, and `None` if it was not read.
async fn read(storage: &dyn Storage, path: &str) -> Option<Option<CommitIntent>> {
    Some(decode(path, &storage.get(path).await.ok()?))
}

fn encode(path: &str, waiting: &[&Submission]) -> Bytes {
    let transactions = waiting
        .iter()
        .map(|member| IntendedTransaction {
            footprint: Some(to_footprint(member)),
            last_version: member.last_version.unwrap_or_default(),
            companions: member.companions.iter().map(to_log_entry).collect(),
            ..to_log_entry(&member.info)
        })
        .collect();
    encode_file(path, &CommitIntent { transactions, rows: Vec::new() }.encode_to_vec())
}

/// A transaction as a root records it, without keys.
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

/// The footprint for an intent. A leader only checks whether a version wrote keys on which the footprint depends, so
/// watched reads are stored as requirements.
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

/// `None` for a damaged file or a newer format.
fn decode(path: &str, file: &Bytes) -> Option<CommitIntent> {
    if !is_intact_copy(path, file) {
        return None;
    }
    let intent = CommitIntent::decode(decode_file(path, file).ok()?).ok()?;
    let has_changes = |footprint: &proto::Footprint| !footprint.writes.is_empty() || !intent.rows.is_empty();
    let is_complete = |one: &IntendedTransaction| one.footprint.as_ref().is_some_and(has_changes);
    intent.transactions.iter().all(is_complete).then_some(intent)
}

fn to_submission(mut intended: IntendedTransaction) -> Submission {
    let saved = intended.footprint.clone().unwrap_or_default();
    let companions = std::mem::take(&mut intended.companions);
    let txn: Text = intended.id.as_str().into();
    let messages = saved.writes.iter().map(|write| {
        Message::new(write.key.as_str().into(), write.location.as_deref().map(Into::into), txn.clone())
    });
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

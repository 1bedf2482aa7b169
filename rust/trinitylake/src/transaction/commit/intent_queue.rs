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

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use prost::Message as _;

use crate::config::Coordination;
use crate::definition::proto::{self, CommitIntent, IntendedTransaction};
use crate::definition_file::{decode_file, encode_file, is_intact_copy};
use crate::error::{Error, Result};
use crate::node::draft::{Message, Text};
use crate::path::{INTENT_PREFIX, intent_file, intent_path};
use crate::storage::{FileInfo, PutOutcome, Storage};
use crate::transaction::commit::submission::Submission;
use crate::transaction::footprint::Footprint;
use crate::transaction::handle::Transaction;
use crate::transaction::options::Isolation;
use crate::version::log_summary::Summary;
use crate::version::publisher::Publisher;
use crate::version::root_metadata::CommittedTransaction;

/// Number of versions for which other processes may put a queued transaction into a root.
pub(crate) const QUEUED_VERSIONS: u64 = 64;
/// Maximum number of intents that one leader reads, in parallel.
const MAX_INTENTS: usize = 256;
/// Number of polls for the root of another leader per duration of one request.
const LOOKS_PER_REQUEST: u64 = 2;
/// Number of sequential requests that a leader needs, with some margin.
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
    let own = intent_path(environment.now_millis(), environment.uuid());
    let started = environment.elapsed_millis();
    if storage.put_if_absent(&own, encode(&own, &waiting)).await? != PutOutcome::Created {
        return Ok(Waited::Lead(Intents::default()));
    }
    let request_millis = environment.elapsed_millis() - started + 1;
    let patience =
        request_millis * PATIENCE_REQUESTS + environment.random_below(request_millis * PATIENCE_REQUESTS);
    let patience_ends = (environment.elapsed_millis() + patience).min(deadline_millis);
    // Leaders whose root exists but may not contain this intent.
    let mut served: HashSet<String> = HashSet::new();
    loop {
        let mut listed: Vec<_> = storage.list(INTENT_PREFIX).await?;
        listed.retain(|file| {
            is_intent(file) && file.path != own && file.size_bytes <= max_size_bytes(publisher)
        });
        let may_wait = environment.elapsed_millis() < patience_ends;
        let before_own = listed.iter().map(|file| &file.path).filter(|path| **path < own && may_wait);
        let candidates = before_own.filter(|path| !served.contains(*path)).cloned().collect();
        let Some(leader) = first_that_leads(publisher, candidates).await else {
            listed.truncate(MAX_INTENTS);
            let reads = listed.iter().map(|file| read(storage, &file.path));
            let others = join_all(reads).await.into_iter().filter_map(Read::intact).collect();
            return Ok(Waited::Lead(Intents { own: Some(own), others }));
        };
        let before = publisher.known().number;
        while publisher.known().number == before && environment.elapsed_millis() < patience_ends {
            environment.sleep(Duration::from_millis(request_millis.div_ceil(LOOKS_PER_REQUEST))).await;
            publisher.latest().await?;
        }
        let latest = publisher.known();
        for version in publisher.versions(before + 1, latest.number, &latest).await? {
            if group.iter().any(|member| version.metadata.commits(&member.info.id)) {
                clear(publisher, vec![own]).await;
                return Ok(Waited::Served);
            }
        }
        served.insert(leader);
    }
}

/// The first intent whose owner can be expected to lead. Removes intents before it that are damaged, or that no later
/// version may contain.
async fn first_that_leads(publisher: &Publisher, candidates: Vec<String>) -> Option<String> {
    let tip = publisher.known().number;
    let mut done = Vec::new();
    let mut leader = None;
    for path in candidates {
        let is_over = match read(publisher.storage().as_ref(), &path).await {
            Read::Intact(intent) => {
                intent.submissions.iter().all(|one| one.last_version.is_none_or(|last| last <= tip))
            }
            Read::Damaged => true,
            Read::Missing => continue,
            Read::Failed => false,
        };
        if !is_over {
            leader = Some(path);
            break;
        }
        done.push(path);
    }
    if !done.is_empty() {
        clear(publisher, done).await;
    }
    leader
}

/// Whether the queue contains intents, for a group that goes ahead alone. The request runs while the root is created,
/// so that a writer that always wins finds out about others.
pub(crate) async fn are_others_waiting(publisher: &Publisher, group: &[Submission]) -> bool {
    let is_asked =
        |member: &Submission| member.coordination == Coordination::Queue && member.last_version.is_none();
    group.iter().any(is_asked)
        && publisher.storage().list(INTENT_PREFIX).await.is_ok_and(|files| files.iter().any(is_intent))
}

/// Whether the file is an intent; other files in that folder are ignored.
fn is_intent(file: &FileInfo) -> bool {
    intent_file(&file.path).is_some()
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
async fn clear(publisher: &Publisher, paths: Vec<String>) {
    let storage = publisher.storage().clone();
    let work = async move {
        join_all(paths.iter().map(|path| storage.delete(path))).await;
    };
    publisher.environment().background(Box::pin(work)).await;
}

fn max_size_bytes(publisher: &Publisher) -> u64 {
    publisher.known().config.node_max_size_bytes as u64
}

/// Content of an intent file.
enum Read {
    Intact(Intent),
    /// Damaged or of a newer format. Only its owner can commit its transactions.
    Damaged,
    Missing,
    Failed,
}

impl Read {
    fn intact(self) -> Option<Intent> {
        match self {
            Read::Intact(intent) => Some(intent),
            Read::Damaged | Read::Missing | Read::Failed => None,
        }
    }
}

async fn read(storage: &dyn Storage, path: &str) -> Read {
    match storage.get(path).await {
        Ok(file) => match decode(path, &file) {
            Some(submissions) => Read::Intact(Intent { path: path.to_string(), submissions }),
            None => Read::Damaged,
        },
        Err(Error::FileNotFound { .. }) => Read::Missing,
        Err(_) => Read::Failed,
    }
}

fn encode(path: &str, waiting: &[&Submission]) -> Bytes {
    let transactions = waiting
        .iter()
        .map(|member| IntendedTransaction {
            id: member.info.id.clone(),
            isolation: member.isolation.to_proto().into(),
            commit_message: member.info.message.clone(),
            author: member.info.author.clone(),
            properties: member.info.properties.clone().into_iter().collect(),
            footprint: Some(to_footprint(member)),
            last_version: member.last_version.unwrap_or_default(),
            summary: member.info.summary.as_str().to_string(),
        })
        .collect();
    encode_file(path, &CommitIntent { transactions }.encode_to_vec())
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
fn decode(path: &str, file: &Bytes) -> Option<Vec<Submission>> {
    if !is_intact_copy(path, file) {
        return None;
    }
    let intent = CommitIntent::decode(decode_file(path, file).ok()?).ok()?;
    intent.transactions.into_iter().map(to_submission).collect()
}

fn to_submission(intended: IntendedTransaction) -> Option<Submission> {
    let isolation = Isolation::of_proto(intended.isolation());
    let saved = intended.footprint?;
    let txn: Text = intended.id.as_str().into();
    let messages = saved.writes.iter().map(|write| {
        Message::new(write.key.as_str().into(), write.location.as_deref().map(Into::into), txn.clone())
    });
    let messages: Vec<Message> = messages.collect();
    (!messages.is_empty()).then(|| Submission {
        info: CommittedTransaction {
            id: intended.id,
            isolation: isolation.word().into(),
            message: intended.commit_message,
            author: intended.author,
            began_at_version: saved.base_version,
            properties: intended.properties.into_iter().collect(),
            summary: Summary::stored(intended.summary),
        },
        isolation,
        footprint: Arc::new(Footprint::of_proto(&saved)),
        messages,
        coordination: Coordination::Queue,
        validated: saved.validated_version,
        last_version: Some(intended.last_version),
        ..Submission::default()
    })
}

impl Transaction {
    /// Whether the transaction joins the intent queue.
    pub(super) fn waits_in_queue(&self, coordination: Option<Coordination>) -> bool {
        coordination.unwrap_or(self.base.config.coordination) == Coordination::Queue
            && self.changes.definition.is_none()
            && !self.depends_on_past
            && self.companions.is_empty()
            && self.lakehouse.commits().is_contended()
    }
}

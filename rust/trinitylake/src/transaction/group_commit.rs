//! Group commit: transactions of one handle that wait at the same time share one root version.
//!
//! There is no thread for it. A transaction that finds nobody committing leads: it takes everyone who
//! waits, in order of arrival, holds each against those before it, and creates one root for all of them.
//! Who arrives meanwhile waits, and one of them leads next, so a lone commit pays nothing and a crowd pays
//! one root for all. Those who still write their files are announced: a leader waits for them if less
//! waiting comes of it in sum than if they missed this root by a hair.
//!
//! Invariants:
//! - A group only ever holds transactions whose footprints miss everything that was written since they
//!   were validated, by other versions and by those before them in the group. Who is touched is sent back
//!   to look for himself ([`Verdict::Again`]): here nothing decides who lost.
//! - Leadership passes on as soon as the root is created. Whether it was created above the expiry boundary
//!   is asked while the next group is on its way; an answer is given only after that.
//! - A leader that is cancelled leaves its group without an answer. They begin again, and find their ids in
//!   the root if it was created after all.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{join, try_join};
use futures::{StreamExt, TryStreamExt, stream};

use super::arrivals::{Arrival, Arrivals};
use super::footprint::{Footprint, Requirement};
use super::intents::{self, Turn};
use super::{Coordination, Isolation};
use crate::definition::LakehouseDefinition;
use crate::error::{Error, Result};
use crate::lakehouse::{Created, DOUBT_MILLIS, Lakehouse, Slot};
use crate::node::draft::{Message, Text};
use crate::storage::Storage;
use crate::tree::advance::advance;
use crate::tree::node_store::{PARALLEL_REQUESTS, write_new_file};
use crate::version::Version;
use crate::version::metadata::CommittedTransaction;

/// A pause after lost races is at most this many attempts long: beyond it, waiting only starves.
const MAX_PAUSE_ATTEMPTS: u64 = 8;

/// All that a root needs to know of one transaction.
#[derive(Clone, Debug)]
pub(super) struct Submission {
    pub info: CommittedTransaction,
    pub isolation: Isolation,
    pub footprint: Arc<Footprint>,
    /// At most one for each key.
    pub messages: Vec<Message>,
    pub definition: Option<(String, Arc<LakehouseDefinition>)>,
    /// Definition files that are not written yet.
    pub files: Vec<(String, Bytes)>,
    /// The version up to which conflicts were looked for.
    pub validated: u64,
    pub coordination: Coordination,
    /// How many roots it has tried to be in.
    pub attempt: u32,
    /// It waits in the queue across processes (`intents`), for a version up to this one.
    pub last_version: Option<u64>,
}

impl Submission {
    /// Does this transaction depend on one of these keys?
    fn is_touched(&self, written: &BTreeSet<Text>) -> bool {
        let requires = |requirement: &Requirement| match requirement {
            Requirement::Exists(key) | Requirement::Absent(key) => written.contains(key.as_str()),
            Requirement::Empty(range) => written.range::<str, _>(range.bounds()).next().is_some(),
        };
        !written.is_empty()
            && (self.messages.iter().any(|message| written.contains(&message.key))
                || self.footprint.requirements.iter().any(requires)
                || self.footprint.watched.contains_any(written)
                || (self.isolation == Isolation::Serializable && self.footprint.reads.contains_any(written)))
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.messages.iter().map(Message::size_bytes).sum()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Verdict {
    Committed(Arc<Version>),
    /// Something was committed that this transaction must look at first, or was faster.
    Again {
        files_are_written: bool,
    },
}

enum Reply {
    Verdict(Result<Verdict>),
    /// The leader is gone: take its place.
    Lead(Submission),
}

enum Seat {
    Lead(Box<Submission>),
    Wait(oneshot::Receiver<Reply>),
}

struct Member {
    submission: Submission,
    reply: oneshot::Sender<Reply>,
}

#[derive(Default)]
struct State {
    is_led: bool,
    waiting: VecDeque<Member>,
    /// Were there several when the last root was created?
    is_crowded: bool,
    /// Was a race lost against another process, and no sign since that they are gone?
    is_contended: bool,
    /// What the last root took.
    round_millis: u64,
    /// How large groups are lately: a lone commit between large ones must not flush what those left.
    usual_size_bytes: usize,
    /// The newest root that was created here, perhaps not yet held against the boundary.
    tip: Option<Arc<Version>>,
}

/// Where the transactions of one handle meet.
#[derive(Default)]
pub struct CommitQueue {
    state: Mutex<State>,
    arrivals: Arrivals,
}

impl std::fmt::Debug for CommitQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CommitQueue").finish_non_exhaustive()
    }
}

impl CommitQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where others commit, one writes his files before he comes: else the leader would, and all would wait
    /// for that. Announces that one will come.
    pub(super) fn announce(&self, now_millis: u64) -> Option<Arrival<'_>> {
        let is_busy = {
            let state = self.state();
            state.is_led || state.is_crowded || state.is_contended
        };
        is_busy.then(|| self.arrivals.announce(now_millis))
    }

    /// Do other processes commit at this time?
    pub(super) fn is_contended(&self) -> bool {
        self.state().is_contended
    }

    /// The version that the next root follows.
    pub(super) fn tip(&self, lakehouse: &Lakehouse) -> Arc<Version> {
        let known = lakehouse.known();
        match &self.state().tip {
            Some(tip) if tip.number > known.number => tip.clone(),
            _ => known,
        }
    }

    /// Commits one transaction together with whoever else waits.
    pub(super) async fn commit(
        &self,
        lakehouse: &Lakehouse,
        submission: Submission,
        arrival: Option<Arrival<'_>>,
        deadline_millis: u64,
    ) -> Result<Verdict> {
        let seat = self.enter(submission);
        if let Some(arrival) = arrival {
            arrival.arrived(lakehouse.environment().elapsed_millis());
        }
        let submission = match seat {
            Seat::Lead(submission) => *submission,
            Seat::Wait(answer) => match answer.await {
                Ok(Reply::Verdict(verdict)) => return verdict,
                Ok(Reply::Lead(submission)) => submission,
                // Whoever led was cancelled.
                Err(oneshot::Canceled) => return Ok(Verdict::Again { files_are_written: false }),
            },
        };
        self.lead(lakehouse, submission, deadline_millis).await
    }

    fn enter(&self, submission: Submission) -> Seat {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_led, true) {
            let (reply, answer) = oneshot::channel();
            state.waiting.push_back(Member { submission, reply });
            Seat::Wait(answer)
        } else {
            Seat::Lead(Box::new(submission))
        }
    }

    async fn lead(&self, lakehouse: &Lakehouse, own: Submission, deadline_millis: u64) -> Result<Verdict> {
        let leadership = Leadership(self);
        let (here, round_millis) = {
            let state = self.state();
            (state.waiting.len() as u64 + 1, state.round_millis)
        };
        self.arrivals.wait(here, round_millis, lakehouse.environment().as_ref()).await;
        let started = lakehouse.environment().elapsed_millis();
        let max_size_bytes = self.tip(lakehouse).config.node_max_size_bytes / 2;
        let (mut group, replies) = self.gather(own, max_size_bytes);
        let members = group.len();
        let queue = match intents::line_up(lakehouse, &group, deadline_millis).await {
            Turn::Lead(queue) => queue,
            Turn::Passed => {
                drop(leadership);
                return tell(replies, vec![Ok(Verdict::Again { files_are_written: false }); members]);
            }
        };
        let previous = self.tip(lakehouse);
        group.extend(queue.guests(previous.number, max_size_bytes.saturating_sub(size_bytes(&group))));
        let usual_size_bytes = self.usual_size_bytes(&group);
        let claim = claim_for(lakehouse, &previous, &group, usual_size_bytes, deadline_millis);
        let (claimed, others_wait) = join(claim, intents::are_others_waiting(lakehouse, &group)).await;
        let verdicts = match claimed {
            Ok(Claimed::Root(created, admitted)) => {
                {
                    let mut state = self.state();
                    state.tip = Some(created.version.clone());
                    state.is_contended = others_wait || group.len() > members;
                    state.is_crowded =
                        members > 1 || !state.waiting.is_empty() || self.arrivals.are_expected();
                    state.round_millis = lakehouse.environment().elapsed_millis() - started;
                }
                drop(leadership);
                let committed = &created.version.metadata.committed;
                let is_in = |id: &str| committed.iter().any(|transaction| transaction.id == id);
                queue.leave(lakehouse, created.version.number, is_in).await;
                let confirmed = lakehouse.confirm(created).await.map(Verdict::Committed);
                if confirmed.is_err() {
                    self.state().tip = None;
                }
                verdicts(&admitted, &confirmed)
            }
            Ok(Claimed::Nothing { files_are_written }) => {
                // Written they are only if the root was tried for, and then another process was faster.
                self.state().is_contended |= files_are_written;
                queue.leave(lakehouse, previous.number, |_| false).await;
                vec![Ok(Verdict::Again { files_are_written }); members]
            }
            Err(error) => vec![Err(error); members],
        };
        tell(replies, verdicts)
    }

    /// The size of this group, or of those before it, which is forgotten by and by.
    fn usual_size_bytes(&self, group: &[Submission]) -> usize {
        let mut state = self.state();
        state.usual_size_bytes = (state.usual_size_bytes - state.usual_size_bytes / 8).max(size_bytes(group));
        state.usual_size_bytes
    }

    /// The leader and those who wait, as many as one root can well hold.
    fn gather(
        &self,
        own: Submission,
        max_size_bytes: usize,
    ) -> (Vec<Submission>, Vec<oneshot::Sender<Reply>>) {
        let mut size_bytes = own.size_bytes();
        let (mut group, mut replies) = (vec![own], Vec::new());
        let mut state = self.state();
        while let Some(member) = state.waiting.pop_front() {
            size_bytes += member.submission.size_bytes();
            if size_bytes > max_size_bytes {
                state.waiting.push_front(member);
                break;
            }
            group.push(member.submission);
            replies.push(member.reply);
        }
        (group, replies)
    }
}

fn size_bytes(group: &[Submission]) -> usize {
    group.iter().map(Submission::size_bytes).sum()
}

/// Tells each member but the leader his own verdict, and returns the leader's, which is the first.
fn tell(replies: Vec<oneshot::Sender<Reply>>, verdicts: Vec<Result<Verdict>>) -> Result<Verdict> {
    let mut verdicts = verdicts.into_iter();
    let own = verdicts.next().unwrap_or(Ok(Verdict::Again { files_are_written: false }));
    for (reply, verdict) in replies.into_iter().zip(verdicts) {
        // Who no longer listens has given up on an answer.
        let _ = reply.send(Reply::Verdict(verdict));
    }
    own
}

/// Held by the one who commits; passed on when dropped, however that comes about.
struct Leadership<'a>(&'a CommitQueue);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        while let Some(Member { submission, reply }) = state.waiting.pop_front() {
            if reply.send(Reply::Lead(submission)).is_ok() {
                return;
            }
        }
        state.is_led = false;
    }
}

fn verdicts(admitted: &[bool], confirmed: &Result<Verdict>) -> Vec<Result<Verdict>> {
    let verdict = |is_in: &bool| {
        if *is_in { confirmed.clone() } else { Ok(Verdict::Again { files_are_written: true }) }
    };
    admitted.iter().map(verdict).collect()
}

enum Claimed {
    /// The root was created, with those of the group that are marked.
    Root(Created, Vec<bool>),
    /// Nobody was admitted, or another writer was faster.
    Nothing { files_are_written: bool },
}

/// Creates the root after `previous` for all of the group that can be in it.
async fn claim_for(
    lakehouse: &Lakehouse,
    previous: &Arc<Version>,
    group: &[Submission],
    usual_size_bytes: usize,
    deadline_millis: u64,
) -> Result<Claimed> {
    let environment = lakehouse.environment().as_ref();
    let started = environment.elapsed_millis();
    let admitted = admit(lakehouse, previous, group).await?;
    let members = || group.iter().zip(&admitted).filter_map(|(member, is_in)| is_in.then_some(member));
    if members().next().is_none() {
        return Ok(Claimed::Nothing { files_are_written: false });
    }
    let config = &previous.config;
    let messages = members().flat_map(|member| member.messages.iter().cloned()).collect();
    let advance =
        advance(lakehouse.nodes(), environment, config, &previous.root, messages, usual_size_bytes).await?;
    let nodes = lakehouse.encode_nodes(config, advance.nodes)?;
    // All of the group's, since whoever was not admitted is told to come again with them written.
    let files = group.iter().flat_map(|member| member.files.iter().cloned()).collect();
    try_join(write_files(lakehouse.storage().as_ref(), files), lakehouse.nodes().write(nodes)).await?;

    let mut metadata =
        lakehouse.next_metadata(previous, members().map(|member| member.info.clone()).collect());
    let mut definition = previous.definition.clone();
    if let Some((path, changed)) = members().find_map(|member| member.definition.as_ref()) {
        metadata.lakehouse_definition = path.clone();
        metadata.inline_definition = Some(changed.bytes().to_vec());
        definition = changed.clone();
    }
    let deadline = deadline_millis.max(environment.elapsed_millis() + DOUBT_MILLIS);
    match lakehouse.claim_root(previous, metadata, &advance.root, definition, deadline).await? {
        Slot::Won(created) => Ok(Claimed::Root(created, admitted)),
        Slot::Lost(latest) => {
            // As many versions as others made meanwhile, as many writers there are, about: who waits a
            // part of a round for each lets most of the requests that would be lost go unmade. Who has
            // lost before waits less each time, so that those go first who wait longest.
            let others = latest.number.saturating_sub(previous.number + 1).min(MAX_PAUSE_ATTEMPTS);
            let round = environment.elapsed_millis() - started;
            let lost = group.iter().map(|member| member.attempt).max().unwrap_or_default().max(1);
            let pause = environment.random_below(round * others / u64::from(lost) + 1);
            // Those who queue up wait there.
            if pause > 0 && group.iter().all(|member| member.last_version.is_none()) {
                environment.sleep(Duration::from_millis(pause)).await;
            }
            Ok(Claimed::Nothing { files_are_written: true })
        }
    }
}

/// Which of the group may be in the root after `previous`: in order, each held against what others wrote
/// since it was validated and against those admitted before it.
async fn admit(lakehouse: &Lakehouse, previous: &Arc<Version>, group: &[Submission]) -> Result<Vec<bool>> {
    let mut written_by_version: HashMap<u64, BTreeSet<Text>> = HashMap::new();
    let mut written: BTreeSet<Text> = BTreeSet::new();
    let mut has_definition = false;
    let mut admitted = Vec::with_capacity(group.len());
    'group: for member in group {
        if member.validated > previous.number {
            admitted.push(false);
            continue;
        }
        for number in member.validated + 1..=previous.number {
            let written = match written_by_version.get(&number) {
                Some(written) => written,
                // What cannot be read any more is for its own validation to explain.
                None => match written_in(lakehouse, previous, number).await {
                    Ok(written) => written_by_version.entry(number).or_insert(written),
                    Err(Error::VersionExpired(_)) => {
                        admitted.push(false);
                        continue 'group;
                    }
                    Err(error) => return Err(error),
                },
            };
            if member.definition.is_some() || member.is_touched(written) {
                admitted.push(false);
                continue 'group;
            }
        }
        let is_in = !(member.is_touched(&written) || (member.definition.is_some() && has_definition));
        if is_in {
            written.extend(member.messages.iter().map(|message| message.key.clone()));
            has_definition |= member.definition.is_some();
        }
        admitted.push(is_in);
    }
    Ok(admitted)
}

/// The keys that a version wrote.
async fn written_in(lakehouse: &Lakehouse, tip: &Arc<Version>, number: u64) -> Result<BTreeSet<Text>> {
    let version = if number == tip.number { tip.clone() } else { lakehouse.version(number).await? };
    let changes = match version.changes_told() {
        Some(changes) => changes,
        None => version.changes(lakehouse.version(number - 1).await?.as_ref()).await?,
    };
    Ok(changes.iter().map(|change| change.key.as_str().into()).collect())
}

/// Writes definition files in parallel.
pub(super) async fn write_files(storage: &dyn Storage, files: Vec<(String, Bytes)>) -> Result<()> {
    stream::iter(files)
        .map(|(path, bytes)| async move { write_new_file(storage, &path, bytes).await })
        .buffer_unordered(PARALLEL_REQUESTS)
        .try_collect()
        .await
}

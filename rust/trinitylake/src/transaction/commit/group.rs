//! Group commit: transactions of one handle that commit at the same time share one root.
//!
//! There is no extra thread. A transaction that finds no leader becomes the leader: it takes all waiting transactions
//! in order of arrival, admits those that do not conflict with earlier ones, and creates one root for all of them. A
//! transaction that arrives in the meantime leads the next group. A single commit therefore has no extra cost, and
//! concurrent commits share a root.
//!
//! Invariants:
//! - A waiting member has written all of its files, or the root will contain them (`inline_definitions`). Only files of
//!   the leader may still be uploading.
//! - The footprint of an admitted member is disjoint from everything that other versions have written since its
//!   validation, and from the writes of earlier members. Any other member has to validate again ([`Verdict::Again`]);
//!   this module does not decide conflicts.
//! - The next leader starts as soon as the root is created. The check that the root is above the expiry boundary runs
//!   in parallel with the next group; members receive their answer after the check.
//! - If a leader is cancelled, its group receives no answer. The outcome of each member is then unknown; the member
//!   validates again, and finds its id in the next version if the root was created.
//! - A member waits until its own deadline. If it leaves before a leader has taken it, no leader will; if it leaves
//!   afterwards, its outcome is unknown.
//! - The state belongs to a process. A forked child begins with an empty state, without leader and members.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, join, select};
use uuid::Uuid;

use super::group_admission::admit;
use super::inline_definitions::max_size_bytes as inline_max_size_bytes;
use super::intent_queue::{self, Waited};
use super::limits::CommitLimits;
use super::publish::{Claimed, claim_for};
use super::submission::Submission;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::file_names::{intent_file, intent_path};
use crate::per_process::PerProcess;
use crate::transaction::state_machine::Failure;
use crate::version::Version;
use crate::version::publisher::Publisher;

/// Answer of a group to one member.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Committed(Arc<Version>),
    /// Validate against newer versions and commit again.
    Again {
        files_are_written: bool,
    },
    /// Write all files and commit again: another transaction leads, and a leader does not wait for files of members.
    WriteFirst,
}

/// Answer if no root was sent, or if another writer was faster.
const TRY_AGAIN: Verdict = Verdict::Again { files_are_written: false };

/// Group commit of one handle.
#[derive(Default)]
pub struct GroupCommit(PerProcess<Mutex<State>>);

#[derive(Default)]
struct State {
    is_led: bool,
    waiting: VecDeque<Member>,
    /// Number of the last member that waited.
    members: u64,
    /// Size of the inline definitions of the members that joined after the last group was gathered.
    inline_size_bytes: usize,
    /// Number of transactions of this handle in the last root.
    last_size: usize,
    /// Duration of the last round: from gathering its members to the created root.
    round_millis: u64,
    /// Whether several transactions waited when the last root was created.
    is_crowded: bool,
    /// Whether other processes commit: a race was lost, or the queue had intents of others when the last root was
    /// created.
    is_contended: bool,
    /// Size of recent groups, so that a single commit between large groups does not flush their messages.
    usual_size_bytes: usize,
    /// The first half of the id of each intent of this handle in this process.
    owner: Option<u64>,
    /// Intents of other processes in the last listing of the queue, each with the time when it was first listed.
    others: HashMap<String, u64>,
    /// Newest root created by this handle, possibly not yet checked against the expiry boundary.
    tip: Option<Arc<Version>>,
}

struct Member {
    number: u64,
    submission: Submission,
    reply: oneshot::Sender<Reply>,
}

enum Reply {
    Verdict(Result<Verdict, Failure>),
    /// Become the leader.
    Lead(Box<Submission>),
}

enum Seat<'a> {
    Lead(Box<Submission>),
    Wait(Place<'a>),
    /// There is a leader, and the files of this transaction are neither written nor small enough for the root.
    Incomplete,
}

impl State {
    /// Records the intents in the queue. Returns whether other processes wait. An intent that stays for longer than a
    /// commit may take does not count: its process has died, and no leader of the same queue has deleted it.
    fn see(&mut self, intents: Vec<String>, now_millis: u64) -> bool {
        let owner = self.owner;
        let is_of_others = |path: &str| intent_file(path).is_some_and(|(_, id, _)| Some(id.as_u64_pair().0) != owner);
        let before = std::mem::take(&mut self.others);
        let others = intents.into_iter().filter(|path| is_of_others(path));
        for path in others {
            let first_millis = before.get(&path).copied().unwrap_or(now_millis);
            self.others.insert(path, first_millis);
        }
        let timeout_millis = CommitLimits::default().timeout_millis;
        self.others.values().any(|first_millis| now_millis < first_millis + timeout_millis)
    }
}

impl std::fmt::Debug for GroupCommit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("GroupCommit").finish_non_exhaustive()
    }
}

impl GroupCommit {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether other transactions commit at this time. If so, a transaction writes its files before it joins a group:
    /// if it became the leader, all members would wait for these files.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state();
        state.is_led || state.is_crowded || state.is_contended
    }

    /// Whether other processes commit at this time.
    pub(crate) fn is_contended(&self) -> bool {
        self.state().is_contended
    }

    /// Records that other processes commit at this time.
    pub(crate) fn set_contended(&self) {
        self.state().is_contended = true;
    }

    /// Returns the path of a new intent. It sorts after all intents that this process has seen, even if the clocks of
    /// their owners are fast. Otherwise these owners would wait for an intent that came later.
    pub(crate) fn intent_path(&self, environment: &dyn Environment, table: Option<Uuid>) -> String {
        let mut state = self.state();
        let owner = *state.owner.get_or_insert_with(|| environment.uuid().as_u64_pair().0);
        let seen =
            state.others.keys().filter_map(|path| intent_file(path)).map(|(millis, ..)| millis.saturating_add(1));
        let millis = seen.max().unwrap_or_default().max(environment.now_millis());
        intent_path(millis, Uuid::from_u64_pair(owner, environment.uuid().as_u64_pair().1), table)
    }

    /// Whether one root can hold the inline definitions of as many transactions as the last group had, at `size_bytes`
    /// each. If not, the caller writes the files first, so that no part of the group waits for a second root.
    pub(crate) fn has_room_for_all(&self, size_bytes: usize, max_size_bytes: usize) -> bool {
        self.state().last_size.max(1) * size_bytes <= max_size_bytes
    }

    /// The version that the next root follows.
    pub(crate) fn tip(&self, publisher: &Publisher) -> Arc<Version> {
        let known = publisher.known();
        match &self.state().tip {
            Some(tip) if tip.number > known.number => tip.clone(),
            _ => known,
        }
    }

    /// Commits a transaction, together with the transactions that wait at this time.
    pub(crate) async fn commit(
        &self,
        publisher: &Publisher,
        submission: Submission,
        deadline_millis: u64,
    ) -> Result<Verdict, Failure> {
        let environment = publisher.environment();
        let submission = match self.enter(submission, inline_max_size_bytes(&publisher.known().config)) {
            Seat::Lead(submission) => submission,
            Seat::Incomplete => return Ok(Verdict::WriteFirst),
            Seat::Wait(mut place) => {
                let left = Duration::from_millis(deadline_millis.saturating_sub(environment.elapsed_millis()));
                let answer = match select(&mut place.answer, environment.alarm(left)).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => match place.leave() {
                        Leave::Untouched => return Ok(TRY_AGAIN),
                        Leave::Answered(reply) => Ok(reply),
                        Leave::Taken => Err(oneshot::Canceled),
                    },
                };
                match answer {
                    Ok(Reply::Verdict(verdict)) => return verdict,
                    Ok(Reply::Lead(submission)) => submission,
                    // The leader was cancelled, or did not answer before the deadline.
                    Err(oneshot::Canceled) => return Err(self.unanswered(publisher)),
                }
            }
        };
        self.lead(publisher, *submission, deadline_millis).await
    }

    fn enter(&self, submission: Submission, inline_max_size_bytes: usize) -> Seat<'_> {
        let mut state = self.state();
        let inline_size_bytes = submission.inline_size_bytes();
        if !std::mem::replace(&mut state.is_led, true) {
            return Seat::Lead(Box::new(submission));
        }
        let has_room = inline_size_bytes == 0 || state.inline_size_bytes + inline_size_bytes <= inline_max_size_bytes;
        if !(submission.may_join() && has_room) {
            return Seat::Incomplete;
        }
        state.inline_size_bytes += inline_size_bytes;
        let (reply, answer) = oneshot::channel();
        state.members += 1;
        let number = state.members;
        state.waiting.push_back(Member { number, submission, reply });
        Seat::Wait(Place { group_commit: self, number, answer })
    }

    /// The outcome is unknown: a leader may have created the version after the newest known one.
    fn unanswered(&self, publisher: &Publisher) -> Failure {
        let version = self.tip(publisher).number + 1;
        Failure::InDoubt {
            error: Error::CommitStateUnknown(format!(
                "the leader of the group commit has not answered whether version {version} was created"
            )),
            version,
        }
    }

    /// Creates a root with `own` first, followed by the waiting members. Returns the verdict on `own`.
    async fn lead(&self, publisher: &Publisher, own: Submission, deadline_millis: u64) -> Result<Verdict, Failure> {
        let leadership = Leadership(self);
        let environment = publisher.environment().as_ref();
        let has_run_out = || environment.elapsed_millis() >= deadline_millis;
        // 1. Gather the members, and the intents of other processes.
        self.wait_for_last_group(environment).await;
        let started = environment.elapsed_millis();
        let max_size_bytes = self.tip(publisher).config.node_max_size_bytes / 2;
        let (mut group, mut replies) = self.gather(own, max_size_bytes);
        let (members, path) = (group.len(), self.intent_path(environment, None));
        let queue = match intent_queue::wait_in_queue(publisher, path, &group, deadline_millis).await {
            Waited::Lead(queue) => queue,
            Waited::Served => {
                drop(leadership);
                return replies.answer(Ok(TRY_AGAIN));
            }
        };
        let previous = self.tip(publisher);
        group.extend(queue.guests(previous.number, max_size_bytes.saturating_sub(size_bytes(&group))));

        // 2. Admit the members that are compatible with the previous version and with each other.
        let admitted = match admit(publisher, &previous, &group).await {
            Ok(admitted) => admitted,
            Err(error) => return replies.fail(Failure::before_sending(error), has_run_out()),
        };
        replies.reject(&admitted[1..members]);
        let own_is_in = admitted[0];
        let own_files = group[0].pending.clone().filter(|_| own_is_in);
        let mut stays = admitted.iter();
        group.retain(|_| stays.next() == Some(&true));

        // 3. Create the root, and pass the leadership on.
        let usual_size_bytes = self.usual_size_bytes(&group);
        // Boxed, because the future has about ten thousand bytes and would be moved several times.
        let claim = Box::pin(claim_for(publisher, &previous, &group, usual_size_bytes, deadline_millis));
        let (claimed, intents) = join(claim, intent_queue::waiting_intents(publisher, &group)).await;
        let verdict = match claimed {
            Ok(Claimed::Root(created)) => {
                {
                    let mut state = self.state();
                    state.tip = Some(created.version.clone());
                    state.is_contended = state.see(intents, environment.elapsed_millis());
                    state.is_crowded = members > 1 || !state.waiting.is_empty();
                    state.round_millis = environment.elapsed_millis() - started;
                    state.last_size = admitted[..members].iter().filter(|is_in| **is_in).count();
                }
                drop(leadership);
                let version = created.version.clone();
                queue.leave(publisher, |id| version.metadata.commits(id)).await;
                let confirmed = publisher.confirm(created).await;
                if confirmed.is_err() {
                    self.state().tip = None;
                }
                confirmed.map(Verdict::Committed).map_err(Failure::from)
            }
            Ok(Claimed::Overtaken { files_are_written }) => {
                self.state().is_contended = true;
                queue.leave(publisher, |_| false).await;
                Ok(Verdict::Again { files_are_written })
            }
            Ok(Claimed::Nothing) => {
                queue.leave(publisher, |_| false).await;
                Ok(TRY_AGAIN)
            }
            Err(failure) => Err(failure),
        };

        // 4. Answer.
        let verdict = match verdict {
            Ok(verdict) => replies.answer(Ok(verdict)),
            // The files of the other members are durable, so they try again without the leader.
            Err(failure) if own_files.is_some_and(|files| files.has_failed()) => {
                let _ = replies.answer(Ok(TRY_AGAIN));
                Err(failure)
            }
            Err(failure) => replies.fail(failure, has_run_out()),
        };
        if own_is_in { verdict } else { Ok(TRY_AGAIN) }
    }

    /// Waits an eighth of the duration of the last round, if fewer transactions wait than the last root had. The
    /// callers of the missing transactions usually commit again at once, and would otherwise wait for two roots.
    async fn wait_for_last_group(&self, environment: &dyn Environment) {
        let pause_millis = {
            let state = self.state();
            if state.last_size > state.waiting.len() + 1 { state.round_millis / 8 } else { 0 }
        };
        if pause_millis > 0 {
            environment.sleep(Duration::from_millis(pause_millis)).await;
        }
    }

    /// Takes the waiting members, up to `max_size_bytes`. Returns the group, which begins with `own`, and its channels.
    fn gather(&self, own: Submission, max_size_bytes: usize) -> (Vec<Submission>, Replies) {
        let mut size_bytes = own.size_bytes();
        let (mut group, mut replies) = (vec![own], Vec::new());
        let mut state = self.state();
        state.inline_size_bytes = 0;
        while let Some(member) = state.waiting.pop_front() {
            size_bytes += member.submission.size_bytes();
            if size_bytes > max_size_bytes {
                state.waiting.push_front(member);
                break;
            }
            group.push(member.submission);
            replies.push(member.reply);
        }
        (group, Replies(replies))
    }

    /// Returns the larger one of two sizes: of this group, and the decaying size of recent groups.
    fn usual_size_bytes(&self, group: &[Submission]) -> usize {
        let mut state = self.state();
        state.usual_size_bytes = (state.usual_size_bytes - state.usual_size_bytes / 8).max(size_bytes(group));
        state.usual_size_bytes
    }
}

fn size_bytes(group: &[Submission]) -> usize {
    group.iter().map(Submission::size_bytes).sum()
}

/// Channels for the answers to all members except the leader, in the order of the group. A member that has left is
/// ignored.
struct Replies(Vec<oneshot::Sender<Reply>>);

impl Replies {
    /// Removes the members that were not admitted, and answers each of them with [`TRY_AGAIN`].
    fn reject(&mut self, admitted: &[bool]) {
        let replies = std::mem::take(&mut self.0);
        for (reply, is_in) in replies.into_iter().zip(admitted) {
            if *is_in {
                self.0.push(reply);
            } else {
                let _ = reply.send(Reply::Verdict(Ok(TRY_AGAIN)));
            }
        }
    }

    /// Sends the verdict to each member, and returns it for the leader.
    fn answer(self, verdict: Result<Verdict, Failure>) -> Result<Verdict, Failure> {
        for reply in self.0 {
            let _ = reply.send(Reply::Verdict(verdict.clone()));
        }
        verdict
    }

    /// Like [`Replies::answer`], for a failure. If the failure is that the leader's deadline has passed, the members
    /// try again, because their deadlines may be later.
    fn fail(self, failure: Failure, has_run_out: bool) -> Result<Verdict, Failure> {
        let may_pass = matches!(&failure, Failure::Certain(_, Error::Storage { retryable: true, .. }));
        if has_run_out && may_pass {
            let _ = self.answer(Ok(TRY_AGAIN));
            return Err(failure);
        }
        self.answer(Err(failure))
    }
}

/// Leadership of a group, passed on to a waiting member when dropped.
struct Leadership<'a>(&'a GroupCommit);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        while let Some(Member { submission, reply, .. }) = state.waiting.pop_front() {
            if reply.send(Reply::Lead(Box::new(submission))).is_ok() {
                return;
            }
        }
        state.is_led = false;
    }
}

/// Place of a waiting member.
struct Place<'a> {
    group_commit: &'a GroupCommit,
    number: u64,
    answer: oneshot::Receiver<Reply>,
}

/// Result of leaving a place.
enum Leave {
    /// No group has taken the member, and none will.
    Untouched,
    /// The answer has arrived.
    Answered(Reply),
    Taken,
}

impl Place<'_> {
    fn leave(&mut self) -> Leave {
        let mut state = self.group_commit.state();
        if let Some(position) = state.waiting.iter().position(|member| member.number == self.number) {
            state.waiting.remove(position);
            return Leave::Untouched;
        }
        match self.answer.try_recv() {
            Ok(Some(reply)) => Leave::Answered(reply),
            Ok(None) | Err(oneshot::Canceled) => Leave::Taken,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Leave::Answered(Reply::Lead(_)) = self.leave() {
            // The member became the leader, but leaves before it has read that message.
            drop(Leadership(self.group_commit));
        }
    }
}

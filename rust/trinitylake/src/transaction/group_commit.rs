//! Group commit: transactions of one handle that wait at the same time share one root version.
//!
//! There is no thread for it. A transaction that finds nobody committing becomes the leader: it takes all
//! that wait, in order of arrival, admits those that do not conflict with earlier ones, and creates one root
//! for all of them. One of those that arrive meanwhile leads the next group. So a lone commit pays nothing,
//! and a crowd pays for one root. Transactions that still write their files are announced: the leader waits
//! for them if that makes the sum of all waiting times smaller (`arrivals`).
//!
//! Invariants:
//! - Whoever waits has all of its files in place, or the root holds them (`inline_definitions`). Only those of the leader
//!   may still be under way, so no member waits for the files of another, or fails with them.
//! - A group holds only transactions whose footprints are disjoint from everything that was written since
//!   they were validated, by other versions and by earlier members of the group. One that is not is sent
//!   back to validate itself again ([`Verdict::Again`]): no conflict is decided here.
//! - Leadership passes on as soon as the root is created. Whether the root is above the expiry boundary is
//!   checked while the next group is on its way; answers are given only after that check.
//! - If a leader is cancelled, its group gets no answer: each member is in doubt about the next version,
//!   begins again, and finds its id in the root if it was created after all.
//! - A member waits as long as its own limit allows. If it gives up while it waits, no group takes it; if a
//!   group has taken it already, it is in doubt.
//! - The queue belongs to a process. A forked child begins with an empty one: no leader or member runs in
//!   it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, join, select};

use super::arrivals::{Arrival, Arrivals};
use super::commit_queue::{self, Turn};
use super::inline_definitions::max_size_bytes as inline_max_size_bytes;
use super::life::Failure;
use super::next_root::{Claimed, claim_for};
use super::shared_root::{Submission, admit};
use crate::config::TreeConfig;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::version::Version;
use trinitylake_base::per_process::PerProcess;

#[derive(Clone, Debug)]
pub(super) enum Verdict {
    Committed(Arc<Version>),
    /// Something was committed that this transaction must look at first, or was faster.
    Again {
        files_are_written: bool,
    },
    /// Others commit at this time: it may wait for them when all of its files are there.
    WriteFirst,
}

/// Nothing was sent, or it came too late.
const TRY_AGAIN: Verdict = Verdict::Again { files_are_written: false };

enum Reply {
    Verdict(Result<Verdict, Failure>),
    /// The leader is gone: take its place.
    Lead(Box<Submission>),
}

enum Seat<'a> {
    Lead(Box<Submission>),
    Wait(Place<'a>),
    /// Somebody leads, and nobody waits there whose files are not complete and find no room in the root: all would wait for
    /// them, or fail with them.
    Incomplete,
}

struct Member {
    number: u64,
    submission: Submission,
    reply: oneshot::Sender<Reply>,
}

#[derive(Default)]
struct State {
    is_led: bool,
    waiting: VecDeque<Member>,
    /// Members that have waited so far.
    members: u64,
    /// Of definitions of those who came since the last group was gathered, and that a root is to hold.
    inline_size_bytes: usize,
    /// How many were in the last root.
    last_size: usize,
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
pub struct CommitQueue(PerProcess<Crowd>);

#[derive(Default)]
struct Crowd {
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
        self.0.get().state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrivals(&self) -> &Arrivals {
        &self.0.get().arrivals
    }

    /// Where others commit, one writes his files before he comes: else the leader would, and all would wait
    /// for that. Announces that one will come.
    pub(super) fn announce(&self, now_millis: u64) -> Option<Arrival<'_>> {
        let is_busy = {
            let state = self.state();
            state.is_led || state.is_crowded || state.is_contended
        };
        is_busy.then(|| self.arrivals().announce(now_millis))
    }

    /// Would the definitions of all find room in a root, if each had so many bytes? Those of a larger crowd are written
    /// before: a part of it must not wait for roots of its own.
    pub(super) fn has_room_for_all(&self, size_bytes: usize, config: &TreeConfig) -> bool {
        self.state().last_size.max(1) * size_bytes <= inline_max_size_bytes(config)
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
    ) -> Result<Verdict, Failure> {
        let environment = lakehouse.environment();
        let seat = self.enter(submission, inline_max_size_bytes(&lakehouse.known().config));
        if !matches!(seat, Seat::Incomplete) {
            self.arrivals().came(environment.elapsed_millis());
        }
        if let Some(arrival) = arrival {
            arrival.arrived(environment.elapsed_millis());
        }
        let submission = match seat {
            Seat::Lead(submission) => submission,
            Seat::Incomplete => return Ok(Verdict::WriteFirst),
            Seat::Wait(mut place) => {
                let left =
                    Duration::from_millis(deadline_millis.saturating_sub(environment.elapsed_millis()));
                let answer = match select(&mut place.answer, environment.alarm(left)).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => match place.leave() {
                        Left::Untouched => return Ok(TRY_AGAIN),
                        Left::Answered(reply) => Ok(reply),
                        Left::TakenAlong => Err(oneshot::Canceled),
                    },
                };
                match answer {
                    Ok(Reply::Verdict(verdict)) => return verdict,
                    Ok(Reply::Lead(submission)) => submission,
                    // Whoever led was cancelled, or does not answer in time.
                    Err(oneshot::Canceled) => return Err(self.without_an_answer(lakehouse)),
                }
            }
        };
        self.lead(lakehouse, *submission, deadline_millis).await
    }

    /// The root that a leader may have sent follows the newest one that is known here.
    fn without_an_answer(&self, lakehouse: &Lakehouse) -> Failure {
        let version = self.tip(lakehouse).number + 1;
        Failure::InDoubt {
            error: Error::CommitStateUnknown(format!(
                "whoever committed for all who waited has not told whether version {version} was created"
            )),
            version,
        }
    }

    fn enter(&self, submission: Submission, inline_max_size_bytes: usize) -> Seat<'_> {
        let mut state = self.state();
        let inline_size_bytes = submission.inline_size_bytes();
        if state.is_led {
            let has_room = inline_size_bytes == 0
                || state.inline_size_bytes + inline_size_bytes <= inline_max_size_bytes;
            if !(submission.may_join() && has_room) {
                return Seat::Incomplete;
            }
            state.inline_size_bytes += inline_size_bytes;
        }
        if std::mem::replace(&mut state.is_led, true) {
            let (reply, answer) = oneshot::channel();
            state.members += 1;
            let number = state.members;
            state.waiting.push_back(Member { number, submission, reply });
            Seat::Wait(Place { queue: self, number, answer })
        } else {
            Seat::Lead(Box::new(submission))
        }
    }

    /// Makes a root for `own`, which comes first in it, and for those who wait. Returns what `own` is told.
    async fn lead(
        &self,
        lakehouse: &Lakehouse,
        own: Submission,
        deadline_millis: u64,
    ) -> Result<Verdict, Failure> {
        let leadership = Leadership(self);
        let here_and_round = || {
            let state = self.state();
            (state.waiting.len() as u64 + 1, state.round_millis)
        };
        let (here, round_millis) = here_and_round();
        self.arrivals().wait_for_crowd(here, round_millis, lakehouse.environment().as_ref()).await;
        let (here, round_millis) = here_and_round();
        self.arrivals().wait(here, round_millis, lakehouse.environment().as_ref()).await;
        let started = lakehouse.environment().elapsed_millis();
        let max_size_bytes = self.tip(lakehouse).config.node_max_size_bytes / 2;
        let (mut group, replies) = self.gather(own, max_size_bytes);
        let members = group.len();
        let queue = match commit_queue::line_up(lakehouse, &group, deadline_millis).await {
            Turn::Lead(queue) => queue,
            Turn::Passed => {
                drop(leadership);
                return tell(replies, Ok(TRY_AGAIN));
            }
        };
        let previous = self.tip(lakehouse);
        group.extend(queue.guests(previous.number, max_size_bytes.saturating_sub(size_bytes(&group))));
        let has_guests = group.len() > members;
        let admitted = match admit(lakehouse, &previous, &group).await {
            Ok(admitted) => admitted,
            Err(error) => {
                let ran_out = lakehouse.environment().elapsed_millis() >= deadline_millis;
                return tell_failure(replies, Failure::before_sending(error), ran_out);
            }
        };
        let replies = turn_away(replies, &admitted[1..members]);
        let own_is_in = admitted[0];
        let own_files = group[0].pending.clone().filter(|_| own_is_in);
        let mut stays = admitted.iter();
        group.retain(|_| stays.next() == Some(&true));

        let usual_size_bytes = self.usual_size_bytes(&group);
        // Its state has some ten thousand bytes, and those of all who wait for it would hold them once or twice again, and
        // move them.
        let claim = Box::pin(claim_for(lakehouse, &previous, &group, usual_size_bytes, deadline_millis));
        let (claimed, others_wait) = join(claim, commit_queue::are_others_waiting(lakehouse, &group)).await;
        let verdict = match claimed {
            Ok(Claimed::Root(created)) => {
                let now = lakehouse.environment().elapsed_millis();
                self.arrivals().answered(group.len() as u64, now - started, now);
                {
                    let mut state = self.state();
                    state.tip = Some(created.version.clone());
                    state.is_contended = others_wait || has_guests;
                    state.is_crowded =
                        members > 1 || !state.waiting.is_empty() || self.arrivals().are_expected();
                    state.round_millis = now - started;
                    state.last_size = group.len();
                }
                drop(leadership);
                let version = created.version.clone();
                queue.leave(lakehouse, version.number, |id| version.metadata.commits(id)).await;
                let confirmed = lakehouse.publisher().confirm(created).await;
                let confirmed = confirmed.map(Verdict::Committed).map_err(Failure::from);
                if confirmed.is_err() {
                    self.state().tip = None;
                }
                confirmed
            }
            Ok(Claimed::Overtaken { files_are_written }) => {
                self.state().is_contended = true;
                queue.leave(lakehouse, previous.number, |_| false).await;
                Ok(Verdict::Again { files_are_written })
            }
            Ok(Claimed::Nothing) => {
                queue.leave(lakehouse, previous.number, |_| false).await;
                Ok(TRY_AGAIN)
            }
            Err(failure) => Err(failure),
        };
        let verdict = match verdict {
            Ok(verdict) => tell(replies, Ok(verdict)),
            // What the others wrote is there: they try without it.
            Err(failure) if own_files.is_some_and(|files| files.has_failed()) => {
                let _ = tell(replies, Ok(TRY_AGAIN));
                Err(failure)
            }
            Err(failure) => {
                let ran_out = lakehouse.environment().elapsed_millis() >= deadline_millis;
                tell_failure(replies, failure, ran_out)
            }
        };
        if own_is_in { verdict } else { Ok(TRY_AGAIN) }
    }

    /// The size of this group, or of those before it, which is forgotten by and by.
    fn usual_size_bytes(&self, group: &[Submission]) -> usize {
        let mut state = self.state();
        state.usual_size_bytes = (state.usual_size_bytes - state.usual_size_bytes / 8).max(size_bytes(group));
        state.usual_size_bytes
    }

    /// The leader and those who wait, as many as one root can well hold; and where the others are told.
    fn gather(
        &self,
        own: Submission,
        max_size_bytes: usize,
    ) -> (Vec<Submission>, Vec<oneshot::Sender<Reply>>) {
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
        (group, replies)
    }
}

fn size_bytes(group: &[Submission]) -> usize {
    group.iter().map(Submission::size_bytes).sum()
}

/// Tells those who are not in the root to look for themselves, at once: what becomes of the root is nothing to
/// them. Returns those who are.
fn turn_away(replies: Vec<oneshot::Sender<Reply>>, admitted: &[bool]) -> Vec<oneshot::Sender<Reply>> {
    let mut staying = Vec::with_capacity(replies.len());
    for (reply, is_in) in replies.into_iter().zip(admitted) {
        if *is_in {
            staying.push(reply);
        } else {
            // Who no longer listens has given up on an answer.
            let _ = reply.send(Reply::Verdict(Ok(TRY_AGAIN)));
        }
    }
    staying
}

/// Tells each member but the leader, and hands the verdict on to that one.
fn tell(replies: Vec<oneshot::Sender<Reply>>, verdict: Result<Verdict, Failure>) -> Result<Verdict, Failure> {
    for reply in replies {
        // Who no longer listens has given up on an answer.
        let _ = reply.send(Reply::Verdict(verdict.clone()));
    }
    verdict
}

/// The same for a failure. A leader whose time has run out did not try as long as the others may: they begin again.
fn tell_failure(
    replies: Vec<oneshot::Sender<Reply>>,
    failure: Failure,
    ran_out: bool,
) -> Result<Verdict, Failure> {
    let may_pass = matches!(&failure, Failure::Certain(_, Error::Storage { retryable: true, .. }));
    if !(ran_out && may_pass) {
        return tell(replies, Err(failure));
    }
    // What it returns is for the leader, who is told why it failed.
    let _ = tell(replies, Ok(TRY_AGAIN));
    Err(failure)
}

/// Held by the one who commits; passed on when dropped, however that comes about.
struct Leadership<'a>(&'a CommitQueue);

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

/// The place of one who waits; nobody is left behind it when it is dropped.
struct Place<'a> {
    queue: &'a CommitQueue,
    number: u64,
    answer: oneshot::Receiver<Reply>,
}

/// What it means for one who waited to go.
enum Left {
    /// Nobody has taken it along, or will.
    Untouched,
    /// The answer had come already.
    Answered(Reply),
    TakenAlong,
}

impl Place<'_> {
    fn leave(&mut self) -> Left {
        let mut state = self.queue.state();
        if let Some(position) = state.waiting.iter().position(|member| member.number == self.number) {
            state.waiting.remove(position);
            return Left::Untouched;
        }
        match self.answer.try_recv() {
            Ok(Some(reply)) => Left::Answered(reply),
            Ok(None) | Err(oneshot::Canceled) => Left::TakenAlong,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Left::Answered(Reply::Lead(_)) = self.leave() {
            // It was to lead, and never learned of it: somebody else does.
            drop(Leadership(self.queue));
        }
    }
}

//! Group commit: transactions of one handle that commit at the same time share one root.
//!
//! There is no extra thread. A transaction that finds no leader becomes the leader. It takes all waiting transactions in
//! order of arrival, admits those that do not conflict with earlier ones, and creates one root for all of them. One of
//! those that arrive meanwhile leads the next group. So a lone commit has no extra cost, and many share one root.
//! A leader waits for `expected_members` if that makes the sum of all waits smaller.
//!
//! Invariants:
//! - A waiting member has written all of its files, or the root holds them (`inline_definitions`). Only files of the
//!   leader may still be uploading. So no member waits for files of another, or fails with them.
//! - The footprints in a group are disjoint from everything that was written since each was validated, by other versions
//!   and by earlier members. Any other member is sent back to validate again ([`Verdict::Again`]); conflicts are not
//!   decided here.
//! - Leadership passes on as soon as the root is created. Whether the root is above the expiry boundary is checked while
//!   the next group is at work; members are answered after that check.
//! - If a leader is cancelled, its group gets no answer. Each member is in doubt about the next version, begins again, and
//!   finds its id in the root if that was created.
//! - A member waits until its own deadline. If it leaves while it waits, no group takes it; if a group has taken it, it is
//!   in doubt.
//! - The state belongs to a process. A forked child begins with an empty one, without leader and members.

use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, join, select};

use super::admission::admit;
use super::expected_members::Announcement;
use super::group_queue::{GroupCommit, Leadership, Leave, Reply, Seat, TRY_AGAIN, Verdict, size_bytes};
use super::submission::Submission;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::transaction::commit::inline_definitions::max_size_bytes as inline_max_size_bytes;
use crate::transaction::commit::intent_queue::{self, Waited};
use crate::transaction::commit::publish::{Claimed, claim_for};
use crate::transaction::state::Failure;
use crate::version::Version;

impl GroupCommit {
    /// The version that the next root follows.
    pub(crate) fn tip(&self, lakehouse: &Lakehouse) -> Arc<Version> {
        let known = lakehouse.known();
        match &self.state().tip {
            Some(tip) if tip.number > known.number => tip.clone(),
            _ => known,
        }
    }

    /// Commits one transaction together with all that wait.
    pub(crate) async fn commit(
        &self,
        lakehouse: &Lakehouse,
        submission: Submission,
        announcement: Option<Announcement<'_>>,
        deadline_millis: u64,
    ) -> Result<Verdict, Failure> {
        let environment = lakehouse.environment();
        let seat = self.enter(submission, inline_max_size_bytes(&lakehouse.known().config));
        if !matches!(seat, Seat::Incomplete) {
            self.expected().joined(environment.elapsed_millis());
        }
        if let Some(announcement) = announcement {
            announcement.arrived(environment.elapsed_millis());
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
                        Leave::Untouched => return Ok(TRY_AGAIN),
                        Leave::Answered(reply) => Ok(reply),
                        Leave::Taken => Err(oneshot::Canceled),
                    },
                };
                match answer {
                    Ok(Reply::Verdict(verdict)) => return verdict,
                    Ok(Reply::Lead(submission)) => submission,
                    // The leader was cancelled, or does not answer in time.
                    Err(oneshot::Canceled) => return Err(self.unanswered(lakehouse)),
                }
            }
        };
        self.lead(lakehouse, *submission, deadline_millis).await
    }

    /// Doubt about the version after the newest known one, which a leader may have created.
    fn unanswered(&self, lakehouse: &Lakehouse) -> Failure {
        let version = self.tip(lakehouse).number + 1;
        Failure::InDoubt {
            error: Error::CommitStateUnknown(format!(
                "the leader of the group commit has not answered whether version {version} was created"
            )),
            version,
        }
    }

    /// Creates a root for `own`, which comes first in it, and for the waiting members. Returns the verdict on `own`.
    async fn lead(
        &self,
        lakehouse: &Lakehouse,
        own: Submission,
        deadline_millis: u64,
    ) -> Result<Verdict, Failure> {
        let leadership = Leadership(self);
        let environment = lakehouse.environment().as_ref();
        let ready_and_round = || {
            let state = self.state();
            (state.waiting.len() as u64 + 1, state.round_millis)
        };
        let (ready, round_millis) = ready_and_round();
        self.expected().wait_for_returning(ready, round_millis, environment).await;
        let (ready, round_millis) = ready_and_round();
        self.expected().wait_for_announced(ready, round_millis, environment).await;
        let started = environment.elapsed_millis();
        let max_size_bytes = self.tip(lakehouse).config.node_max_size_bytes / 2;
        let (mut group, replies) = self.gather(own, max_size_bytes);
        let members = group.len();
        let queue = match intent_queue::wait_in_queue(lakehouse, &group, deadline_millis).await {
            Waited::Lead(queue) => queue,
            Waited::Served => {
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
        let replies = reject(replies, &admitted[1..members]);
        let own_is_in = admitted[0];
        let own_files = group[0].pending.clone().filter(|_| own_is_in);
        let mut stays = admitted.iter();
        group.retain(|_| stays.next() == Some(&true));

        let usual_size_bytes = self.usual_size_bytes(&group);
        // Boxed: its future has some ten thousand bytes, which would be moved several times.
        let claim = Box::pin(claim_for(lakehouse, &previous, &group, usual_size_bytes, deadline_millis));
        let (claimed, others_wait) = join(claim, intent_queue::are_others_waiting(lakehouse, &group)).await;
        let verdict = match claimed {
            Ok(Claimed::Root(created)) => {
                let now = environment.elapsed_millis();
                self.expected().created(group.len() as u64, now - started, now);
                {
                    let mut state = self.state();
                    state.tip = Some(created.version.clone());
                    state.is_contended = others_wait || has_guests;
                    state.is_crowded =
                        members > 1 || !state.waiting.is_empty() || self.expected().are_expected();
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
            // The files of the other members are durable: they try without the leader.
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
}

/// Sends members that were not admitted back to validate, at once. Returns the channels of the others.
fn reject(replies: Vec<oneshot::Sender<Reply>>, admitted: &[bool]) -> Vec<oneshot::Sender<Reply>> {
    let mut staying = Vec::with_capacity(replies.len());
    for (reply, is_in) in replies.into_iter().zip(admitted) {
        if *is_in {
            staying.push(reply);
        } else {
            // A receiver that is gone does not need the answer.
            let _ = reply.send(Reply::Verdict(Ok(TRY_AGAIN)));
        }
    }
    staying
}

/// Sends the verdict to each member except the leader, and returns it.
fn tell(replies: Vec<oneshot::Sender<Reply>>, verdict: Result<Verdict, Failure>) -> Result<Verdict, Failure> {
    for reply in replies {
        // A receiver that is gone does not need the answer.
        let _ = reply.send(Reply::Verdict(verdict.clone()));
    }
    verdict
}

/// [`tell`] for a failure. If the leader's deadline has passed, the members begin again, since theirs may not have.
fn tell_failure(
    replies: Vec<oneshot::Sender<Reply>>,
    failure: Failure,
    ran_out: bool,
) -> Result<Verdict, Failure> {
    let may_pass = matches!(&failure, Failure::Certain(_, Error::Storage { retryable: true, .. }));
    if !(ran_out && may_pass) {
        return tell(replies, Err(failure));
    }
    // The leader gets the failure.
    let _ = tell(replies, Ok(TRY_AGAIN));
    Err(failure)
}

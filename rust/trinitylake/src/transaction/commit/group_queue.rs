//! Waiting transactions of one handle, and the leadership over them. `group` creates the roots.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

use super::expected_members::{Announcement, ExpectedMembers};
use super::submission::Submission;
use crate::error::Result;
use crate::transaction::state::Failure;
use crate::version::Version;
use trinitylake_base::per_process::PerProcess;

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Committed(Arc<Version>),
    /// A version was committed that this transaction has to be validated against.
    Again {
        files_are_written: bool,
    },
    /// Write all files first: the transaction may not wait in a group before.
    WriteFirst,
}

/// No root was sent, or another writer was faster.
pub(super) const TRY_AGAIN: Verdict = Verdict::Again { files_are_written: false };

pub(super) enum Reply {
    Verdict(Result<Verdict, Failure>),
    /// Become the leader.
    Lead(Box<Submission>),
}

pub(super) enum Seat<'a> {
    Lead(Box<Submission>),
    Wait(Place<'a>),
    /// There is a leader, and the files of this transaction are neither written nor small enough for the root.
    Incomplete,
}

pub(super) struct Member {
    pub(super) number: u64,
    pub(super) submission: Submission,
    pub(super) reply: oneshot::Sender<Reply>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) is_led: bool,
    pub(super) waiting: VecDeque<Member>,
    /// Number of members so far.
    pub(super) members: u64,
    /// Size of the definitions that the next root holds, of members that joined since the last group was gathered.
    pub(super) inline_size_bytes: usize,
    /// Number of transactions in the last root.
    pub(super) last_size: usize,
    /// Whether several transactions waited when the last root was created.
    pub(super) is_crowded: bool,
    /// Whether other processes commit: a race was lost, and nothing since shows that they have stopped.
    pub(super) is_contended: bool,
    /// Time that the last root took.
    pub(super) round_millis: u64,
    /// Size of recent groups: a lone commit between large groups must not flush their messages.
    pub(super) usual_size_bytes: usize,
    /// Newest root created here, perhaps not yet checked against the expiry boundary.
    pub(super) tip: Option<Arc<Version>>,
}

/// Group commit of one handle.
#[derive(Default)]
pub struct GroupCommit(PerProcess<Group>);

#[derive(Default)]
pub(super) struct Group {
    state: Mutex<State>,
    expected: ExpectedMembers,
}

impl std::fmt::Debug for GroupCommit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("GroupCommit").finish_non_exhaustive()
    }
}

impl GroupCommit {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.get().state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn expected(&self) -> &ExpectedMembers {
        &self.0.get().expected
    }

    /// Announces a transaction, if others commit at this time. It then writes its files before it joins a group: as a
    /// leader it would make all members wait for them.
    pub(crate) fn announce(&self, now_millis: u64) -> Option<Announcement<'_>> {
        let is_busy = {
            let state = self.state();
            state.is_led || state.is_crowded || state.is_contended
        };
        is_busy.then(|| self.expected().announce(now_millis))
    }

    /// Whether a root can hold the definitions of a group as large as the last one, if each has this size. Else files are
    /// written before, so that a part of the group need not wait for another root.
    pub(crate) fn has_room_for_all(&self, size_bytes: usize, max_size_bytes: usize) -> bool {
        self.state().last_size.max(1) * size_bytes <= max_size_bytes
    }

    /// Whether other processes commit at this time.
    pub(crate) fn is_contended(&self) -> bool {
        self.state().is_contended
    }

    pub(super) fn enter(&self, submission: Submission, inline_max_size_bytes: usize) -> Seat<'_> {
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

    /// Size of this group, or the decaying size of recent groups.
    pub(super) fn usual_size_bytes(&self, group: &[Submission]) -> usize {
        let mut state = self.state();
        state.usual_size_bytes = (state.usual_size_bytes - state.usual_size_bytes / 8).max(size_bytes(group));
        state.usual_size_bytes
    }

    /// The leader and the waiting members, up to the size limit of a root; and the channels for their answers.
    pub(super) fn gather(
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

pub(super) fn size_bytes(group: &[Submission]) -> usize {
    group.iter().map(Submission::size_bytes).sum()
}

/// Leadership; passed on to a waiting member when dropped.
pub(super) struct Leadership<'a>(pub(super) &'a GroupCommit);

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
pub(super) struct Place<'a> {
    pub(super) queue: &'a GroupCommit,
    pub(super) number: u64,
    pub(super) answer: oneshot::Receiver<Reply>,
}

/// Result of leaving a place.
pub(super) enum Leave {
    /// No group has taken the member, or will.
    Untouched,
    /// The answer has arrived.
    Answered(Reply),
    Taken,
}

impl Place<'_> {
    pub(super) fn leave(&mut self) -> Leave {
        let mut state = self.queue.state();
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
            // It was made the leader and has not noticed: pass on the leadership.
            drop(Leadership(self.queue));
        }
    }
}

//! Observations of the newest version and of the boundary, and their freshness.
//!
//! An expiry waits between publishing a boundary and deleting the first root below it
//! ([`wait_before_deleting::wait_for_all_looks`]). So a root cannot have been created, have expired and have been
//! deleted within less than that. An observation younger than [`wait_before_deleting::QUICK_LOOK_MILLIS`] can be relied
//! on.
//!
//! Age is measured by the clocks of this machine, which stand still in a suspended virtual machine and may be set. That
//! suffices for reading. A commit that skips the boundary check needs the clock of the store as well
//! (docs/decisions/0034).

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::wait_before_deleting;
use trinitylake_base::environment::{Environment, Moment};
use trinitylake_storage::store_clock::StoreMoment;

/// Time of an observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// By the clocks of this machine, before the request.
    pub asked: Moment,
    /// By the clock of the store, if the observation certainly held when the store answered.
    pub answered: Option<StoreMoment>,
}

impl Observation {
    /// Whether it is recent enough at the store time `now`, as far as the clocks show. Unknown store times do not exclude
    /// it.
    fn is_recent(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> bool {
        let is_apart = self.answered.zip(now).is_some_and(|(before, now)| !now.is_close_to(before));
        !is_apart && self.asked.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, environment)
    }

    /// Whether all clocks show that it is recent: required if nothing is checked again later.
    fn is_certainly_recent(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> bool {
        let is_close = self.answered.zip(now).is_some_and(|(before, now)| now.is_close_to(before));
        is_close && self.asked.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, environment)
    }
}

/// Certainty that the name of a root was never used, or that a root is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trust {
    /// Nothing is known.
    None,
    /// By the clocks of this machine.
    ByOwnClocks,
    /// By the clock of the store as well.
    Certain,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    number: u64,
    observation: Observation,
}

impl Seen {
    fn trust(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> Trust {
        match () {
            () if self.observation.is_certainly_recent(now, environment) => Trust::Certain,
            () if self.observation.is_recent(now, environment) => Trust::ByOwnClocks,
            () => Trust::None,
        }
    }
}

/// The last observations of one handle.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    /// The boundary. A version may expire at any age, so this must be recent.
    boundary: Mutex<Option<Seen>>,
    /// No version above this one existed or had existed.
    newest: Mutex<Option<Seen>>,
    hint_read: Mutex<Option<Moment>>,
    /// Store time of its last dated answer.
    heard: Mutex<Option<StoreMoment>>,
}

impl Observations {
    /// The boundary, and how certain it is at the store time `now`.
    pub fn boundary(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> Option<(u64, Trust)> {
        let seen = (*lock(&self.boundary))?;
        let trust = seen.trust(now, environment);
        (trust > Trust::None).then_some((seen.number, trust))
    }

    pub fn saw_boundary(&self, oldest: u64, observation: Observation) {
        let mut boundary = lock(&self.boundary);
        // The boundary only rises: a lower value is a late answer.
        if boundary.is_none_or(|seen| seen.number <= oldest) {
            *boundary = Some(Seen { number: oldest, observation });
        }
    }

    /// Notes that no version above `number` existed or had existed.
    pub fn saw_none_above(&self, number: u64, observation: Observation) {
        let mut newest = lock(&self.newest);
        let is_older = newest.is_some_and(|newest| newest.number > number);
        if !is_older {
            *newest = Some(Seen { number, observation });
        }
    }

    /// Whether no root of this version had been deleted when the store answered at `now`: then a root of that name is the
    /// first one, and an absent one was never created. If the version did not exist a moment before, it cannot have been
    /// created, have expired and have been deleted since.
    pub fn is_name_unused(
        &self,
        number: u64,
        now: Option<StoreMoment>,
        environment: &dyn Environment,
    ) -> Trust {
        match *lock(&self.newest) {
            Some(newest) if newest.number < number => newest.trust(now, environment),
            _ => Trust::None,
        }
    }

    /// Whether this version was the latest at most so long ago, by the clocks of this machine.
    pub fn was_latest(&self, number: u64, millis: u64, environment: &dyn Environment) -> bool {
        lock(&self.newest).is_some_and(|newest| {
            newest.number == number && newest.observation.asked.is_within(millis, environment)
        })
    }

    /// Forgets what was observed, after the boundary has risen.
    pub fn forget(&self) {
        *lock(&self.boundary) = None;
        *lock(&self.newest) = None;
    }

    /// Notes the store time of an answer.
    pub fn heard(&self, answered: Option<StoreMoment>) {
        if answered.is_some() {
            *lock(&self.heard) = answered;
        }
    }

    pub fn last_heard(&self) -> Option<StoreMoment> {
        *lock(&self.heard)
    }

    #[cfg(test)]
    pub fn held(&self) -> impl Sized {
        (lock(&self.boundary), lock(&self.newest), lock(&self.hint_read), lock(&self.heard))
    }

    #[cfg(test)]
    pub fn is_held(&self) -> bool {
        self.boundary.try_lock().is_err()
            || self.newest.try_lock().is_err()
            || self.hint_read.try_lock().is_err()
            || self.heard.try_lock().is_err()
    }

    /// Whether it is time to read the hint again; if so, it counts as read.
    pub fn reads_hint(&self, environment: &dyn Environment) -> bool {
        let mut read = lock(&self.hint_read);
        let is_due = read.is_none_or(|read| !read.is_within(HINT_LOOK_MILLIS, environment));
        if is_due {
            *read = Some(Moment::now(environment));
        }
        is_due
    }
}

/// Minimum interval of reads of the hint by an open handle.
const HINT_LOOK_MILLIS: u64 = 1000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

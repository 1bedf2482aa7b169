//! Observations of the newest version and of the boundary, and their freshness.
//!
//! An expiry waits between publishing a boundary and deleting the first root below it
//! ([`wait_before_deleting::wait_for_older_observations`]). In a shorter time, a root cannot be created, expire and be
//! deleted. Therefore an observation younger than [`wait_before_deleting::QUICK_LOOK_MILLIS`] is reliable.
//!
//! Age is measured by the clocks of this machine, which stop in a suspended virtual machine and may be set. That is
//! sufficient for reads. A commit that skips the boundary check needs the clock of the store as well
//! (docs/decisions/0034).

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::wait_before_deleting;
use trinitylake_base::environment::{Environment, Moment};
use trinitylake_storage::response_dates::StoreMoment;

/// Time of an observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// Time before the request, by the clocks of this machine.
    pub asked: Moment,
    /// Time of the answer by the clock of the store. `None` if the time is unknown, or if the observation may have been
    /// outdated by then.
    pub answered: Option<StoreMoment>,
}

impl Observation {
    /// Whether no clock shows that the observation is too old at the store time `now`. An unknown `now` shows nothing.
    fn is_recent(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> bool {
        let is_apart = self.answered.zip(now).is_some_and(|(before, now)| !now.is_close_to(before));
        !is_apart && self.asked.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, environment)
    }

    /// Whether all clocks show that the observation is recent. Required if no later check follows.
    fn is_certainly_recent(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> bool {
        let is_close = self.answered.zip(now).is_some_and(|(before, now)| now.is_close_to(before));
        is_close && self.asked.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, environment)
    }
}

/// Certainty that the name of a root was never used, or that a root is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trust {
    /// No recent observation exists.
    None,
    /// Certain according to the clocks of this machine.
    ByOwnClocks,
    /// Certain according to the clock of the store as well.
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
    /// The boundary. A version may expire at any age, so this observation must be recent.
    boundary: Mutex<Option<Seen>>,
    /// A version above which no version exists or ever existed.
    newest: Mutex<Option<Seen>>,
    hint_read: Mutex<Option<Moment>>,
    /// Time of the store in its last answer with a date.
    heard: Mutex<Option<StoreMoment>>,
}

impl Observations {
    /// Returns the last observed boundary, and how certain it is at the store time `now`.
    pub fn boundary(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> Option<(u64, Trust)> {
        let seen = (*lock(&self.boundary))?;
        let trust = seen.trust(now, environment);
        (trust > Trust::None).then_some((seen.number, trust))
    }

    pub fn saw_boundary(&self, oldest: u64, observation: Observation) {
        let mut boundary = lock(&self.boundary);
        // The boundary only rises, so a lower value is a late answer.
        if boundary.is_none_or(|seen| seen.number <= oldest) {
            *boundary = Some(Seen { number: oldest, observation });
        }
    }

    /// Records that no version above `number` exists or has ever existed.
    pub fn saw_none_above(&self, number: u64, observation: Observation) {
        let mut newest = lock(&self.newest);
        let is_older = newest.is_some_and(|newest| newest.number > number);
        if !is_older {
            *newest = Some(Seen { number, observation });
        }
    }

    /// Returns how certain it is that no root of version `number` was deleted before the store answered at `now`. It is
    /// certain if the version did not exist a moment earlier, because in so short a time it cannot be created, expire
    /// and be deleted. Then an existing root is the first one with this name, and an absent root was never created.
    pub fn is_name_unused(&self, number: u64, now: Option<StoreMoment>, environment: &dyn Environment) -> Trust {
        match *lock(&self.newest) {
            Some(newest) if newest.number < number => newest.trust(now, environment),
            _ => Trust::None,
        }
    }

    /// Whether this version was the latest at most `millis` ago, by the clocks of this machine.
    pub fn was_latest(&self, number: u64, millis: u64, environment: &dyn Environment) -> bool {
        lock(&self.newest)
            .is_some_and(|newest| newest.number == number && newest.observation.asked.is_within(millis, environment))
    }

    /// Drops all observations after the boundary has risen.
    pub fn forget(&self) {
        *lock(&self.boundary) = None;
        *lock(&self.newest) = None;
    }

    /// Records the store time of an answer.
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

    /// Whether the hint should be read again; if so, it counts as read.
    pub fn reads_hint(&self, environment: &dyn Environment) -> bool {
        let mut read = lock(&self.hint_read);
        let is_due = read.is_none_or(|read| !read.is_within(HINT_LOOK_MILLIS, environment));
        if is_due {
            *read = Some(Moment::now(environment));
        }
        is_due
    }
}

/// Minimum interval between reads of the hint by an open handle.
const HINT_LOOK_MILLIS: u64 = 1000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

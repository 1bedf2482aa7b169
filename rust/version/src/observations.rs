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

/// When something was so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// By this machine's clocks, before it was asked for.
    pub asked: Moment,
    /// By the clock of the store, if it is certain that it was so when the store answered.
    pub answered: Option<StoreMoment>,
}

impl Observation {
    /// Whether it is recent enough for an answer of the store at that moment. An unknown time of the store does not
    /// exclude it.
    fn is_recent(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> bool {
        let is_apart = self.answered.zip(now).is_some_and(|(before, now)| !now.is_close_to(before));
        !is_apart && self.asked.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, environment)
    }

    /// The same where nothing will be looked at again: only if all clocks say so.
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
    /// As far as the clocks of this machine tell.
    ByOwnClocks,
    /// The clock of the store says so, too.
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

/// The last observation.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    /// The boundary. Any version may be made to expire at once, so its age says nothing.
    boundary: Mutex<Option<Seen>>,
    /// There was no version above this one, and there had never been one.
    newest: Mutex<Option<Seen>>,
    hint_read: Mutex<Option<Moment>>,
    /// When the store answered last, by its clock, as far as this was noticed.
    heard: Mutex<Option<StoreMoment>>,
}

impl Observations {
    /// The boundary, and how far it can be trusted for something that the store answered at `now`.
    pub fn boundary(&self, now: Option<StoreMoment>, environment: &dyn Environment) -> Option<(u64, Trust)> {
        let seen = (*lock(&self.boundary))?;
        let trust = seen.trust(now, environment);
        (trust > Trust::None).then_some((seen.number, trust))
    }

    pub fn saw_boundary(&self, oldest: u64, observation: Observation) {
        let mut boundary = lock(&self.boundary);
        // It only rises: a lower value is an answer that arrived late.
        if boundary.is_none_or(|seen| seen.number <= oldest) {
            *boundary = Some(Seen { number: oldest, observation });
        }
    }

    /// There was no version above `number` then, and none that had expired.
    pub fn saw_none_above(&self, number: u64, observation: Observation) {
        let mut newest = lock(&self.newest);
        let is_older = newest.is_some_and(|newest| newest.number > number);
        if !is_older {
            *newest = Some(Seen { number, observation });
        }
    }

    /// Can the slot of a version, when the store answers at `now`, hold nothing but the first root that was ever created
    /// in it, or be free because there was none? If there was no such version a moment before, it cannot have been
    /// created, have expired and have been deleted since.
    pub fn is_slot_untouched(
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

    /// Whether this version was the latest within this time, by the clocks of this machine.
    pub fn was_latest(&self, number: u64, millis: u64, environment: &dyn Environment) -> bool {
        lock(&self.newest).is_some_and(|newest| {
            newest.number == number && newest.observation.asked.is_within(millis, environment)
        })
    }

    /// The boundary is known to have risen.
    pub fn forget(&self) {
        *lock(&self.boundary) = None;
        *lock(&self.newest) = None;
    }

    /// The store has answered, when its clock showed this.
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

    /// Whether it is time to read the hint again. Then it counts as read.
    pub fn reads_hint(&self, environment: &dyn Environment) -> bool {
        let mut read = lock(&self.hint_read);
        let is_due = read.is_none_or(|read| !read.is_within(HINT_LOOK_MILLIS, environment));
        if is_due {
            *read = Some(Moment::now(environment));
        }
        is_due
    }
}

/// An open handle reads the hint no more often than this.
const HINT_LOOK_MILLIS: u64 = 1000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

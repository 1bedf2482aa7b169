//! Search for the version that was the latest at a given time (time travel). This module decides which versions to
//! request; the library or a browser sends the requests.
//!
//! Creation times ascend with versions, so the search is a bisection. The caller answers each [`AtMoment::probe`] until
//! no probe is left. A missing version counts as older than the given time: it has expired, and a browser cannot list
//! the boundary. A tagged version below a missing version is never a result, because it may not have been the latest
//! version at the given time.

use trinitylake_base::error::{Error, Result};
use trinitylake_base::iso_8601::iso_8601;

/// A search for the newest version created at or before a given time. `T` is the caller's value for a version.
#[derive(Clone, Debug)]
pub struct AtMoment<T> {
    /// In milliseconds since 1970; negative for earlier times.
    moment_millis: i64,
    /// The first version that is neither known to be old enough nor known to have expired.
    from: u64,
    /// The version before `from`, if it exists.
    old_enough: Option<T>,
    /// All versions from this one on are younger or do not exist.
    until: u64,
    /// Creation time of version `until`, if it exists.
    younger_created_millis: Option<u64>,
}

impl<T> AtMoment<T> {
    /// Searches all versions up to `newest`.
    pub fn up_to(newest: u64, moment_millis: i64) -> AtMoment<T> {
        let until = newest.saturating_add(1);
        AtMoment { moment_millis, from: 0, old_enough: None, until, younger_created_millis: None }
    }

    /// Excludes all versions below this one, which have expired.
    pub fn expired_below(&mut self, oldest: u64) {
        if oldest > self.from {
            self.from = oldest;
            self.old_enough = None;
        }
    }

    /// The next version to request; `None` if [`AtMoment::found`] is known.
    pub fn probe(&self) -> Option<u64> {
        let undecided = self.until.checked_sub(self.from).filter(|n| *n > 0)?;
        // Probe the newest version first, because it is the result for the current time.
        let steps = if self.younger_created_millis.is_none() { undecided - 1 } else { undecided / 2 };
        Some(self.from + steps)
    }

    /// Takes the probed version and its creation time; `None` if it does not exist.
    pub fn learn(&mut self, answer: Option<(T, u64)>) {
        let Some(probe) = self.probe() else { return };
        match answer {
            Some((_, created)) if i128::from(created) > i128::from(self.moment_millis) => {
                self.until = probe;
                self.younger_created_millis = Some(created);
            }
            answer => {
                self.from = probe + 1;
                self.old_enough = answer.map(|(version, _)| version);
            }
        }
    }

    /// Returns the version, after the last probe. `VersionNotFound` if the lakehouse is younger than the given time,
    /// `VersionExpired` if the version no longer exists.
    pub fn found(self) -> Result<T> {
        if let Some(version) = self.old_enough {
            return Ok(version);
        }
        let moment = iso_8601(self.moment_millis);
        let Some(created) = self.younger_created_millis else {
            return Err(Error::VersionExpired(format!("the version of {moment} has expired")));
        };
        let (number, created) = (self.until, iso_8601(i64::try_from(created).unwrap_or(i64::MAX)));
        Err(if number == 0 {
            Error::VersionNotFound(format!("no version is as old as {moment}: the lakehouse was created at {created}"))
        } else {
            Error::VersionExpired(format!(
                "versions as old as {moment} have expired; the oldest kept is {number}, created at {created}"
            ))
        })
    }
}

#[cfg(test)]
mod tests;

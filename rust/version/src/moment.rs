//! Which version was the latest at a moment (time travel): which ones to ask for is decided here, asked elsewhere, by the
//! library and by a browser.
//!
//! Times ascend with versions, so it is found by bisection. Who searches tells the answer to each [`AtMoment::probe`], until
//! there is none. A browser cannot list what has expired, so a version that is not there any more counts as too old. One below
//! it that a name keeps is then no answer: it was not the latest at the moment.

use trinitylake_base::error::{Error, Result};
use trinitylake_base::utc::iso_8601;

/// A search for the newest version that was created at a moment or before; `T` is what who searches holds of one.
#[derive(Clone, Debug)]
pub struct AtMoment<T> {
    /// In milliseconds since 1970, or before it.
    moment_millis: i64,
    /// The first version that is not known to be old enough, or to have expired.
    from: u64,
    /// The one before it, if it is there.
    old_enough: Option<T>,
    /// All from this one on are younger, or do not exist yet.
    until: u64,
    /// When that one was created, if it exists.
    younger_created_millis: Option<u64>,
}

impl<T> AtMoment<T> {
    /// Among all versions up to the newest.
    pub fn up_to(newest: u64, moment_millis: i64) -> AtMoment<T> {
        let until = newest.saturating_add(1);
        AtMoment { moment_millis, from: 0, old_enough: None, until, younger_created_millis: None }
    }

    /// All below this version are known to have expired.
    pub fn expired_below(&mut self, oldest: u64) {
        if oldest > self.from {
            self.from = oldest;
            self.old_enough = None;
        }
    }

    /// The version to ask for next; none if [`AtMoment::found`] is known.
    pub fn probe(&self) -> Option<u64> {
        let undecided = self.until.checked_sub(self.from).filter(|n| *n > 0)?;
        // The newest first: it is the one for the present.
        let steps = if self.younger_created_millis.is_none() { undecided - 1 } else { undecided / 2 };
        Some(self.from + steps)
    }

    /// Number of the probe and its creation time; `None` if it does not exist.
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

    /// The version, once there is nothing more to ask. `VersionNotFound` if the lakehouse is younger than the moment,
    /// `VersionExpired` if the version is not there any more.
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
            Error::VersionNotFound(format!(
                "no version is as old as {moment}: the lakehouse was created at {created}"
            ))
        } else {
            Error::VersionExpired(format!(
                "versions as old as {moment} have expired; the oldest kept is {number}, created at {created}"
            ))
        })
    }
}

#[cfg(test)]
mod tests;

//! Limits of a commit: attempts and time.

use crate::config::Coordination;
use crate::environment::Environment;
use crate::error::Error;
use crate::transaction::commit::conflict::{describe, winner};
use crate::version::Version;

/// Number of versions that a late commit reads in parallel.
pub(crate) const VERSIONS_AT_ONCE: u64 = 32;

/// Limits of a commit. Further calls of the commit, after its conflicts were resolved, count as well. At least one root
/// is tried, and the answer to a request that was sent is always awaited.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    /// Number of roots to try, and number of times that conflicts are returned to the caller.
    pub max_attempts: u32,
    pub timeout_millis: u64,
    /// `None`: use the setting of the lakehouse.
    pub coordination: Option<Coordination>,
}

impl Default for CommitLimits {
    fn default() -> Self {
        CommitLimits { max_attempts: 200, timeout_millis: 120_000, coordination: None }
    }
}

/// Attempts of a commit so far, and its deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) deadline_millis: u64,
    /// Number of roots tried.
    pub(crate) attempts: u32,
    /// Number of times that conflicts were returned to the caller.
    pub(crate) redone: u32,
}

impl Effort {
    pub(crate) fn begin(limits: CommitLimits, environment: &dyn Environment) -> Effort {
        let deadline_millis = environment.elapsed_millis().saturating_add(limits.timeout_millis);
        Effort { deadline_millis, attempts: 0, redone: 0 }
    }

    pub(crate) fn is_spent(self, limits: CommitLimits, environment: &dyn Environment) -> bool {
        let has_tried = self.attempts > 0 || self.redone > 0;
        self.attempts >= limits.max_attempts.max(1)
            || self.redone > limits.max_attempts.max(1)
            || (has_tried && environment.elapsed_millis() >= self.deadline_millis)
    }

    /// Error for a commit that has reached its limits. `latest` is the newest version that this handle knows.
    pub(crate) fn limit_error(self, keys: Vec<String>, latest: &Version) -> Error {
        let how_often = match self.redone {
            0 => format!("{} attempts", self.attempts),
            redone => format!("{} attempts and {redone} rebases", self.attempts),
        };
        let why = match keys.is_empty() {
            true => "other transactions without a conflict committed first every time".into(),
            false => format!("other transactions changed {} first every time", keys.join(", ")),
        };
        let winner = winner(latest, 0);
        Error::CommitConflict {
            message: format!(
                "gave up after {how_often}: {why}, most recently {}; try again, or raise max_attempts or the timeout",
                describe(&winner)
            ),
            keys,
            winners: vec![winner],
        }
    }
}

//! The retry policy: how often and after which pauses requests are retried. `error_mapping` decides which errors allow
//! a retry.
//!
//! Work with a deadline sends its requests inside [`within`]: after the deadline no request is retried, even if the
//! policy allows it.

use std::time::Duration;

use trinitylake_base::environment::Environment;

/// Number of retries of a request, and the pauses between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first pause is 50 to 100 % of this value; each further pause is twice as long as the one before.
    pub first_pause_millis: u64,
    pub max_pause_millis: u64,
    pub max_retries: u32,
    /// Maximum time between the starts of the first and of the last attempt.
    pub budget_millis: u64,
}

impl Default for RetryPolicy {
    /// A policy that retries for about half a minute. If a store throttles for longer, more requests do not help, and
    /// the caller receives the error.
    fn default() -> Self {
        RetryPolicy { first_pause_millis: 50, max_pause_millis: 5_000, max_retries: 10, budget_millis: 60_000 }
    }
}

tokio::task_local! {
    static DEADLINE_MILLIS: u64;
}

/// Runs work with a deadline on the elapsed clock. After the deadline, each of its requests is sent once and not
/// retried. Tasks that the work spawns are not affected.
pub async fn within<T>(deadline_millis: u64, work: impl Future<Output = T>) -> T {
    DEADLINE_MILLIS.scope(deadline_millis.min(current_deadline_millis()), work).await
}

pub(crate) fn current_deadline_millis() -> u64 {
    DEADLINE_MILLIS.try_with(|millis| *millis).unwrap_or(u64::MAX)
}

impl RetryPolicy {
    /// Retries of a request that begins now.
    pub fn begin(self, environment: &dyn Environment) -> Retries<'_> {
        let deadline_millis = environment.elapsed_millis().saturating_add(self.budget_millis);
        self.ending(environment, deadline_millis)
    }

    fn ending(self, environment: &dyn Environment, deadline_millis: u64) -> Retries<'_> {
        let deadline_millis = deadline_millis.min(current_deadline_millis());
        Retries { policy: self, environment, left: self.max_retries, pause: self.first_pause_millis, deadline_millis }
    }

    /// Retries without a maximum number, until a deadline on the elapsed clock.
    pub fn until(self, environment: &dyn Environment, deadline_millis: u64) -> Retries<'_> {
        RetryPolicy { max_retries: u32::MAX, ..self }.ending(environment, deadline_millis)
    }
}

/// The retries that one request has left.
#[derive(Debug)]
pub struct Retries<'a> {
    policy: RetryPolicy,
    environment: &'a dyn Environment,
    left: u32,
    pause: u64,
    deadline_millis: u64,
}

impl Retries<'_> {
    /// Waits before the next attempt. False if no attempt is left.
    pub async fn pause(&mut self) -> bool {
        let time_left = self.deadline_millis.saturating_sub(self.environment.elapsed_millis());
        if self.left == 0 || time_left == 0 {
            return false;
        }
        self.left -= 1;
        // Random pauses, so that many clients that were refused at the same moment do not return at the same moment.
        let pause = self.pause.div_ceil(2);
        let pause = pause + self.environment.random_below(self.pause - pause + 1);
        self.environment.sleep(Duration::from_millis(pause.min(time_left))).await;
        self.pause = self.pause.saturating_mul(2).min(self.policy.max_pause_millis);
        true
    }
}

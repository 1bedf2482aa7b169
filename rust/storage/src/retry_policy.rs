//! The retry policy of all storage calls: which requests are repeated, how soon and how often.
//!
//! Work with a deadline runs its requests [`within`] it: no request is repeated after that, whatever the policy.

use std::time::Duration;

use object_store::client::HttpErrorKind;

use trinitylake_base::environment::Environment;

/// Number and pauses of retries of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first pause is half to all of this, the next ones twice as long as the one before.
    pub first_pause_millis: u64,
    pub max_pause_millis: u64,
    pub max_retries: u32,
    /// No attempt begins later than this after the first.
    pub budget_millis: u64,
}

impl Default for RetryPolicy {
    /// About half a minute. More requests do not help a store that throttles for longer, and the caller gets the error.
    fn default() -> Self {
        RetryPolicy {
            first_pause_millis: 50,
            max_pause_millis: 5_000,
            max_retries: 10,
            budget_millis: 60_000,
        }
    }
}

tokio::task_local! {
    static DEADLINE_MILLIS: u64;
}

/// Does work that is to be over at a moment on the elapsed clock: from then on no request of it is sent again. Each
/// is sent once, however late it is. What the work leaves to other tasks is not bound by this.
pub async fn within<T>(deadline_millis: u64, work: impl Future<Output = T>) -> T {
    DEADLINE_MILLIS.scope(deadline_millis.min(current_deadline_millis()), work).await
}

pub(crate) fn current_deadline_millis() -> u64 {
    DEADLINE_MILLIS.try_with(|millis| *millis).unwrap_or(u64::MAX)
}

/// Whether the answer of a store to a request is a failure that may pass, so that the request is worth sending again:
/// its HTTP status, what happened to the connection, the code of the store.
pub(crate) fn answer_is_passing(
    status: Option<u16>,
    transport: Option<HttpErrorKind>,
    code: Option<&str>,
) -> bool {
    match (status, transport) {
        (Some(status), _) => status >= 500 && status != 501 || matches!(status, 408 | 409 | 425 | 429),
        // A body that broke off is worth another try; what cannot be understood is not.
        (None, Some(kind)) => !matches!(kind, HttpErrorKind::Decode),
        (None, None) => {
            matches!(code, Some("InternalError" | "SlowDown" | "ServiceUnavailable" | "RequestTimeout"))
        }
    }
}

impl RetryPolicy {
    /// For a request that begins at this moment.
    pub fn begin(self, environment: &dyn Environment) -> Retries<'_> {
        let deadline_millis = environment.elapsed_millis().saturating_add(self.budget_millis);
        self.ending(environment, deadline_millis)
    }

    fn ending(self, environment: &dyn Environment, deadline_millis: u64) -> Retries<'_> {
        let deadline_millis = deadline_millis.min(current_deadline_millis());
        Retries {
            policy: self,
            environment,
            left: self.max_retries,
            pause: self.first_pause_millis,
            deadline_millis,
        }
    }

    /// For a question that is asked until it is answered, or until a moment on the elapsed clock.
    pub fn until(self, environment: &dyn Environment, deadline_millis: u64) -> Retries<'_> {
        RetryPolicy { max_retries: u32::MAX, ..self }.ending(environment, deadline_millis)
    }
}

/// The attempts that one request still has.
#[derive(Debug)]
pub struct Retries<'a> {
    policy: RetryPolicy,
    environment: &'a dyn Environment,
    left: u32,
    pause: u64,
    deadline_millis: u64,
}

impl Retries<'_> {
    /// Waits for the next attempt. False if there is none.
    pub async fn pause(&mut self) -> bool {
        let time_left = self.deadline_millis.saturating_sub(self.environment.elapsed_millis());
        if self.left == 0 || time_left == 0 {
            return false;
        }
        self.left -= 1;
        // Many who were refused at once shall not come back at once.
        let pause = self.pause.div_ceil(2);
        let pause = pause + self.environment.random_below(self.pause - pause + 1);
        self.environment.sleep(Duration::from_millis(pause.min(time_left))).await;
        self.pause = self.pause.saturating_mul(2).min(self.policy.max_pause_millis);
        true
    }
}

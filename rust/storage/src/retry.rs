//! The retry policy of all storage calls: which requests are repeated, how soon and how often.
//!
//! All retries are made here, so no caller needs a loop of its own. Creations are sent once: only a caller
//! that knows the content of the file can tell a second attempt from a lost race, namely
//! [`claim`](crate::claim) for files that many want to create, and [`Storage::put_unique`] for the rest.
//! Both take their pauses from this policy.
//!
//! Work with a deadline runs its requests [`within`] it: no request is repeated after that, whatever the policy.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::client::HttpErrorKind;

use super::{FileEnd, FileInParts, FileInfo, Place, PutOutcome, Step, Storage};
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};

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

/// A store whose requests are repeated as long as they may succeed.
#[derive(Debug)]
pub struct RetryingStorage {
    inner: Arc<dyn Storage>,
    environment: Arc<dyn Environment>,
}

impl RetryingStorage {
    pub fn new(inner: Arc<dyn Storage>, environment: Arc<dyn Environment>) -> RetryingStorage {
        RetryingStorage { inner, environment }
    }

    /// Creates a file that nobody races for. One that exists when it is sent for the second time is ours if it
    /// holds these bytes.
    pub async fn create(&self, path: &str, bytes: &Bytes) -> Result<PutOutcome> {
        let mut retries = self.retries();
        let mut is_in_doubt = false;
        loop {
            match self.inner.put_if_absent(path, bytes.clone()).await {
                Ok(PutOutcome::AlreadyExists) if is_in_doubt && self.get(path).await? == *bytes => {
                    return Ok(PutOutcome::Created);
                }
                Err(Error::Storage { retryable: true, .. }) if retries.pause().await => is_in_doubt = true,
                answer => return answer,
            }
        }
    }

    fn retries(&self) -> Retries<'_> {
        self.inner.retry_policy().begin(self.environment.as_ref())
    }
}

/// The answer to a request that may be sent again as long as the policy allows.
macro_rules! repeat {
    ($self:ident, $request:expr) => {{
        let mut retries = $self.retries();
        loop {
            match $request.await {
                Err(Error::Storage { retryable: true, .. }) if retries.pause().await => {}
                answer => break answer,
            }
        }
    }};
}

#[async_trait]
impl Storage for RetryingStorage {
    fn root(&self) -> &str {
        self.inner.root()
    }

    fn retry_policy(&self) -> RetryPolicy {
        self.inner.retry_policy()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        repeat!(self, self.inner.get(path))
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        repeat!(self, self.inner.get_range(path, range.clone()))
    }

    async fn get_end(&self, path: &str, max_size_bytes: u64) -> Result<FileEnd> {
        repeat!(self, self.inner.get_end(path, max_size_bytes))
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        repeat!(self, self.inner.head(path))
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.inner.put_if_absent(path, bytes).await
    }

    async fn write_ahead(&self, path: &str, bytes: Bytes) -> Result<()> {
        repeat!(self, self.inner.write_ahead(path, bytes.clone()))
    }

    async fn begin_ahead(&self, path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        repeat!(self, self.inner.begin_ahead(path))
    }

    fn hold(&self, path: &str, bytes: &Bytes) {
        self.inner.hold(path, bytes);
    }

    /// Not repeated: what a disk could not sync once may be lost, whatever it says the next time.
    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.inner.sync(paths).await
    }

    /// Best effort, as it is below: a hint that is late is worth less than the next one.
    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.inner.put_hint(path, bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        repeat!(self, self.inner.list(prefix))
    }

    async fn list_page(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<FileInfo>> {
        repeat!(self, self.inner.list_page(prefix, after, limit))
    }

    async fn walk(&self, place: &Place) -> Result<Step> {
        repeat!(self, self.inner.walk(place))
    }

    async fn copy_within(&self, source_root: &str, path: &str) -> Result<bool> {
        repeat!(self, self.inner.copy_within(source_root, path))
    }

    async fn delete(&self, path: &str) -> Result<()> {
        repeat!(self, self.inner.delete(path))
    }
}

/// A file with a name that only we can give is there before it was sent: a client that repeats requests by
/// itself has sent it, or something is wrong.
pub(super) async fn check_own<S: Storage + ?Sized>(storage: &S, path: &str, bytes: &Bytes) -> Result<()> {
    if storage.get(path).await? == *bytes {
        return Ok(());
    }
    Err(Error::corrupt(path, "a file with this unique name exists and has other content"))
}

#[cfg(test)]
mod tests;

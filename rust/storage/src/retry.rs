//! Retries of storage requests.
//!
//! This module retries all requests except creations, so that no caller needs a loop. A creation is sent once: only a
//! caller that knows the content of the file can distinguish its own earlier attempt from a file of another writer.
//! [`claim`](crate::create_readback) does so for files that several writers try to create, [`Storage::put_unique`] for
//! all other files. Both take their pauses from the store's [`RetryPolicy`].

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::retry_policy::{Retries, RetryPolicy};
use crate::storage_trait::{FileEnd, FileInParts, FileInfo, Place, PutOutcome, Step, Storage};
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};

/// A store whose failed requests are retried if they may succeed later.
#[derive(Debug)]
pub struct RetryingStorage {
    inner: Arc<dyn Storage>,
    environment: Arc<dyn Environment>,
}

impl RetryingStorage {
    pub fn new(inner: Arc<dyn Storage>, environment: Arc<dyn Environment>) -> RetryingStorage {
        RetryingStorage { inner, environment }
    }

    /// Creates a file that no other writer tries to create.
    ///
    /// If the file exists at a retry and has these bytes, an earlier attempt created it. S3 also answers 409 ("exists")
    /// while it handles another attempt of the same request; if there is no file, the request is sent again.
    pub async fn create(&self, path: &str, bytes: &Bytes) -> Result<PutOutcome> {
        let mut retries = self.retries();
        let mut is_in_doubt = false;
        loop {
            match self.inner.put_if_absent(path, bytes.clone()).await {
                Ok(PutOutcome::AlreadyExists) => match self.get(path).await {
                    Ok(found) if is_in_doubt && found == *bytes => return Ok(PutOutcome::Created),
                    Ok(_) => return Ok(PutOutcome::AlreadyExists),
                    Err(Error::FileNotFound { .. }) if retries.pause().await => is_in_doubt = true,
                    Err(error) => return Err(error),
                },
                Err(Error::Storage { retryable: true, .. }) if retries.pause().await => is_in_doubt = true,
                answer => return answer,
            }
        }
    }

    fn retries(&self) -> Retries<'_> {
        self.inner.retry_policy().begin(self.environment.as_ref())
    }
}

/// Sends a request, with as many retries as the policy allows.
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

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        repeat!(self, self.inner.write_unsynced(path, bytes.clone()))
    }

    async fn begin_unsynced(&self, path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        repeat!(self, self.inner.begin_unsynced(path))
    }

    /// A sync is not retried: after a failed fsync, the operating system may have dropped the data and still report
    /// success.
    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.inner.sync(paths).await
    }

    /// A hint is not retried, because a later hint replaces it anyway.
    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.inner.put_hint(path, bytes).await
    }

    async fn replace(&self, path: &str, before: &Bytes, after: &Bytes) -> Result<bool> {
        repeat!(self, self.inner.replace(path, before, after))
    }

    fn forget_cached(&self) {
        self.inner.forget_cached();
    }

    fn learn_collection(&self, before_millis: u64) {
        self.inner.learn_collection(before_millis);
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        repeat!(self, self.inner.list(prefix))
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

#[cfg(test)]
mod tests;

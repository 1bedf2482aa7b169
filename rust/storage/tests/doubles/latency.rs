//! A store with the latency of a remote store, so that a test on any machine shows the number of rounds.
//!
//! The delays use tokio's clock: a test with paused time measures virtual time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::response_dates::answered;
use crate::storage_trait::{FileInfo, PutOutcome, Storage};
use trinitylake_base::error::Result;

/// Latency of a store. Concurrent requests do not slow each other down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Latency of each write request: create, hint, delete.
    pub write: Duration,
    /// Latency of each read request: get, head, list, exists.
    pub read: Duration,
    /// Throughput of one connection, in each direction.
    pub bytes_per_second: u64,
}

impl Latency {
    /// Amazon S3 Standard, from a machine in the same region.
    pub const S3_STANDARD: Latency =
        Latency { write: Duration::from_millis(60), read: Duration::from_millis(20), bytes_per_second: 90_000_000 };

    /// Amazon S3 Express One Zone, from a machine in the same zone.
    pub const S3_EXPRESS: Latency =
        Latency { write: Duration::from_millis(6), read: Duration::from_millis(5), bytes_per_second: 90_000_000 };

    fn transfer(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64)
    }
}

/// A store with added latency.
#[derive(Debug)]
pub struct LatencyStorage {
    inner: Arc<dyn Storage>,
    latency: Latency,
    /// Start of the store's clock, if its answers have dates.
    clock: Option<Instant>,
}

impl LatencyStorage {
    pub fn new(inner: Arc<dyn Storage>, latency: Latency) -> Self {
        Self { inner, latency, clock: None }
    }

    /// A store whose answers have dates in whole seconds, like those of remote stores.
    pub fn dated(inner: Arc<dyn Storage>, latency: Latency) -> Self {
        Self { clock: Some(Instant::now()), ..Self::new(inner, latency) }
    }

    /// Time of the request's way to the store: half of its latency, and the transfer of its bytes.
    async fn send(&self, request: Duration, bytes: usize) {
        tokio::time::sleep(request / 2 + self.latency.transfer(bytes)).await;
    }

    /// Time of the answer's way back, also for a failure.
    async fn receive(&self, request: Duration, bytes: usize) {
        tokio::time::sleep(request / 2 + self.latency.transfer(bytes)).await;
        if let Some(clock) = self.clock {
            answered(Some(clock.elapsed().as_secs() * 1000));
        }
    }
}

#[async_trait]
impl Storage for LatencyStorage {
    fn root(&self) -> &str {
        self.inner.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.send(self.latency.read, 0).await;
        let answer = self.inner.get(path).await;
        self.receive(self.latency.read, answer.as_ref().map_or(0, Bytes::len)).await;
        answer
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.send(self.latency.read, 0).await;
        let answer = self.inner.get_range(path, range).await;
        self.receive(self.latency.read, answer.as_ref().map_or(0, Bytes::len)).await;
        answer
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.send(self.latency.read, 0).await;
        let answer = self.inner.head(path).await;
        self.receive(self.latency.read, 0).await;
        answer
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.send(self.latency.write, bytes.len()).await;
        let answer = self.inner.put_if_absent(path, bytes).await;
        self.receive(self.latency.write, 0).await;
        answer
    }

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.send(self.latency.write, bytes.len()).await;
        let answer = self.inner.write_unsynced(path, bytes).await;
        self.receive(self.latency.write, 0).await;
        answer
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.inner.sync(paths).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.send(self.latency.write, bytes.len()).await;
        let answer = self.inner.put_hint(path, bytes).await;
        self.receive(self.latency.write, 0).await;
        answer
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.send(self.latency.read, 0).await;
        let answer = self.inner.list(prefix).await;
        self.receive(self.latency.read, 0).await;
        answer
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.send(self.latency.write, 0).await;
        let answer = self.inner.delete(path).await;
        self.receive(self.latency.write, 0).await;
        answer
    }
}

#[cfg(test)]
mod tests;

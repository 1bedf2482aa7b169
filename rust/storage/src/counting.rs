//! Storage that counts its requests, by verb, and the bytes that it reads and writes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;

use crate::retry_policy::RetryPolicy;
use crate::storage_trait::{FileEnd, FileInParts, FileInfo, Place, PutOutcome, Step, Storage};
use trinitylake_base::error::Result;

/// Declares, from one list of counters, the struct of their values, the struct of atomic counters, and their names.
macro_rules! counters {
    (requests: $($request:ident),+; bytes: $($bytes:ident),+) => {
        /// Requests and bytes since the handle was created. Requests and written bytes count when they are sent, even
        /// if they fail; read bytes count when they arrive.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(pub $request: u64,)+
            $(pub $bytes: u64,)+
        }

        impl Counters {
            /// Number of requests of all verbs.
            pub fn requests(&self) -> u64 {
                0 $(+ self.$request)+
            }

            /// Difference to `earlier`, which comes from the same handle.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters {
                    $($request: self.$request - earlier.$request,)+
                    $($bytes: self.$bytes - earlier.$bytes,)+
                }
            }

            /// Returns the name and value of each counter, in a fixed order.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($request), self.$request),)+
                    $((stringify!($bytes), self.$bytes),)+
                ]
            }
        }

        #[derive(Debug, Default)]
        struct Tally {
            $($request: AtomicU64,)+
            $($bytes: AtomicU64,)+
        }

        impl Tally {
            fn read(&self) -> Counters {
                Counters {
                    $($request: self.$request.load(Ordering::Relaxed),)+
                    $($bytes: self.$bytes.load(Ordering::Relaxed),)+
                }
            }
        }
    };
}

counters! {
    requests: get, get_range, head, put_if_absent, put_hint, copy, list, delete;
    bytes: read_bytes, written_bytes
}

fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::Relaxed);
}

/// A store whose requests are counted.
#[derive(Debug)]
pub struct CountingStorage {
    inner: Arc<dyn Storage>,
    tally: Arc<Tally>,
    collected_before_millis: AtomicU64,
}

impl CountingStorage {
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        Self { inner, tally: Arc::default(), collected_before_millis: AtomicU64::new(0) }
    }

    /// Returns the time of the newest known garbage collection, which deletes older files. It is a part of cache keys
    /// in other layers.
    pub fn collected_before_millis(&self) -> u64 {
        self.collected_before_millis.load(Ordering::SeqCst)
    }

    /// Current values. Requests that run at the same time may or may not be included.
    pub fn counters(&self) -> Counters {
        self.tally.read()
    }
}

#[async_trait]
impl Storage for CountingStorage {
    fn root(&self) -> &str {
        self.inner.root()
    }

    fn retry_policy(&self) -> RetryPolicy {
        self.inner.retry_policy()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        add(&self.tally.get, 1);
        let bytes = self.inner.get(path).await?;
        add(&self.tally.read_bytes, bytes.len());
        Ok(bytes)
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        add(&self.tally.get_range, 1);
        let bytes = self.inner.get_range(path, range).await?;
        add(&self.tally.read_bytes, bytes.len());
        Ok(bytes)
    }

    /// Counts as a range read, although some stores need two requests for it.
    async fn get_end(&self, path: &str, max_size_bytes: u64) -> Result<FileEnd> {
        add(&self.tally.get_range, 1);
        let end = self.inner.get_end(path, max_size_bytes).await?;
        add(&self.tally.read_bytes, end.bytes.len());
        Ok(end)
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        add(&self.tally.head, 1);
        self.inner.head(path).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        add(&self.tally.put_if_absent, 1);
        add(&self.tally.written_bytes, bytes.len());
        self.inner.put_if_absent(path, bytes).await
    }

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        add(&self.tally.put_if_absent, 1);
        add(&self.tally.written_bytes, bytes.len());
        self.inner.write_unsynced(path, bytes).await
    }

    async fn begin_unsynced(&self, path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        let Some(file) = self.inner.begin_unsynced(path).await? else { return Ok(None) };
        add(&self.tally.put_if_absent, 1);
        Ok(Some(Box::new(CountedParts { file, tally: Arc::clone(&self.tally) })))
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.inner.sync(paths).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        add(&self.tally.put_hint, 1);
        add(&self.tally.written_bytes, bytes.len());
        self.inner.put_hint(path, bytes).await
    }

    /// Counts as a read and a write, although a store may need only one of them.
    async fn replace(&self, path: &str, before: &Bytes, after: &Bytes) -> Result<bool> {
        add(&self.tally.get, 1);
        add(&self.tally.read_bytes, before.len());
        add(&self.tally.put_hint, 1);
        add(&self.tally.written_bytes, after.len());
        self.inner.replace(path, before, after).await
    }

    fn learn_collection(&self, before_millis: u64) {
        self.collected_before_millis.fetch_max(before_millis, Ordering::SeqCst);
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        add(&self.tally.list, 1);
        self.inner.list(prefix).await
    }

    async fn walk(&self, place: &Place) -> Result<Step> {
        add(&self.tally.list, 1);
        self.inner.walk(place).await
    }

    async fn copy_within(&self, source_root: &str, path: &str) -> Result<bool> {
        add(&self.tally.copy, 1);
        self.inner.copy_within(source_root, path).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        add(&self.tally.delete, 1);
        self.inner.delete(path).await
    }
}

/// A file that is written part by part; its bytes are counted.
#[derive(Debug)]
struct CountedParts {
    file: Box<dyn FileInParts>,
    tally: Arc<Tally>,
}

impl FileInParts for CountedParts {
    fn write(&mut self, part: &[u8]) -> Result<()> {
        add(&self.tally.written_bytes, part.len());
        self.file.write(part)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.file.finish()
    }
}

#[cfg(test)]
mod tests;

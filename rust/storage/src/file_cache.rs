//! LRU cache of immutable files: each file is fetched from a remote store once.
//!
//! A name that contains a random id is used once, so its content never changes and a cached file is never stale. The
//! only exception are metadata files that an erasure of rows replaces: a garbage collection follows, and a process that
//! observes its fence forgets all cached files. Three types of files are not cached: names that another writer may use
//! again, such as `v3.metadata.json`; names by version or transaction, which begin with `_`; and nodes, which have a
//! separate cache.
//!
//! Data files and metadata files have separate shares, so that a scan of many small data files does not evict the
//! manifests that every statement needs. Each process has its own caches.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};

use crate::retry_policy::RetryPolicy;
use crate::storage_trait::{FileEnd, FileInParts, FileInfo, Place, PutOutcome, Step, Storage, checked_range};
use trinitylake_base::error::Result;
use trinitylake_base::per_process::PerProcess;

/// Size of the cache of metadata files, manifest lists, manifests and definitions.
pub const METADATA_SIZE_BYTES: u64 = 32 << 20;
/// Size of the cache of data files and delete files.
pub const DATA_SIZE_BYTES: u64 = 32 << 20;
/// Maximum size of a cached metadata file.
pub const METADATA_FILE_MAX_SIZE_BYTES: usize = 4 << 20;
pub const DATA_FILE_MAX_SIZE_BYTES: usize = 1 << 20;

const METADATA_SUFFIXES: [&str; 3] = [".binpb", ".json", ".avro"];
const DATA_SUFFIXES: [&str; 3] = [".parquet", ".orc", ".puffin"];
const ID_SIZE_BYTES: usize = 36;
/// Memory of a cached file in addition to its content.
const ENTRY_SIZE_BYTES: usize = 200;
const USUAL_FILE_SIZE_BYTES: u64 = 8 << 10;

/// Whether the name of the file contains a random id, so that its content never changes.
pub fn is_named_once(path: &str) -> bool {
    has_id(path.rsplit('/').next().unwrap_or(path))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Metadata,
    Data,
}

/// Returns the cache to which a file belongs; `None` for a file that is not cached.
fn kind(path: &str) -> Option<Kind> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    if path.starts_with('_') || !is_named_once(path) {
        None
    } else if ends(&METADATA_SUFFIXES) {
        Some(Kind::Metadata)
    } else {
        ends(&DATA_SUFFIXES).then_some(Kind::Data)
    }
}

/// Whether a name contains a UUID in its usual form.
fn has_id(name: &str) -> bool {
    // Searches from the end, where the UUID usually is.
    name.as_bytes().windows(ID_SIZE_BYTES).rev().any(|text| {
        text.iter().enumerate().all(|(i, byte)| match i {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    })
}

#[derive(Clone, Debug)]
struct MemorySize;

impl Weighter<String, Bytes> for MemorySize {
    fn weight(&self, path: &String, bytes: &Bytes) -> u64 {
        (path.len() + bytes.len() + ENTRY_SIZE_BYTES) as u64
    }
}

type FileCache = Cache<String, Bytes, MemorySize>;

struct Caches {
    metadata: FileCache,
    data: FileCache,
}

fn cache(size_bytes: u64) -> FileCache {
    let options = OptionsBuilder::new()
        .shards(1) // the size of a shard bounds that of a file
        .estimated_items_capacity((size_bytes / USUAL_FILE_SIZE_BYTES) as usize)
        .weight_capacity(size_bytes)
        .hot_allocation(0.5) // the rest is for files that are read ahead and were not asked for yet
        .build();
    match options {
        Ok(options) => Cache::with_options(options, MemorySize, Default::default(), Default::default()),
        Err(_) => Cache::with_weighter(16, size_bytes, MemorySize),
    }
}

/// A remote store with a cache of its immutable files.
#[derive(Debug)]
pub struct CachingStorage {
    inner: Arc<dyn Storage>,
    caches: PerProcess<Caches>,
    collected_before_millis: AtomicU64,
}

impl CachingStorage {
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        let caches = || Caches { metadata: cache(METADATA_SIZE_BYTES), data: cache(DATA_SIZE_BYTES) };
        CachingStorage { inner, caches: PerProcess::new(caches), collected_before_millis: AtomicU64::new(0) }
    }

    /// The store without the cache.
    pub fn inner(&self) -> &Arc<dyn Storage> {
        &self.inner
    }

    /// Memory in use, at most the sum of both shares.
    pub fn size_bytes(&self) -> u64 {
        let Caches { metadata, data } = self.caches.get();
        metadata.weight() + data.weight()
    }

    fn cache_of(&self, path: &str) -> Option<(&FileCache, usize)> {
        let caches = self.caches.get();
        Some(match kind(path)? {
            Kind::Metadata => (&caches.metadata, METADATA_FILE_MAX_SIZE_BYTES),
            Kind::Data => (&caches.data, DATA_FILE_MAX_SIZE_BYTES),
        })
    }

    fn cached(&self, path: &str) -> Option<Bytes> {
        self.cache_of(path)?.0.get(path)
    }

    fn insert(&self, path: &str, bytes: Bytes) {
        if let Some((cache, max_size_bytes)) = self.cache_of(path)
            && bytes.len() <= max_size_bytes
        {
            cache.insert(path.to_owned(), bytes);
        }
    }
}

#[async_trait]
impl Storage for CachingStorage {
    fn root(&self) -> &str {
        self.inner.root()
    }

    fn retry_policy(&self) -> RetryPolicy {
        self.inner.retry_policy()
    }

    /// Single flight: if many readers request a file at the same time, one request is sent to the store.
    async fn get(&self, path: &str) -> Result<Bytes> {
        let Some((cache, max_size_bytes)) = self.cache_of(path) else {
            return self.inner.get(path).await;
        };
        match cache.get_value_or_guard_async(path).await {
            Ok(bytes) => Ok(bytes),
            Err(place) => {
                let bytes = self.inner.get(path).await?;
                if bytes.len() <= max_size_bytes {
                    _ = place.insert(bytes.clone());
                }
                Ok(bytes)
            }
        }
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        match self.cached(path) {
            Some(bytes) => {
                let range = checked_range(path, range, bytes.len() as u64)?;
                Ok(bytes.slice(range.start as usize..range.end as usize))
            }
            None => self.inner.get_range(path, range).await,
        }
    }

    async fn get_end(&self, path: &str, max_size_bytes: u64) -> Result<FileEnd> {
        let Some((cache, cached_max_size_bytes)) = self.cache_of(path) else {
            return self.inner.get_end(path, max_size_bytes).await;
        };
        match cache.get_value_or_guard_async(path).await {
            Ok(bytes) => Ok(FileEnd::of_whole(bytes, max_size_bytes)),
            Err(place) => {
                let end = self.inner.get_end(path, max_size_bytes).await?;
                if end.is_whole() && end.bytes.len() <= cached_max_size_bytes {
                    _ = place.insert(end.bytes.clone());
                }
                Ok(end)
            }
        }
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.inner.head(path).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let outcome = self.inner.put_if_absent(path, bytes.clone()).await?;
        if outcome == PutOutcome::Created {
            self.insert(path, bytes);
        }
        Ok(outcome)
    }

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.inner.write_unsynced(path, bytes.clone()).await?;
        self.insert(path, bytes);
        Ok(())
    }

    async fn begin_unsynced(&self, path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        self.inner.begin_unsynced(path).await
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.inner.sync(paths).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.inner.put_hint(path, bytes).await
    }

    async fn replace(&self, path: &str, before: &Bytes, after: &Bytes) -> Result<bool> {
        let is_done = self.inner.replace(path, before, after).await;
        if let Some((cache, _)) = self.cache_of(path) {
            cache.remove(path);
        }
        is_done
    }

    fn forget_cached(&self) {
        let Caches { metadata, data } = self.caches.get();
        metadata.clear();
        data.clear();
    }

    fn learn_collection(&self, before_millis: u64) {
        if self.collected_before_millis.fetch_max(before_millis, Ordering::SeqCst) < before_millis {
            self.forget_cached();
        }
        self.inner.learn_collection(before_millis);
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.inner.list(prefix).await
    }

    async fn walk(&self, place: &Place) -> Result<Step> {
        self.inner.walk(place).await
    }

    async fn copy_within(&self, source_root: &str, path: &str) -> Result<bool> {
        self.inner.copy_within(source_root, path).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        if let Some((cache, _)) = self.cache_of(path) {
            cache.remove(path);
        }
        self.inner.delete(path).await
    }
}

#[cfg(test)]
mod tests;

//! A store in memory for tests of the layers above: its files can be inspected, copied and damaged.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};

use crate::response_dates::answered;
use crate::storage_trait::{FileInfo, Place, PutOutcome, Step, Storage};

/// A store in memory that lives until it is dropped, and can be copied.
#[derive(Debug, Default)]
pub struct MemoryFiles {
    files: Mutex<BTreeMap<String, (Bytes, u64)>>,
    /// Number of files written so far. Each is dated [`STEP_MILLIS`] after the one before.
    written: AtomicU64,
    /// Clock for the dates of files; without it, each file is dated one step after the one before.
    clock: Option<Arc<dyn Environment>>,
    /// Whether the store answers like a remote store, with dates.
    is_remote: bool,
    /// Whether a proxy removes the dates.
    is_undated: AtomicBool,
}

const STEP_MILLIS: u64 = 10_000;
const WALKED_AT_ONCE: usize = 1000;

impl MemoryFiles {
    pub fn shared() -> Arc<MemoryFiles> {
        Arc::new(MemoryFiles::default())
    }

    /// A store whose files are dated by the given clock.
    pub fn dated(clock: Arc<dyn Environment>) -> Arc<MemoryFiles> {
        Arc::new(MemoryFiles { clock: Some(clock), ..MemoryFiles::default() })
    }

    /// A store that looks like a remote one: each answer has the clock's time in whole seconds.
    pub fn remote(clock: Arc<dyn Environment>) -> Arc<MemoryFiles> {
        Arc::new(MemoryFiles { clock: Some(clock), is_remote: true, ..MemoryFiles::default() })
    }

    /// A new store with the same files.
    pub fn copy(&self) -> Arc<MemoryFiles> {
        Arc::new(MemoryFiles {
            files: Mutex::new(self.files().clone()),
            written: AtomicU64::new(self.written.load(Ordering::SeqCst)),
            clock: self.clock.clone(),
            is_remote: self.is_remote,
            is_undated: AtomicBool::new(self.is_undated.load(Ordering::SeqCst)),
        })
    }

    /// Sets whether the answers of a remote store have dates.
    pub fn set_dated(&self, is_dated: bool) {
        self.is_undated.store(!is_dated, Ordering::SeqCst);
    }

    pub fn paths(&self) -> Vec<String> {
        self.files().keys().cloned().collect()
    }

    pub fn has(&self, path: &str) -> bool {
        self.files().contains_key(path)
    }

    /// Writes a file, replacing an existing one.
    pub fn overwrite(&self, path: &str, bytes: impl Into<Bytes>) {
        self.files().insert(path.to_string(), (bytes.into(), self.tick()));
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, (Bytes, u64)>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files, for a request that is answered now.
    fn asked(&self) -> MutexGuard<'_, BTreeMap<String, (Bytes, u64)>> {
        if let Some(clock) = self.clock.as_ref().filter(|_| self.is_remote) {
            let is_dated = !self.is_undated.load(Ordering::SeqCst);
            answered(is_dated.then(|| clock.now_millis() / 1000 * 1000));
        }
        self.files()
    }

    fn tick(&self) -> u64 {
        let by_order = (self.written.fetch_add(1, Ordering::SeqCst) + 1) * STEP_MILLIS;
        self.clock.as_ref().map_or(by_order, |clock| clock.now_millis())
    }
}

#[async_trait]
impl Storage for MemoryFiles {
    fn root(&self) -> &str {
        if self.is_remote { "s3://memory/files/" } else { "memory://files/" }
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        let missing = || Error::FileNotFound { path: path.to_string() };
        self.asked().get(path).map(|(bytes, _)| bytes.clone()).ok_or_else(missing)
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        Ok(self.get(path).await?.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        let missing = || Error::FileNotFound { path: path.to_string() };
        let (bytes, modified_millis) = self.asked().get(path).cloned().ok_or_else(missing)?;
        Ok(FileInfo { path: path.to_string(), size_bytes: bytes.len() as u64, modified_millis })
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let mut files = self.asked();
        if files.contains_key(path) {
            return Ok(PutOutcome::AlreadyExists);
        }
        files.insert(path.to_string(), (bytes, self.tick()));
        Ok(PutOutcome::Created)
    }

    /// Like a disk: a missing file cannot be synced.
    async fn sync(&self, paths: &[String]) -> Result<()> {
        let files = self.files();
        match paths.iter().find(|path| !files.contains_key(*path)) {
            Some(missing) => Err(Error::FileNotFound { path: missing.clone() }),
            None => Ok(()),
        }
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.overwrite(path, bytes);
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let files = self.asked();
        let below = files.iter().filter(|(path, _)| path.starts_with(prefix));
        let info = |(path, (bytes, modified_millis)): (&String, &(Bytes, u64))| FileInfo {
            path: path.clone(),
            size_bytes: bytes.len() as u64,
            modified_millis: *modified_millis,
        };
        Ok(below.map(info).collect())
    }

    /// Returns a thousand files per step, like the listings of object stores.
    async fn walk(&self, place: &Place) -> Result<Step> {
        let mut files = self.list(&place.folder).await?;
        files.retain(|file| place.after.as_ref().is_none_or(|after| file.path > *after));
        let is_last = files.len() <= WALKED_AT_ONCE;
        files.truncate(WALKED_AT_ONCE);
        let last = files.last().filter(|_| !is_last);
        let places = last.map(|last| Place { folder: place.folder.clone(), after: Some(last.path.clone()) });
        Ok(Step { places: places.into_iter().collect(), files })
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.asked().remove(path);
        Ok(())
    }
}

//! Files in memory that outlive the processes of a test, and remember what was deleted. What was written ahead and not
//! synced yet does not outlive a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use trinitylake::error::{Error, Result};
use trinitylake::path::boundary_version;
use trinitylake::storage::{FileInfo, PutOutcome, Storage};

/// Each file is that much younger than the one before.
const STEP_MILLIS: u64 = 10_000;

#[derive(Clone, Debug, Default)]
struct Files {
    /// With the time of the store.
    now: BTreeMap<String, (Bytes, u64)>,
    /// The first content of every path there ever was.
    ever: BTreeMap<String, Bytes>,
    written: u64,
    /// Written ahead, and not synced.
    unsynced: BTreeSet<String>,
}

/// What becomes of a file that is not on disk when the power fails.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    Whole,
    Torn,
    None,
}

#[derive(Debug, Default)]
pub struct Store(Mutex<Files>);

impl Store {
    pub fn empty() -> Arc<Store> {
        Arc::default()
    }

    /// The same files in a store of their own.
    pub fn copy(&self) -> Arc<Store> {
        Arc::new(Store(Mutex::new(self.files().clone())))
    }

    /// Every file that ever was, and no boundary: what expired can be looked at.
    pub fn archive(&self) -> Arc<Store> {
        let ever = self.files().ever.clone();
        let now = ever.iter().filter(|(path, _)| boundary_version(path).is_none());
        let now = now.map(|(path, bytes)| (path.clone(), (bytes.clone(), 0))).collect();
        Arc::new(Store(Mutex::new(Files { now, ever, written: 0, unsynced: BTreeSet::new() })))
    }

    /// What is not on disk is lost, or some of it is there in part: the disk wrote what it liked first. `choose` says
    /// what becomes of the next one.
    pub fn lose_power(&self, mut choose: impl FnMut() -> Loss) -> usize {
        let mut files = self.files();
        let unsynced = std::mem::take(&mut files.unsynced);
        for path in &unsynced {
            match choose() {
                Loss::Whole => drop(files.now.remove(path)),
                Loss::Torn => {
                    if let Some((bytes, _)) = files.now.get_mut(path) {
                        *bytes = bytes.slice(..bytes.len() / 2);
                    }
                }
                Loss::None => {}
            }
            // Nobody may have relied on it: what is looked at later is what is left.
            match files.now.get(path).map(|(bytes, _)| bytes.clone()) {
                Some(bytes) => drop(files.ever.insert(path.clone(), bytes)),
                None => drop(files.ever.remove(path)),
            }
        }
        unsynced.len()
    }

    pub fn content(&self, path: &str) -> Option<Bytes> {
        self.files().now.get(path).map(|(bytes, _)| bytes.clone())
    }

    pub fn paths(&self) -> Vec<String> {
        self.files().now.keys().cloned().collect()
    }

    /// Puts a file there, whatever was there before.
    pub fn overwrite(&self, path: &str, bytes: Bytes) {
        self.files().put(path, bytes);
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap()
    }

    fn info(&self, path: &str) -> Option<FileInfo> {
        let files = self.files();
        let (bytes, modified_millis) = files.now.get(path)?;
        let size_bytes = bytes.len() as u64;
        Some(FileInfo { path: path.to_string(), size_bytes, modified_millis: *modified_millis })
    }
}

impl Files {
    fn put(&mut self, path: &str, bytes: Bytes) {
        self.written += 1;
        self.ever.entry(path.to_string()).or_insert_with(|| bytes.clone());
        self.now.insert(path.to_string(), (bytes, self.written * STEP_MILLIS));
    }
}

/// Waiting for a reply lets other tasks run.
async fn turn() {
    tokio::task::yield_now().await;
}

fn missing(path: &str) -> Error {
    Error::FileNotFound { path: path.to_string() }
}

#[async_trait]
impl Storage for Store {
    fn root(&self) -> &str {
        "memory://crash/"
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        turn().await;
        self.content(path).ok_or_else(|| missing(path))
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        Ok(self.get(path).await?.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        turn().await;
        self.info(path).ok_or_else(|| missing(path))
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        turn().await;
        let mut files = self.files();
        if files.now.contains_key(path) {
            return Ok(PutOutcome::AlreadyExists);
        }
        files.put(path, bytes);
        Ok(PutOutcome::Created)
    }

    async fn write_ahead(&self, path: &str, bytes: Bytes) -> Result<()> {
        let is_new = self.content(path).is_none();
        if self.put_if_absent(path, bytes.clone()).await? == PutOutcome::AlreadyExists {
            assert_eq!(self.content(path), Some(bytes), "{path} has a unique name");
        }
        // Two transactions that have the same id write the same file: it lasts already.
        if is_new {
            self.files().unsynced.insert(path.to_string());
        }
        Ok(())
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        turn().await;
        let mut files = self.files();
        for path in paths {
            if !files.now.contains_key(path) {
                return Err(missing(path));
            }
            files.unsynced.remove(path);
        }
        Ok(())
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        turn().await;
        self.overwrite(path, bytes);
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        turn().await;
        let paths = self.paths();
        Ok(paths.iter().filter(|path| path.starts_with(prefix)).filter_map(|path| self.info(path)).collect())
    }

    async fn delete(&self, path: &str) -> Result<()> {
        turn().await;
        let mut files = self.files();
        files.now.remove(path);
        files.unsynced.remove(path);
        Ok(())
    }
}

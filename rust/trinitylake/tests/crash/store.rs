//! Files in memory that survive the processes of a test, with an archive of deleted files. Files that are not synced
//! yet do not survive a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use trinitylake::error::{Error, Result};
use trinitylake::file_names::boundary_version;
use trinitylake::storage::{FileInfo, PutOutcome, Storage};

/// Difference between the dates of two successive files.
const STEP_MILLIS: u64 = 10_000;

#[derive(Clone, Debug, Default)]
struct Files {
    /// Content and store time by path.
    now: BTreeMap<String, (Bytes, u64)>,
    /// The first content of every path that ever existed.
    ever: BTreeMap<String, Bytes>,
    written: u64,
    /// Written, and not synced.
    unsynced: BTreeSet<String>,
}

/// Effect of a power cut on a file that is not synced.
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

    /// A new store with the same files.
    pub fn copy(&self) -> Arc<Store> {
        Arc::new(Store(Mutex::new(self.files().clone())))
    }

    /// A store with every file that ever existed and no boundary, so that expired versions can be read.
    pub fn archive(&self) -> Arc<Store> {
        let ever = self.files().ever.clone();
        let now = ever.iter().filter(|(path, _)| boundary_version(path).is_none());
        let now = now.map(|(path, bytes)| (path.clone(), (bytes.clone(), 0))).collect();
        Arc::new(Store(Mutex::new(Files { now, ever, written: 0, unsynced: BTreeSet::new() })))
    }

    /// Cuts the power. `choose` decides for each file that is not synced whether it is lost, torn or complete. Returns
    /// the number of these files.
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
            // No process may have relied on the lost content, so the archive takes the remaining content.
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

    /// Creates or replaces a file.
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

/// Lets other tasks run, like waiting for a reply.
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

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        turn().await;
        let mut files = self.files();
        // The file may exist: two transactions with the same id write the same file, which may be synced already, or
        // incomplete after a power cut.
        let present = files.now.get(path).map(|(present, _)| present.clone());
        if present.as_ref() != Some(&bytes) {
            assert!(present.is_none_or(|present| bytes.starts_with(&present)), "{path} has a unique name");
            files.ever.remove(path);
            files.put(path, bytes);
            files.unsynced.insert(path.to_string());
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

//! A lakehouse in a folder of the local disk.
//!
//! Invariants:
//! - A file that many may want to create appears under its name whole or not at all: it is written under a staging name
//!   in the same folder, and *linked* to its own name, which fails if the name is
//!   taken. A file system without hard links is refused, because a rename would replace the other writer's commit. A
//!   file whose name nobody else can give is written under that name; nobody looks for it before something names it
//!   (`write_ahead`).
//! - With [`Durability::Fsync`], what [`Storage::put_if_absent`] created survives a power loss: the file
//!   is synced before it is linked, its folder after, and so is every folder on the way to the root the
//!   first time that this handle writes below it (another process may have made it a moment ago).
//! - What could not be synced does not count: until a later sync of the same file's folders has succeeded,
//!   this handle neither reads the file nor says that it exists, since nobody knows what a power loss leaves.
//! - Nothing outside of the root is read or written through a symbolic link (`containment`).
//! - Listings show files only, never staging leftovers (`name#1`), symbolic links, or names that no path
//!   can have (not UTF-8, control characters).

mod containment;
mod disk_sync;
mod durable;
mod folder;
mod in_parts;
mod listing;
mod staging;
mod unsynced_files;
mod write_ahead;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::runtime::RuntimeFlavor;

use containment::Containment;
use disk_sync::DiskSync;
use folder::{Folder, is_absent};
use in_parts::FileAhead;
use staging::is_staging_name;

use crate::retry_policy::RetryPolicy;
use crate::storage::{Durability, FileInParts, FileInfo, Place, PutOutcome, Step, Storage, split_prefix};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_base::root_uri::RootUri;

/// Up to here, writing without waiting for the disk is as quick as asking another thread to.
const SMALL_FILE_SIZE_BYTES: usize = 64 << 10;

/// A disk has no bursts of load that pass within a minute. What may help is that others close files.
const RETRY_POLICY: RetryPolicy =
    RetryPolicy { first_pause_millis: 50, max_pause_millis: 500, max_retries: 10, budget_millis: 2_000 };

/// Files below one folder. Each process has its own state, since a lock of its parent may be held by a thread that a
/// forked child does not have.
#[derive(Debug)]
pub struct LocalStorage {
    root: RootUri,
    durability: Durability,
    folder: PerProcess<Arc<Folder>>,
}

impl LocalStorage {
    /// A handle on the folder, which need not exist: the first file that is written creates it.
    pub fn new(root: &RootUri, durability: Durability) -> Self {
        Self::with_sync(root, durability, DiskSync::of_this_machine())
    }

    fn with_sync(root: &RootUri, durability: Durability, sync: DiskSync) -> Self {
        let of_process = root.clone();
        let folder = move || Arc::new(Folder::new(Containment::new(&of_process), durability, sync.clone()));
        Self { root: root.clone(), durability, folder: PerProcess::new(folder) }
    }

    fn folder(&self) -> &Arc<Folder> {
        self.folder.get()
    }

    /// Runs file work where it may block: what waits for the disk. The rest is over sooner than a thread
    /// of the pool would have it, and is done by the caller.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = Arc::clone(self.folder());
        match tokio::task::spawn_blocking(move || work(&folder)).await {
            Ok(result) => result,
            Err(error) => {
                Err(Error::Storage { message: format!("a file task ended: {error}"), retryable: false })
            }
        }
    }

    /// The same on the thread of the caller, where the runtime has others for other tasks: to hand the work to
    /// another thread and back costs a lone commit more than what it writes.
    async fn blocking_here<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let flavor = tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor());
        match flavor {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| work(self.folder())),
            Ok(_) | Err(_) => self.blocking(work).await,
        }
    }
}

#[async_trait]
impl Storage for LocalStorage {
    fn root(&self) -> &str {
        self.root.as_str()
    }

    fn retry_policy(&self) -> RetryPolicy {
        RETRY_POLICY
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        if let Some(bytes) = self.folder().get_cached(path)? {
            return Ok(bytes);
        }
        let path = path.to_owned();
        self.blocking(move |folder| folder.get(&path)).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.get_range(&path, range)).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.folder().head(path)
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        if self.durability == Durability::None && bytes.len() <= SMALL_FILE_SIZE_BYTES {
            return self.folder().put_if_absent(path, &bytes);
        }
        let path = path.to_owned();
        self.blocking_here(move |folder| folder.put_if_absent(&path, &bytes)).await
    }

    async fn write_ahead(&self, path: &str, bytes: Bytes) -> Result<()> {
        if bytes.len() <= SMALL_FILE_SIZE_BYTES {
            return self.folder().write_ahead(path, &bytes);
        }
        let path = path.to_owned();
        self.blocking_here(move |folder| folder.write_ahead(&path, &bytes)).await
    }

    async fn begin_ahead(&self, path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        let begun = FileAhead::begin(self.folder(), path)?;
        Ok(begun.map(|file| Box::new(file) as Box<dyn FileInParts>))
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        if self.durability == Durability::None {
            return Ok(());
        }
        let paths = paths.to_vec();
        self.blocking_here(move |folder| folder.sync(&paths)).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.folder().put_hint(path, &bytes)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let (folder, _) = split_prefix(prefix)?;
        if is_absent_folder(&self.folder().containment.full_path(folder)) {
            return Ok(Vec::new());
        }
        let prefix = prefix.to_owned();
        self.blocking(move |folder| folder.list(&prefix)).await
    }

    async fn walk(&self, place: &Place) -> Result<Step> {
        let folder_name = place.folder.clone();
        self.blocking(move |folder| folder.walk(&folder_name)).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.delete(&path)).await
    }
}

/// Whether this is the name of a staging file, whose creation has not ended.
pub fn is_unfinished(path: &str) -> bool {
    is_staging_name(path.rsplit('/').next().unwrap_or(path))
}

fn is_absent_folder(folder: &Path) -> bool {
    matches!(folder.symlink_metadata(), Err(error) if is_absent(&error))
}

#[cfg(test)]
mod tests;

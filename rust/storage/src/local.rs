//! Files in a folder of the local disk.
//!
//! Invariants:
//! - A file that several processes may create at the same time appears under its name complete or not at all: it is
//!   written under a temporary name in the same folder and then *hard-linked* to its own name, which fails if the name is
//!   taken. A file system without hard links is refused, because a rename would replace the commit of another writer.
//! - A file with a unique name is written directly under that name (`write_unsynced`): no process reads it before another
//!   file refers to it.
//! - With [`Durability::Fsync`], a file that [`Storage::put_if_absent`] created survives a power loss: the file is
//!   synced before it is linked and its folder afterwards. When a handle first writes into a folder, it also syncs all
//!   folders above that folder up to the root, because another process may have created them without syncing them yet.
//! - If the folder entry of a new file could not be synced, this handle neither reads the file nor reports that it
//!   exists until a later sync of its folders succeeds, because a power loss may still remove the file.
//! - Nothing outside of the root is read or written through a symbolic link (`root_folder`).
//! - Listings show files only. They leave out temporary files (`name#1`), symbolic links, and names that are not valid
//!   in a path (not UTF-8, control characters).

mod deferred_sync;
mod file_operations;
mod folder_entry_sync;
mod listing;
mod multipart_writer;
mod parallel_fsync;
mod root_folder;
mod temporary_files;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::runtime::RuntimeFlavor;

use file_operations::{Folder, is_absent};
use multipart_writer::MultipartFile;
use parallel_fsync::DiskSync;
use root_folder::RootFolder;
use temporary_files::is_temporary_name;

use crate::retry_policy::RetryPolicy;
use crate::storage_trait::{Durability, FileInParts, FileInfo, Place, PutOutcome, Step, Storage, split_prefix};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_base::root_uri::RootUri;

/// Maximum size of a file that is written on the calling thread if no fsync follows. Up to this size, it takes longer
/// to hand the work to another thread than to write.
const SMALL_FILE_SIZE_BYTES: usize = 64 << 10;

/// Few and short pauses: a local disk is not throttled like a remote store. A retry mainly helps if file descriptors
/// are exhausted, until other threads have closed some.
const RETRY_POLICY: RetryPolicy =
    RetryPolicy { first_pause_millis: 50, max_pause_millis: 500, max_retries: 10, budget_millis: 2_000 };

/// Files below one folder. Each process has its own state: in a forked child, a lock that another thread of the parent
/// held would never be released.
#[derive(Debug)]
pub struct LocalStorage {
    root: RootUri,
    durability: Durability,
    folder: PerProcess<Arc<Folder>>,
}

impl LocalStorage {
    /// A handle on the folder. The folder need not exist: writing the first file creates it.
    pub fn new(root: &RootUri, durability: Durability) -> Self {
        Self::with_sync(root, durability, DiskSync::of_this_machine())
    }

    fn with_sync(root: &RootUri, durability: Durability, sync: DiskSync) -> Self {
        let of_process = root.clone();
        let folder = move || Arc::new(Folder::new(RootFolder::new(&of_process), durability, sync.clone()));
        Self { root: root.clone(), durability, folder: PerProcess::new(folder) }
    }

    fn folder(&self) -> &Arc<Folder> {
        self.folder.get()
    }

    /// Runs file work that may wait for the disk on a thread for blocking work. Other requests run on the caller's
    /// thread, because they take less time than to start such a thread.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Folder) -> Result<T> + Send + 'static) -> Result<T> {
        let folder = Arc::clone(self.folder());
        match tokio::task::spawn_blocking(move || work(&folder)).await {
            Ok(result) => result,
            Err(error) => Err(Error::Storage {
                message: format!("a task that accessed files ended unexpectedly: {error}"),
                retryable: false,
            }),
        }
    }

    /// Like [`LocalStorage::blocking`], but on the caller's thread if the runtime has other worker threads, because
    /// handing the work to another thread and back takes longer than all writes of a single commit.
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

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        if bytes.len() <= SMALL_FILE_SIZE_BYTES {
            return self.folder().write_unsynced(path, &bytes);
        }
        let path = path.to_owned();
        self.blocking_here(move |folder| folder.write_unsynced(&path, &bytes)).await
    }

    async fn begin_unsynced(&self, path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        let begun = MultipartFile::begin(self.folder(), path)?;
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

    async fn replace(&self, path: &str, before: &Bytes, after: &Bytes) -> Result<bool> {
        let (path, before, after) = (path.to_owned(), before.clone(), after.clone());
        self.blocking(move |folder| folder.replace_content(&path, &before, &after)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let (folder, _) = split_prefix(prefix)?;
        if is_absent_folder(&self.folder().root_folder.full_path(folder)) {
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

/// Whether the path is the name of a temporary file, which its writer has not finished.
pub fn is_unfinished(path: &str) -> bool {
    is_temporary_name(path.rsplit('/').next().unwrap_or(path))
}

fn is_absent_folder(folder: &Path) -> bool {
    matches!(folder.symlink_metadata(), Err(error) if is_absent(&error))
}

#[cfg(test)]
mod tests;

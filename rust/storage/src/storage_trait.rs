//! The trait [`Storage`] and the types of its arguments and results.

use std::fmt::Debug;
use std::ops::Range;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use crate::create_readback::check_own;
use crate::retry_policy::RetryPolicy;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::{Scheme, check_path};

/// Maximum number of files that are deleted at the same time.
const PARALLEL_DELETIONS: usize = 64;

/// Result of a conditional create. After an `Err` of `put_if_absent` the outcome is unknown, unless the error proves
/// that the file was not written (permission, invalid location).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    Created,
    AlreadyExists,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub path: String,
    pub size_bytes: u64,
    /// Modification time by the clock of the store.
    pub modified_millis: u64,
}

/// The last bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEnd {
    pub bytes: Bytes,
    /// Size of the whole file.
    pub size_bytes: u64,
}

impl FileEnd {
    /// The end of a file whose whole content is known.
    pub fn of_whole(bytes: Bytes, max_size_bytes: u64) -> Self {
        let size_bytes = bytes.len() as u64;
        let start = size_bytes.saturating_sub(max_size_bytes) as usize;
        FileEnd { bytes: bytes.slice(start..), size_bytes }
    }

    /// Whether these bytes are the whole file.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.size_bytes
    }
}

/// Position of a walk through all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Empty for the root, or ending in `/`.
    pub folder: String,
    /// If set, the walk returns only files whose paths sort after this path, at any depth below the folder. If not, a
    /// store may return the subfolders as further places.
    pub after: Option<String>,
}

/// Result of one step of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub files: Vec<FileInfo>,
    pub places: Vec<Place>,
}

#[async_trait]
pub trait Storage: Send + Sync + Debug {
    /// The root URI, canonical and ending in `/`. All paths are relative to it.
    fn root(&self) -> &str;
    /// Retry policy for requests to this store. Implementations send each request once.
    fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy::default()
    }
    /// The whole file. `FileNotFound` if it does not exist.
    async fn get(&self, path: &str) -> Result<Bytes>;
    /// The bytes of a range. A range that ends after the file is cut to the file. A range that starts after the file or
    /// after its own end is an `InvalidArgument`.
    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes>;
    /// Returns the last `max_size_bytes` of a file (or the whole file if it is smaller), and the file size. Sends one
    /// request if the store supports that. `FileNotFound` if the file does not exist.
    async fn get_end(&self, path: &str, max_size_bytes: u64) -> Result<FileEnd> {
        let size_bytes = self.head(path).await?.size_bytes;
        let bytes = self.get_range(path, size_bytes.saturating_sub(max_size_bytes)..size_bytes).await?;
        Ok(FileEnd { bytes, size_bytes })
    }
    /// Size in bytes and modification time. `FileNotFound` if the file does not exist.
    async fn head(&self, path: &str) -> Result<FileInfo>;
    /// Creates the file if it does not exist. The client sends the request once and never retries it, because a retry
    /// that finds the file of its own first attempt looks like a lost race. After `AlreadyExists`, the caller must read
    /// the file (format §8): a store may give this answer while another creation is running, which may then fail.
    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome>;
    /// Creates a file with a unique name. Until [`Storage::sync`] of its path succeeds, the file may be lost, and only
    /// its writer may use it. A lost reply is harmless: if the file exists at a retry, an earlier attempt succeeded.
    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        match self.put_if_absent(path, bytes.clone()).await? {
            PutOutcome::Created => Ok(()),
            PutOutcome::AlreadyExists => check_own(self, path, &bytes).await,
        }
    }
    /// Creates a durable file with a unique name.
    async fn put_unique(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.write_unsynced(path, bytes).await?;
        self.sync(&[path.to_owned()]).await
    }
    /// Begins a file with a unique name that is written part by part; otherwise like [`Storage::write_unsynced`].
    /// `None` if the store accepts whole files only.
    async fn begin_unsynced(&self, _path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        Ok(None)
    }
    /// The durability barrier: makes these files as durable as files of [`Storage::put_if_absent`].
    async fn sync(&self, paths: &[String]) -> Result<()>;
    /// Replaces the version hint without a sync; the last write wins. Readers verify the hint.
    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()>;
    /// Replaces the content of a file, durably and atomically. Used only by an erasure of rows, for metadata files of
    /// tables (format §7). Returns false if the content is neither `before` nor `after`. If two writers replace a file
    /// at the same time, an object store refuses one of them; a local disk does not.
    async fn replace(&self, path: &str, before: &Bytes, after: &Bytes) -> Result<bool> {
        let found = self.get(path).await?;
        if found != after && found == before {
            self.put_hint(path, after.clone()).await?;
            return Ok(true);
        }
        Ok(found == after)
    }
    /// Forgets cached files.
    fn forget_cached(&self) {}
    /// Forgets cached files if this garbage collection was not known before: an erasure of rows, which replaces files,
    /// is followed by a garbage collection.
    fn learn_collection(&self, _before_millis: u64) {}
    /// Lists files by prefix, sorted by path. An empty prefix or one that ends in `/` lists all files below it, at any
    /// depth. Any other prefix is the beginning of a file name and lists only files directly in its folder, so that
    /// `_0` finds the root node files without listing the whole lakehouse. A missing folder is empty.
    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>>;
    /// Executes one step of a walk: returns some files of a place, and the remaining places. A walk returns every file
    /// that exists from its beginning to its end exactly once, including unfinished files
    /// ([`is_unfinished`](crate::is_unfinished)), which `list` omits.
    async fn walk(&self, place: &Place) -> Result<Step> {
        let mut files = self.list(&place.folder).await?;
        files.retain(|file| place.after.as_ref().is_none_or(|after| file.path > *after));
        Ok(Step { files, places: Vec::new() })
    }
    /// Copies a file from another root of the same store to the same path, without a transfer to this process. Returns
    /// false if the store cannot do that. Only for files with unique names, because it replaces an existing file.
    async fn copy_within(&self, _source_root: &str, _path: &str) -> Result<bool> {
        Ok(false)
    }
    /// Deletes the file. Succeeds if the file does not exist.
    async fn delete(&self, path: &str) -> Result<()>;
    async fn exists(&self, path: &str) -> Result<bool> {
        match self.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::FileNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A file that is written part by part. It is removed if a part cannot be written, or if the process that began it
/// drops it before it is finished.
pub trait FileInParts: Send + Debug {
    /// Appends to the file. After an error the file is gone.
    fn write(&mut self, part: &[u8]) -> Result<()>;
    /// Completes the file. As after [`Storage::write_unsynced`], the file may be lost until [`Storage::sync`] of its
    /// path succeeds.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Which failures a new file on a local disk survives. Files in object stores are always durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power loss: files and folders are synced.
    #[default]
    Fsync,
    /// A crash of the process, but not of the machine.
    None,
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "fsync" => Ok(Self::Fsync),
            "none" => Ok(Self::None),
            _ => Err(Error::InvalidArgument(format!("durability is `fsync` or `none`, not `{name}`"))),
        }
    }
}

/// Deletes files, up to 64 at the same time.
pub async fn delete_all(storage: &dyn Storage, paths: Vec<String>) -> Result<()> {
    stream::iter(paths)
        .map(|path| async move { storage.delete(&path).await })
        .buffer_unordered(PARALLEL_DELETIONS)
        .try_collect()
        .await
}

/// Whether the storage is reached over the network.
pub fn is_remote(storage: &dyn Storage) -> bool {
    is_remote_root(storage.root())
}

fn is_remote_root(root: &str) -> bool {
    !matches!(Scheme::of_root(root), None | Some(Scheme::File | Scheme::Memory))
}

/// Restricts a range to a file of this size, by the rules of [`Storage::get_range`].
pub fn checked_range(path: &str, range: Range<u64>, size_bytes: u64) -> Result<Range<u64>> {
    let Range { start, end } = range;
    if start > end || start > size_bytes {
        return Err(Error::InvalidArgument(format!(
            "{path}: the range {start}..{end} is not inside the file, which has {size_bytes} bytes"
        )));
    }
    Ok(start..end.min(size_bytes))
}

/// Splits a list prefix into a folder (empty, or ending in `/`) and the beginning of a file name.
pub(crate) fn split_prefix(prefix: &str) -> Result<(&str, &str)> {
    let (folder, name) = match prefix.rfind('/') {
        Some(end) => prefix.split_at(end + 1),
        None => ("", prefix),
    };
    if let Some(folder) = folder.strip_suffix('/') {
        check_path(folder)?;
    }
    Ok((folder, name))
}

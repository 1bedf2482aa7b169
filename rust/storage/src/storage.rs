//! The trait [`Storage`], and the values that its methods take and return.

use std::fmt::Debug;
use std::ops::Range;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;

use crate::retry_policy::RetryPolicy;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::{Scheme, check_path};

/// What a conditional create found. An `Err` of `put_if_absent` says that the outcome is not known,
/// unless its kind excludes that the file was written (permission, invalid location).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    Created,
    AlreadyExists,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub path: String,
    pub size_bytes: u64,
    /// The store's own clock.
    pub modified_millis: u64,
}

/// The last bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEnd {
    pub bytes: Bytes,
    /// Of the whole file.
    pub size_bytes: u64,
}

impl FileEnd {
    /// The end of a file of which all is at hand.
    pub fn of_whole(bytes: Bytes, max_size_bytes: u64) -> Self {
        let size_bytes = bytes.len() as u64;
        let start = size_bytes.saturating_sub(max_size_bytes) as usize;
        FileEnd { bytes: bytes.slice(start..), size_bytes }
    }

    /// Whether that is all of the file.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.size_bytes
    }
}

/// Position of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Empty for the root, or ending in `/`.
    pub folder: String,
    /// Those at any depth below the folder whose paths come after this one. Without it, a store may take the folder
    /// apart.
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
    /// The root URI, canonical and with a `/` at its end: what every path is relative to.
    fn root(&self) -> &str;
    /// Retry policy for requests to this store. Implementations send each request once.
    fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy::default()
    }
    /// The whole file. `FileNotFound` if it is not there.
    async fn get(&self, path: &str) -> Result<Bytes>;
    /// The bytes of the range. An end behind the file is cut to the file; a start behind it, or behind
    /// the end of the range, is an `InvalidArgument`.
    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes>;
    /// The last bytes of a file, all of it if it has no more than that, and its size: what leads to the rest of a
    /// Parquet file, in one request where the store has one for it. `FileNotFound` if it is not there.
    async fn get_end(&self, path: &str, max_size_bytes: u64) -> Result<FileEnd> {
        let size_bytes = self.head(path).await?.size_bytes;
        let bytes = self.get_range(path, size_bytes.saturating_sub(max_size_bytes)..size_bytes).await?;
        Ok(FileEnd { bytes, size_bytes })
    }
    /// Size in bytes and modification time. `FileNotFound` if it is not there.
    async fn head(&self, path: &str) -> Result<FileInfo>;
    /// Creates the file if it does not exist. Sent once and never retried by the client, since a retry that finds its
    /// own first attempt looks like a lost race. After `AlreadyExists` a writer reads the file (format §8): a store may
    /// also answer so while another creation is under way that then fails.
    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome>;
    /// Creates a file with a unique name. It may be lost, and only its writer may rely on it, until [`Storage::sync`] of
    /// its path succeeds. A lost reply does no harm: "exists" on a later attempt means that an earlier one arrived.
    async fn write_ahead(&self, path: &str, bytes: Bytes) -> Result<()> {
        match self.put_if_absent(path, bytes.clone()).await? {
            PutOutcome::Created => Ok(()),
            PutOutcome::AlreadyExists => check_own(self, path, &bytes).await,
        }
    }
    /// Creates a durable file with a unique name.
    async fn put_unique(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.write_ahead(path, bytes).await?;
        self.sync(&[path.to_owned()]).await
    }
    /// Begins a file with a unique name that is written part by part, as [`Storage::write_ahead`] writes a whole one.
    /// `None` if the store accepts whole files only.
    async fn begin_ahead(&self, _path: &str) -> Result<Option<Box<dyn FileInParts>>> {
        Ok(None)
    }
    /// The durability barrier: files that were written ahead survive from now on what an acknowledged creation survives.
    async fn sync(&self, paths: &[String]) -> Result<()>;
    /// Replaces the version hint, which readers verify: the last write wins, without a sync.
    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()>;
    /// Files, sorted by path. Empty, or ending in `/`: every file below, at any depth. Anything else is
    /// the start of a file name: the files directly in that folder whose names start with it, so that
    /// `_0` finds the root node files without a walk through the lakehouse. A folder that does not
    /// exist is empty.
    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>>;
    /// A step of a walk through all files of a place: some of them, and the places that are left of it. A walk meets every
    /// file once that exists from its beginning to its end; also files of creations that never ended
    /// ([`is_unfinished`](crate::is_unfinished)), which no list shows.
    async fn walk(&self, place: &Place) -> Result<Step> {
        let mut files = self.list(&place.folder).await?;
        files.retain(|file| place.after.as_ref().is_none_or(|after| file.path > *after));
        Ok(Step { files, places: Vec::new() })
    }
    /// Copies a file from another root of the same store to the same path, inside the store. False if the store cannot.
    /// It replaces an existing file, so it is for files with unique names only.
    async fn copy_within(&self, _source_root: &str, _path: &str) -> Result<bool> {
        Ok(false)
    }
    /// Removes the file; one that is absent already is fine.
    async fn delete(&self, path: &str) -> Result<()>;
    /// Whether the file exists.
    async fn exists(&self, path: &str) -> Result<bool> {
        match self.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::FileNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A file on its way, part by part. Nothing of it is left if a part could not be written, or if it is dropped before its
/// end by the process that began it.
pub trait FileInParts: Send + Debug {
    /// Adds to the end of the file. An error is the last answer.
    fn write(&mut self, part: &[u8]) -> Result<()>;
    /// All of it is there, as after [`Storage::write_ahead`]: it may be lost until [`Storage::sync`] says that it lasts.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Durability of an acknowledged file on a local disk. Object stores are always durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power loss: files and folders are synced.
    #[default]
    Fsync,
    /// The death of the process, not of the machine.
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

/// Whether the storage is reached over the network.
pub fn is_remote(storage: &dyn Storage) -> bool {
    is_remote_root(storage.root())
}

fn is_remote_root(root: &str) -> bool {
    !matches!(Scheme::of_root(root), None | Some(Scheme::File | Scheme::Memory))
}

/// The range within a file of that size, as [`Storage::get_range`] defines it.
pub fn checked_range(path: &str, range: Range<u64>, size_bytes: u64) -> Result<Range<u64>> {
    let Range { start, end } = range;
    if start > end || start > size_bytes {
        return Err(Error::InvalidArgument(format!(
            "{path}: the range {start}..{end} does not lie in the file, which has {size_bytes} bytes"
        )));
    }
    Ok(start..end.min(size_bytes))
}

/// The folder (empty, or ending in `/`) and the start of a file name that a list prefix stands for.
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

/// Compares a file that exists with the bytes that were sent under its name, which no other writer uses.
///
/// Equal bytes are ours: a client repeats requests. S3 also answers that a file exists while it handles another attempt of
/// the same request (409); without a file the request has to be sent again.
pub(crate) async fn check_own<S: Storage + ?Sized>(storage: &S, path: &str, bytes: &Bytes) -> Result<()> {
    match storage.get(path).await {
        Ok(found) if found == *bytes => Ok(()),
        Ok(_) => Err(Error::corrupt(path, "a file with this unique name exists and has other content")),
        Err(Error::FileNotFound { .. }) => Err(Error::Storage {
            message: format!("{path}: the store says that the file exists and does not have it"),
            retryable: true,
        }),
        Err(error) => Err(error),
    }
}

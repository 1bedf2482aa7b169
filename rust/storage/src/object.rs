//! Files in an object store: S3, Google Cloud Storage, Azure, or the memory of this process.
//!
//! The client sends each request once. The module `retry` retries requests of all stores.

mod client_builder;
pub mod options;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::ready;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};

use client_builder::{Client, Connection};
use options::Settings;

use crate::error_mapping::Request;
use crate::reachability::Reach;
use crate::retry_policy::RetryPolicy;
use crate::secrets::Secrets;
use crate::storage_trait::{FileEnd, FileInfo, Place, PutOutcome, Step, Storage, checked_range, split_prefix};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_base::root_uri::{RootUri, Scheme, check_path};

/// Maximum number of files per step of a walk: as many as stores return in one page of a listing.
const WALKED_AT_ONCE: usize = 1000;

/// Files below a prefix of one bucket.
pub struct ObjectStorage {
    root: RootUri,
    client: Client,
    retry_policy: RetryPolicy,
    secrets: Secrets,
    reach: Arc<Reach>,
}

/// `Debug` is not derived, because it would print the client's credentials.
impl std::fmt::Debug for ObjectStorage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ObjectStorage").field("root", &self.root.as_str()).finish_non_exhaustive()
    }
}

impl ObjectStorage {
    /// Opens the in-memory store with the name of `root`. All handles with the same name in this process share its
    /// files, which exist until the process ends.
    pub fn memory(root: &RootUri) -> Self {
        static MEMORIES: LazyLock<Mutex<HashMap<String, Arc<InMemory>>>> = LazyLock::new(Mutex::default);
        let name = root.bucket().to_owned();
        let memory = move || {
            let mut memories = MEMORIES.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(memories.entry(name.clone()).or_default().clone() as Arc<dyn ObjectStore>)
        };
        Self {
            root: root.clone(),
            client: PerProcess::new(memory),
            retry_policy: RetryPolicy::default(),
            secrets: Secrets::default(),
            reach: Arc::default(),
        }
    }

    /// Connects to a remote store. `settings` are its storage options, completed from the environment variables.
    pub(crate) fn connect(root: &RootUri, settings: Settings) -> Result<Self> {
        let Connection { client, retry_policy, secrets, reach } = client_builder::client(root, settings)?;
        Ok(Self { root: root.clone(), client, retry_policy, secrets, reach })
    }

    fn store(&self) -> Result<&Arc<dyn ObjectStore>> {
        self.client.get().as_ref().map_err(Error::clone)
    }

    /// Returns the object key of a path: the root's prefix and the path, without encoding.
    fn key(&self, path: &str) -> Result<Key> {
        check_path(path)?;
        parse_key(&format!("{}{path}", self.root.prefix()))
    }

    /// Directory buckets of S3 do not list their objects in the order of their keys.
    fn lists_in_order(&self) -> bool {
        !self.root.bucket().ends_with("--x-s3")
    }

    fn failure(&self, verb: &'static str, path: &str, error: &object_store::Error) -> Error {
        match (Request { verb, uri: &self.root.join(path), path }).store_failure(error, &self.secrets) {
            Error::Storage { message, .. } if self.reach.is_unreachable() => Error::Storage {
                message: self.secrets.redact(&self.reach.message(&self.root, &message)),
                retryable: false,
            },
            error => error,
        }
    }

    /// Returns `None` for an object that is not below the root.
    fn file_info(&self, object: &ObjectMeta) -> Option<FileInfo> {
        let path = object.location.as_ref().strip_prefix(self.root.prefix())?;
        Some(FileInfo {
            path: path.to_owned(),
            size_bytes: object.size,
            modified_millis: object.last_modified.timestamp_millis().max(0) as u64,
        })
    }
}

#[async_trait]
impl Storage for ObjectStorage {
    fn root(&self) -> &str {
        self.root.as_str()
    }

    fn retry_policy(&self) -> RetryPolicy {
        self.retry_policy
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        let key = self.key(path)?;
        let failure = |error| self.failure("read", path, &error);
        self.store()?.get(&key).await.map_err(failure)?.bytes().await.map_err(failure)
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let key = self.key(path)?;
        if range.is_empty() {
            // No store serves an empty range.
            checked_range(path, range, self.head(path).await?.size_bytes)?;
            return Ok(Bytes::new());
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let answer = match self.store()?.get_opts(&key, options).await {
            Ok(answer) => answer.bytes().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(bytes) => Ok(bytes),
            Err(error @ object_store::Error::Generic { .. }) => {
                // Stores report a start after the end of the file in different ways, so the file size decides.
                let size_bytes = self.head(path).await?.size_bytes;
                if checked_range(path, range, size_bytes)?.is_empty() {
                    return Ok(Bytes::new());
                }
                Err(self.failure("read", path, &error))
            }
            Err(error) => Err(self.failure("read", path, &error)),
        }
    }

    async fn get_end(&self, path: &str, max_size_bytes: u64) -> Result<FileEnd> {
        let key = self.key(path)?;
        // Azure does not support suffix ranges, so request the start of the file, which is all of a small file.
        let range = match self.root.scheme() {
            Scheme::Azure => GetRange::Bounded(0..max_size_bytes),
            _ => GetRange::Suffix(max_size_bytes),
        };
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let (start, size_bytes, bytes) = match self.store()?.get_opts(&key, options).await {
            Ok(answer) => {
                let (start, size_bytes) = (answer.range.start, answer.meta.size);
                let bytes = answer.bytes().await.map_err(|error| self.failure("read", path, &error))?;
                (start, size_bytes, bytes)
            }
            // Stores refuse every range of an empty file.
            Err(error @ object_store::Error::Generic { .. }) => {
                if self.head(path).await?.size_bytes > 0 {
                    return Err(self.failure("read", path, &error));
                }
                (0, 0, Bytes::new())
            }
            Err(error) => return Err(self.failure("read", path, &error)),
        };
        if start + bytes.len() as u64 == size_bytes {
            return Ok(FileEnd { bytes, size_bytes });
        }
        let range = size_bytes.saturating_sub(max_size_bytes)..size_bytes;
        Ok(FileEnd { bytes: self.get_range(path, range).await?, size_bytes })
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        let key = self.key(path)?;
        let object = self.store()?.head(&key).await.map_err(|error| self.failure("read", path, &error))?;
        self.file_info(&object).ok_or_else(|| Error::FileNotFound { path: path.to_owned() })
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        use object_store::Error as Store;
        let key = self.key(path)?;
        match self.store()?.put_opts(&key, PutPayload::from_bytes(bytes), PutMode::Create.into()).await {
            Ok(_) => Ok(PutOutcome::Created),
            Err(Store::AlreadyExists { .. } | Store::Precondition { .. } | Store::NotModified { .. }) => {
                Ok(PutOutcome::AlreadyExists)
            }
            Err(error) => Err(self.failure("create", path, &error)),
        }
    }

    async fn sync(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        let key = self.key(path)?;
        let put = self.store()?.put(&key, PutPayload::from_bytes(bytes)).await;
        put.map(|_| ()).map_err(|error| self.failure("write", path, &error))
    }

    /// The request names the version of the object that was read, so it cannot undo a replacement by another writer,
    /// even if the store executes it late.
    async fn replace(&self, path: &str, before: &Bytes, after: &Bytes) -> Result<bool> {
        use object_store::Error as Store;
        let key = self.key(path)?;
        let read = |error| self.failure("read", path, &error);
        let answer = self.store()?.get(&key).await.map_err(read)?;
        let version = UpdateVersion { e_tag: answer.meta.e_tag.clone(), version: answer.meta.version.clone() };
        let found = answer.bytes().await.map_err(read)?;
        if found != before || found == after {
            return Ok(found == after);
        }
        match self.store()?.put_opts(&key, after.clone().into(), PutMode::Update(version).into()).await {
            Ok(_) => Ok(true),
            Err(Store::AlreadyExists { .. } | Store::Precondition { .. } | Store::NotModified { .. }) => {
                Ok(self.get(path).await? == after)
            }
            Err(error) => Err(self.failure("replace", path, &error)),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let (folder, name) = split_prefix(prefix)?;
        let folder_key = format!("{}{folder}", self.root.prefix());
        let folder_key = match folder_key.trim_end_matches('/') {
            "" => None,
            key => Some(parse_key(key)?),
        };
        // `list` takes whole path segments only, so a prefix of a file name is matched among the files of its folder.
        let objects = if name.is_empty() {
            self.store()?.list(folder_key.as_ref()).try_collect().await
        } else {
            self.store()?.list_with_delimiter(folder_key.as_ref()).await.map(|answer| answer.objects)
        };
        let objects: Vec<ObjectMeta> = objects.map_err(|error| self.failure("list", prefix, &error))?;
        let mut files: Vec<_> = objects.iter().filter_map(|object| self.file_info(object)).collect();
        files.retain(|file| file.path.starts_with(prefix));
        files.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        Ok(files)
    }

    /// The first step returns the folders of the root as places, so that they are walked at the same time. Each folder
    /// is listed page by page.
    async fn walk(&self, place: &Place) -> Result<Step> {
        let failure = |error| self.failure("list", &place.folder, &error);
        if place.folder.is_empty() {
            let root = match self.root.prefix().trim_end_matches('/') {
                "" => None,
                key => Some(parse_key(key)?),
            };
            let found = self.store()?.list_with_delimiter(root.as_ref()).await.map_err(failure)?;
            let folder = |key: &Key| {
                let below = key.as_ref().strip_prefix(self.root.prefix())?;
                Some(Place { folder: format!("{}/", below.trim_end_matches('/')), after: None })
            };
            return Ok(Step {
                files: found.objects.iter().filter_map(|object| self.file_info(object)).collect(),
                places: found.common_prefixes.iter().filter_map(folder).collect(),
            });
        }
        if !self.lists_in_order() {
            let mut files = self.list(&place.folder).await?;
            files.retain(|file| place.after.as_ref().is_none_or(|after| file.path > *after));
            return Ok(Step { files, places: Vec::new() });
        }
        let folder = place.folder.trim_end_matches('/');
        // The folder's own name sorts before all paths in it.
        let after = place.after.as_deref().unwrap_or(folder);
        let objects = self.store()?.list_with_offset(Some(&self.key(folder)?), &self.key(after)?);
        // Some S3-compatible stores ignore the offset.
        let is_after =
            |object: &ObjectMeta| ready(self.file_info(object).is_some_and(|file| file.path.as_str() > after));
        let page = objects.try_filter(is_after).take(WALKED_AT_ONCE);
        let objects: Vec<ObjectMeta> = page.try_collect().await.map_err(failure)?;
        let mut files: Vec<_> = objects.iter().filter_map(|object| self.file_info(object)).collect();
        files.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        let rest = files.last().filter(|_| files.len() == WALKED_AT_ONCE);
        let places = rest.map(|last| Place { folder: place.folder.clone(), after: Some(last.path.clone()) });
        Ok(Step { places: places.into_iter().collect(), files })
    }

    async fn copy_within(&self, source_root: &str, path: &str) -> Result<bool> {
        let source = RootUri::parse_literally(source_root)?;
        if source.scheme() != self.root.scheme() || source.bucket() != self.root.bucket() {
            return Ok(false);
        }
        check_path(path)?;
        let from = parse_key(&format!("{}{path}", source.prefix()))?;
        // If the store does not support or denies the copy, the caller copies the bytes, which may report the error.
        Ok(self.store()?.copy(&from, &self.key(path)?).await.is_ok())
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let key = self.key(path)?;
        match self.store()?.delete(&key).await {
            Ok(()) => Ok(()),
            Err(error) => match self.failure("delete", path, &error) {
                Error::FileNotFound { .. } => Ok(()),
                error => Err(error),
            },
        }
    }
}

fn parse_key(key: &str) -> Result<Key> {
    // `check_path` has accepted the path, so this should not fail; if it does, return an error instead of a panic.
    Key::parse(key).map_err(|error| Error::InvalidLocation(format!("`{key}` cannot be an object key: {error}")))
}

#[cfg(test)]
mod tests;

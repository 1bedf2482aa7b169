//! A lakehouse in a folder of the local disk.
//!
//! Invariants:
//! - A file appears under its name whole or not at all: it is written under a staging name in the same
//!   folder and *linked* to its own name, which fails if the name is taken. A file system without hard
//!   links is refused, because a rename would replace the other writer's commit.
//! - With [`Durability::Fsync`], what [`Storage::put_if_absent`] created survives a power loss: the file
//!   is synced before it is linked, its folder after, and so is every folder on the way to the root the
//!   first time that this handle writes below it (another process may have made it a moment ago).
//! - Nothing outside of the root is read or written through a symbolic link. Folders are checked once
//!   per handle, files on every access: this stops a link that came with a copied lakehouse, not someone
//!   who swaps folders while we run.
//! - Listings show files only, never staging leftovers (`name#1`), symbolic links, or names that no path
//!   can have (not UTF-8, control characters).

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;

use super::failure::Request;
use super::staging::{Staged, is_staging_name, refuses_hard_links};
use super::{Durability, FileInfo, PutOutcome, Storage, checked_range, split_prefix};
use crate::error::{Error, Result};
use crate::location::{RootUri, check_path};

/// Folders that a handle remembers as checked; a set that is full starts anew.
const MAX_KNOWN_FOLDERS: usize = 65_536;

/// Files below one folder.
#[derive(Clone, Debug)]
pub struct LocalStorage(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    root: RootUri,
    path: PathBuf,
    durability: Durability,
    /// Where the root really is, known once it exists.
    real_root: OnceLock<PathBuf>,
    /// Relative folders that really lie below the root.
    contained: Mutex<HashSet<String>>,
    /// Relative folders whose entry in their parent is on disk.
    durable: Mutex<HashSet<String>>,
}

impl LocalStorage {
    /// A handle on the folder, which need not exist: the first file that is written creates it.
    pub fn new(root: &RootUri, durability: Durability) -> Self {
        Self(Arc::new(Folder {
            root: root.clone(),
            path: PathBuf::from(root.prefix()),
            durability,
            real_root: OnceLock::new(),
            contained: Mutex::default(),
            durable: Mutex::default(),
        }))
    }

    /// Runs file work where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || work(&folder)).await {
            Ok(result) => result,
            Err(error) => {
                Err(Error::Storage { message: format!("a file task ended: {error}"), retryable: false })
            }
        }
    }
}

#[async_trait]
impl Storage for LocalStorage {
    async fn get(&self, path: &str) -> Result<Bytes> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.get(&path)).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.get_range(&path, range)).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.head(&path)).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.put_if_absent(&path, &bytes)).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.put_hint(&path, &bytes)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let prefix = prefix.to_owned();
        self.blocking(move |folder| folder.list(&prefix)).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.blocking(move |folder| folder.delete(&path)).await
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        match self.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::FileNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Folder {
    fn get(&self, path: &str) -> Result<Bytes> {
        let (file, _) = self.look_up(path, "read")?;
        let bytes = fs::read(&file).map_err(|error| self.failure("read", path, &error))?;
        Ok(bytes.into())
    }

    fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let (file, metadata) = self.look_up(path, "read")?;
        let range = checked_range(path, range, metadata.len())?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        File::open(&file)
            .and_then(|file| file.read_exact_at(&mut bytes, range.start))
            .map_err(|error| self.failure("read", path, &error))?;
        Ok(bytes.into())
    }

    fn head(&self, path: &str) -> Result<FileInfo> {
        let (_, metadata) = self.look_up(path, "read")?;
        Ok(file_info(path.to_owned(), &metadata))
    }

    fn put_if_absent(&self, path: &str, bytes: &[u8]) -> Result<PutOutcome> {
        if self.prepare(path, self.durability)?.symlink_metadata().is_ok() {
            return Ok(PutOutcome::AlreadyExists);
        }
        let failure = |error: io::Error| self.failure("create", path, &error);
        let (file, staged) = self.stage(path, bytes, self.durability)?;
        let outcome = match fs::hard_link(&staged.path, &file) {
            Ok(()) => PutOutcome::Created,
            // A network file system may repeat a link whose reply was lost and then report its own work
            // as an error: only the file says whether it is ours.
            Err(_) if staged.is_same_file(&file) => PutOutcome::Created,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => PutOutcome::AlreadyExists,
            Err(error) if refuses_hard_links(&error) => {
                let message = format!(
                    "cannot create {}: the file system has no hard links ({error}), without which two writers \
                     could both believe that they created the same version; put the lakehouse on another disk",
                    self.root.join(path)
                );
                return Err(Error::Storage { message, retryable: false });
            }
            Err(error) => return Err(failure(error)),
        };
        drop(staged);
        if outcome == PutOutcome::Created && self.durability == Durability::Fsync {
            sync_parent(&file).map_err(failure)?;
        }
        Ok(outcome)
    }

    fn put_hint(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let (file, staged) = self.stage(path, bytes, Durability::None)?;
        fs::rename(&staged.path, &file).map_err(|error| self.failure("write", path, &error))
    }

    fn delete(&self, path: &str) -> Result<()> {
        check_path(path)?;
        let file = self.path.join(path);
        match self.check_contained(parent(path), "delete") {
            Err(Error::FileNotFound { .. }) => return Ok(()),
            checked => checked?,
        }
        match fs::remove_file(&file) {
            Ok(()) => Ok(()),
            // A folder of that name is no file; some systems answer EPERM instead of EISDIR.
            Err(_) if file.is_dir() => Ok(()),
            Err(error) => match self.failure("delete", path, &error) {
                Error::FileNotFound { .. } => Ok(()),
                error => Err(error),
            },
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let (folder, name) = split_prefix(prefix)?;
        let start = folder.trim_end_matches('/');
        let mut files = Vec::new();
        match self.check_contained(start, "list") {
            Err(Error::FileNotFound { .. }) => return Ok(files),
            checked => checked?,
        }
        let mut pending = vec![folder.to_owned()];
        while let Some(folder) = pending.pop() {
            let failure = |error: io::Error| self.failure("list", &folder, &error);
            let entries = match fs::read_dir(self.path.join(&folder)) {
                Err(error) if is_absent(&error) => continue,
                entries => entries.map_err(failure)?,
            };
            for entry in entries {
                let entry = entry.map_err(failure)?;
                let os_name = entry.file_name();
                let Some(entry_name) = os_name.to_str() else { continue };
                if !entry_name.starts_with(name)
                    || is_staging_name(entry_name)
                    || check_path(entry_name).is_err()
                {
                    continue;
                }
                let kind = entry.file_type().map_err(failure)?;
                let path = format!("{folder}{entry_name}");
                if kind.is_dir() && name.is_empty() {
                    pending.push(path + "/");
                } else if kind.is_file() {
                    match entry.metadata() {
                        Ok(metadata) => files.push(file_info(path, &metadata)),
                        // Deleted since the folder was read.
                        Err(error) if is_absent(&error) => {}
                        Err(error) => return Err(failure(error)),
                    }
                }
            }
        }
        files.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        Ok(files)
    }

    /// Where a file that is to be read really is, and what it is. Anything that is not a regular file is
    /// not there: a pipe would block, a device would never end.
    fn look_up(&self, path: &str, verb: &'static str) -> Result<(PathBuf, Metadata)> {
        check_path(path)?;
        self.check_contained(parent(path), verb).map_err(|error| match error {
            Error::FileNotFound { .. } => Error::FileNotFound { path: path.to_owned() },
            error => error,
        })?;
        let failure = |error: io::Error| self.failure(verb, path, &error);
        let mut file = self.path.join(path);
        let mut metadata = file.symlink_metadata().map_err(failure)?;
        if metadata.is_symlink() {
            file = file.canonicalize().map_err(failure)?;
            if !file.starts_with(self.real_root(verb)?) {
                return Err(self.leads_out(path));
            }
            metadata = file.metadata().map_err(failure)?;
        }
        if !metadata.is_file() {
            return Err(Error::FileNotFound { path: path.to_owned() });
        }
        Ok((file, metadata))
    }

    /// Writes the bytes next to where they belong.
    fn stage(&self, path: &str, bytes: &[u8], durability: Durability) -> Result<(PathBuf, Staged)> {
        let file = self.prepare(path, durability)?;
        let staged = match Staged::write(&file, bytes, durability) {
            // Somebody removed a folder that this handle knew: make it again.
            Err(error) if is_absent(&error) => {
                self.forget(&self.contained);
                self.forget(&self.durable);
                self.prepare(path, durability)?;
                Staged::write(&file, bytes, durability)
            }
            staged => staged,
        };
        Ok((file, staged.map_err(|error| self.failure("create", path, &error))?))
    }

    /// Makes the folders of a file that is to be written, and says where the file goes.
    fn prepare(&self, path: &str, durability: Durability) -> Result<PathBuf> {
        check_path(path)?;
        let (folder, name) = (parent(path), path.rsplit('/').next().unwrap_or(path));
        if is_staging_name(name) {
            return Err(Error::InvalidLocation(format!(
                "`{path}` cannot be written: names that end in `#` and digits mark unfinished files"
            )));
        }
        self.check_existing_ancestor(folder)?;
        match durability {
            Durability::Fsync => self.make_durable(folder),
            Durability::None if self.is_known(&self.contained, folder) => Ok(()),
            Durability::None => fs::create_dir_all(self.path.join(folder)),
        }
        .map_err(|error| self.failure("create", path, &error))?;
        self.check_contained(folder, "create")?;
        Ok(self.path.join(path))
    }

    /// No folder is made behind a link that leads out: checks the deepest folder that exists.
    fn check_existing_ancestor(&self, folder: &str) -> Result<()> {
        match self.check_contained(folder, "read") {
            Err(Error::FileNotFound { .. }) if folder.is_empty() => Ok(()),
            Err(Error::FileNotFound { .. }) => self.check_existing_ancestor(parent(folder)),
            checked => checked,
        }
    }

    /// Creates a folder and the folders above it, and syncs the entry of each in its parent.
    fn make_durable(&self, folder: &str) -> io::Result<()> {
        if self.is_known(&self.durable, folder) {
            return Ok(());
        }
        let full = self.path.join(folder);
        if folder.is_empty() {
            // The folders above the root are the user's, but those that we create must last as well.
            let mut missing = full.ancestors().take_while(|ancestor| !ancestor.exists()).collect::<Vec<_>>();
            fs::create_dir_all(&full)?;
            missing.reverse();
            missing.into_iter().try_for_each(sync_parent)?;
        } else {
            self.make_durable(parent(folder))?;
            match fs::create_dir(&full) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            sync_parent(&full)?;
        }
        self.remember(&self.durable, folder);
        Ok(())
    }

    /// Refuses a folder that a symbolic link takes out of the root.
    fn check_contained(&self, folder: &str, verb: &'static str) -> Result<()> {
        if self.is_known(&self.contained, folder) {
            return Ok(());
        }
        let real =
            self.path.join(folder).canonicalize().map_err(|error| self.failure(verb, folder, &error))?;
        if !real.starts_with(self.real_root(verb)?) {
            return Err(self.leads_out(folder));
        }
        self.remember(&self.contained, folder);
        Ok(())
    }

    fn real_root(&self, verb: &'static str) -> Result<&Path> {
        if let Some(real) = self.real_root.get() {
            return Ok(real);
        }
        let real = self.path.canonicalize().map_err(|error| self.failure(verb, "", &error))?;
        Ok(self.real_root.get_or_init(|| real))
    }

    fn leads_out(&self, path: &str) -> Error {
        Error::InvalidLocation(format!(
            "{}: a symbolic link leads out of the lakehouse; nothing outside of the root is read or written",
            self.root.join(path)
        ))
    }

    fn is_known(&self, folders: &Mutex<HashSet<String>>, folder: &str) -> bool {
        folders.lock().unwrap_or_else(PoisonError::into_inner).contains(folder)
    }

    fn remember(&self, folders: &Mutex<HashSet<String>>, folder: &str) {
        let mut folders = folders.lock().unwrap_or_else(PoisonError::into_inner);
        if folders.len() >= MAX_KNOWN_FOLDERS {
            folders.clear();
        }
        folders.insert(folder.to_owned());
    }

    fn forget(&self, folders: &Mutex<HashSet<String>>) {
        folders.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn failure(&self, verb: &'static str, path: &str, error: &io::Error) -> Error {
        Request { verb, uri: &self.root.join(path), path }.local_failure(error)
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The folder of a relative path; empty for the root.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn file_info(path: String, metadata: &Metadata) -> FileInfo {
    // A file from before 1970 has a broken clock behind it; 0 keeps it old.
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_millis = modified.map_or(0, |elapsed| elapsed.as_millis() as u64);
    FileInfo { path, size_bytes: metadata.len(), modified_millis }
}

#[cfg(test)]
mod tests;

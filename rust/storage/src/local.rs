//! A lakehouse in a folder of the local disk.
//!
//! Invariants:
//! - A file that many may want to create appears under its name whole or not at all: it is written under a staging name
//!   in the same folder and *linked* to its own name, which fails if the name is taken. A file system without hard
//!   links is refused, because a rename would replace the other writer's commit. A file whose name nobody else can give
//!   is written under that name; nobody looks for it before something names it (`write_ahead`).
//! - With [`Durability::Fsync`], what [`Storage::put_if_absent`] created survives a power loss: the file
//!   is synced before it is linked, its folder after, and so is every folder on the way to the root the
//!   first time that this handle writes below it (another process may have made it a moment ago).
//! - What could not be synced does not count: until a later sync of the same file's folders has succeeded,
//!   this handle neither reads the file nor says that it exists, since nobody knows what a power loss leaves.
//! - Nothing outside of the root is read or written through a symbolic link (`containment`).
//! - Listings show files only, never staging leftovers (`name#1`), symbolic links, or names that no path
//!   can have (not UTF-8, control characters).

mod containment;
mod write_ahead;

use std::collections::HashSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::runtime::RuntimeFlavor;

use containment::{Containment, KnownFolders, parent};
use write_ahead::Ahead;

use super::staging::{Staged, is_staging_name, refuses_hard_links};
use super::{
    Durability, FileInfo, Place, PutOutcome, RetryPolicy, Step, Storage, checked_range, split_prefix,
};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::{RootUri, check_path};

/// Up to here, writing without waiting for the disk is as quick as asking another thread to.
const SMALL_FILE_SIZE_BYTES: usize = 64 << 10;

/// A disk has no bursts of load that pass within a minute. What may help is that others close files.
const RETRY_POLICY: RetryPolicy =
    RetryPolicy { first_pause_millis: 50, max_pause_millis: 500, max_retries: 10, budget_millis: 2_000 };

/// Files below one folder.
#[derive(Clone, Debug)]
pub struct LocalStorage(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    containment: Containment,
    durability: Durability,
    /// Relative folders whose entry in their parent is on disk.
    durable: KnownFolders,
    /// Files that were created here, and whose folders could not be synced afterwards.
    unsettled: Mutex<HashSet<String>>,
    ahead: Ahead,
    sync: DiskSync,
}

/// What is to be on disk.
#[derive(Clone, Copy, Debug)]
enum SyncOf<'a> {
    File(&'a Path, &'a File),
    /// The entries of a folder.
    Folder(&'a Path),
}

/// Waits for the disk; tests make it fail, and write down what was asked for.
#[derive(Clone)]
struct DiskSync(Arc<Sync>);

type Sync = dyn Fn(SyncOf<'_>) -> io::Result<()> + Send + std::marker::Sync;

impl std::fmt::Debug for DiskSync {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DiskSync").finish_non_exhaustive()
    }
}

fn sync_to_disk(what: SyncOf<'_>) -> io::Result<()> {
    match what {
        SyncOf::File(path, file) => file
            .sync_all()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        SyncOf::Folder(folder) => File::open(folder)?.sync_all(),
    }
}

impl LocalStorage {
    /// A handle on the folder, which need not exist: the first file that is written creates it.
    pub fn new(root: &RootUri, durability: Durability) -> Self {
        Self::with_sync(root, durability, DiskSync(Arc::new(sync_to_disk)))
    }

    fn with_sync(root: &RootUri, durability: Durability, sync: DiskSync) -> Self {
        Self(Arc::new(Folder {
            containment: Containment::new(root),
            durability,
            durable: KnownFolders::default(),
            unsettled: Mutex::default(),
            ahead: Ahead::default(),
            sync,
        }))
    }

    /// Runs file work where it may block: what waits for the disk. The rest is over sooner than a thread
    /// of the pool would have it, and is done by the caller.
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

    /// The same on the thread of the caller, where the runtime has others for other tasks: to hand the work to
    /// another thread and back costs a lone commit more than what it writes.
    async fn blocking_here<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let flavor = tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor());
        match flavor {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| work(&self.0)),
            Ok(_) | Err(_) => self.blocking(work).await,
        }
    }
}

#[async_trait]
impl Storage for LocalStorage {
    fn root(&self) -> &str {
        self.0.containment.root().as_str()
    }

    fn retry_policy(&self) -> RetryPolicy {
        RETRY_POLICY
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        if let Some(bytes) = self.0.get_cached(path)? {
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
        self.0.head(path)
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        if self.0.durability == Durability::None && bytes.len() <= SMALL_FILE_SIZE_BYTES {
            return self.0.put_if_absent(path, &bytes);
        }
        let path = path.to_owned();
        self.blocking_here(move |folder| folder.put_if_absent(&path, &bytes)).await
    }

    async fn put_unique(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.write_ahead(path, bytes).await?;
        self.sync(&[path.to_owned()], None).await
    }

    async fn write_ahead(&self, path: &str, bytes: Bytes) -> Result<()> {
        if bytes.len() <= SMALL_FILE_SIZE_BYTES {
            return self.0.write_ahead(path, &bytes);
        }
        let path = path.to_owned();
        self.blocking_here(move |folder| folder.write_ahead(&path, &bytes)).await
    }

    async fn sync(&self, paths: &[String], next: Option<(&str, &Bytes)>) -> Result<()> {
        if self.0.durability == Durability::None {
            return Ok(());
        }
        let (paths, next) = (paths.to_vec(), next.map(|(path, bytes)| (path.to_owned(), bytes.clone())));
        let work = move |folder: &Folder| {
            folder.sync(&paths, next.as_ref().map(|(path, bytes)| (path.as_str(), bytes)))
        };
        self.blocking_here(work).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.0.put_hint(path, &bytes)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let (folder, _) = split_prefix(prefix)?;
        if is_absent_folder(&self.0.containment.full_path(folder)) {
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

    /// The file, if all of it is in memory.
    fn get_cached(&self, path: &str) -> Result<Option<Bytes>> {
        let (file, metadata) = self.look_up(path, "read")?;
        let cached = File::open(&file).and_then(|file| read_cached(&file, metadata.len()));
        Ok(cached.map_err(|error| self.failure("read", path, &error))?.map(Bytes::from))
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
        // As long as the file is not linked to its name, nothing was created, whatever fails.
        let failure = |error: io::Error| self.nothing_created(path, &error);
        let staged = self.ahead.take_staged(path, bytes);
        let (file, unsynced) = self.prepare(path)?;
        if file.symlink_metadata().is_ok() {
            self.settle(path)?;
            return self.name_is_taken(path, &file);
        }
        let staged = match staged {
            Some(staged) => Ok(staged),
            None => Staged::write(&file, bytes, self.durability),
        };
        let (staged, unsynced) = match staged {
            Ok(staged) => (staged, unsynced),
            // Somebody removed a folder that this handle knew: make it again.
            Err(error) if is_absent(&error) => {
                self.forget_folders();
                let (_, unsynced) = self.prepare(path)?;
                (Staged::write(&file, bytes, self.durability).map_err(failure)?, unsynced)
            }
            Err(error) => return Err(failure(error)),
        };
        let outcome = match fs::hard_link(&staged.path, &file) {
            Ok(()) => PutOutcome::Created,
            // A network file system may repeat a link whose reply was lost and then report its own work
            // as an error: only the file says whether it is ours.
            Err(_) if staged.is_same_file(&file) => PutOutcome::Created,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.name_is_taken(path, &file)?,
            Err(error) if refuses_hard_links(&error) => {
                let message = format!(
                    "cannot create {}: the file system has no hard links ({error}), without which two writers \
                     could both believe that they created the same version; put the lakehouse on another disk",
                    self.containment.root().join(path)
                );
                return Err(Error::StorageRefused(message));
            }
            Err(error) => match self.failure("create", path, &error) {
                refusal if refusal.is_refusal() => return Err(refusal),
                // A network file system may still do it.
                error => return Err(Error::Storage { message: error.to_string(), retryable: true }),
            },
        };
        drop(staged);
        if outcome == PutOutcome::Created
            && self.durability == Durability::Fsync
            && let Err(error) = self.sync_entries(path, &file, &unsynced)
        {
            self.unsettled().insert(path.to_owned());
            return Err(self.not_settled(path, &error));
        }
        Ok(outcome)
    }

    /// `AlreadyExists`, unless what has the name is nothing that could be read there, now or later: that proves that
    /// nobody created the file.
    fn name_is_taken(&self, path: &str, file: &Path) -> Result<PutOutcome> {
        let is_readable = !matches!(self.look_up(path, "read"), Err(Error::FileNotFound { .. }));
        let kind = match file.symlink_metadata() {
            Ok(metadata) if is_readable || metadata.is_file() => return Ok(PutOutcome::AlreadyExists),
            // Deleted since.
            Err(_) => return Ok(PutOutcome::AlreadyExists),
            Ok(metadata) if metadata.is_dir() => "a folder",
            Ok(metadata) if metadata.is_symlink() => "a symbolic link that leads to no file",
            Ok(_) => "no regular file",
        };
        Err(Error::StorageRefused(format!(
            "cannot create {}: what has this name is {kind}, and no lakehouse makes that here; nothing was written. \
             Find out who made it, and remove it",
            self.containment.root().join(path)
        )))
    }

    /// Makes the entry of a file last, and those of the folders above it that are not known to be on disk.
    fn sync_entries(&self, path: &str, file: &Path, unsynced: &[PathBuf]) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            (self.sync.0)(SyncOf::Folder(folder))?;
        }
        self.sync_folders(parent(path), unsynced)
    }

    /// Syncs what an earlier creation of this file could not. Until that succeeds, the file is neither there
    /// nor absent.
    fn settle(&self, path: &str) -> Result<()> {
        if !self.unsettled().contains(path) {
            return Ok(());
        }
        let (file, unsynced) = self.prepare(path)?;
        // A system may forget what it could not write, and call the folder clean: another entry in it, which
        // comes and goes, has it written again.
        Staged::write(&file, &[], self.durability)
            .map(drop)
            .and_then(|()| self.sync_entries(path, &file, &unsynced))
            .map_err(|error| self.not_settled(path, &error))?;
        self.unsettled().remove(path);
        Ok(())
    }

    /// No kind of error that excludes that the file is there, or that it is not.
    fn not_settled(&self, path: &str, error: &io::Error) -> Error {
        let message = format!(
            "cannot sync the folder of {}: {error}; whether the file survives a power loss is not known",
            self.containment.root().join(path)
        );
        Error::Storage { message, retryable: true }
    }

    /// In place: who reads a torn hint ignores it, and a rename would cost more than the whole commit.
    fn put_hint(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let (file, _) = self.prepare(path)?;
        let written = match overwrite(&file, bytes) {
            Err(error) if is_absent(&error) => {
                self.forget_folders();
                self.prepare(path)?;
                overwrite(&file, bytes)
            }
            written => written,
        };
        written.map_err(|error| self.failure("write", path, &error))
    }

    fn delete(&self, path: &str) -> Result<()> {
        check_path(path)?;
        self.ahead.forget(path);
        let file = self.containment.full_path(path);
        match self.containment.check_folder(parent(path), "delete") {
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
        match self.containment.check_folder(start, "list") {
            Err(Error::FileNotFound { .. }) => return Ok(files),
            checked => checked?,
        }
        let mut pending = vec![folder.to_owned()];
        while let Some(folder) = pending.pop() {
            let failure = |error: io::Error| self.failure("list", &folder, &error);
            let entries = match fs::read_dir(self.containment.full_path(&folder)) {
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

    /// The files of one folder, unfinished ones among them, and the folders in it. Links are not followed.
    fn walk(&self, folder: &str) -> Result<Step> {
        let mut step = Step::default();
        match self.containment.check_folder(folder.trim_end_matches('/'), "list") {
            Err(Error::FileNotFound { .. }) => return Ok(step),
            checked => checked?,
        }
        let failure = |error: io::Error| self.failure("list", folder, &error);
        let entries = match fs::read_dir(self.containment.full_path(folder)) {
            Err(error) if is_absent(&error) => return Ok(step),
            entries => entries.map_err(failure)?,
        };
        for entry in entries {
            let entry = entry.map_err(failure)?;
            let os_name = entry.file_name();
            let Some(name) = os_name.to_str().filter(|name| check_path(name).is_ok()) else { continue };
            let kind = entry.file_type().map_err(failure)?;
            let path = format!("{folder}{name}");
            if kind.is_dir() {
                step.places.push(Place { folder: path + "/", after: None });
            } else if kind.is_file() {
                match entry.metadata() {
                    Ok(metadata) => step.files.push(file_info(path, &metadata)),
                    // Deleted since the folder was read.
                    Err(error) if is_absent(&error) => {}
                    Err(error) => return Err(failure(error)),
                }
            }
        }
        Ok(step)
    }

    /// Where a file that is to be read really is, and what it is.
    fn look_up(&self, path: &str, verb: &'static str) -> Result<(PathBuf, Metadata)> {
        self.settle(path)?;
        self.containment.look_up(path, verb)
    }

    /// Makes the folders of a file that is to be written. Says where the file goes, and which folders have
    /// entries that are not known to be on disk.
    fn prepare(&self, path: &str) -> Result<(PathBuf, Vec<PathBuf>)> {
        check_path(path)?;
        let (folder, name) = (parent(path), path.rsplit('/').next().unwrap_or(path));
        if is_staging_name(name) {
            return Err(Error::InvalidLocation(format!(
                "`{path}` cannot be written: names that end in `#` and digits mark unfinished files"
            )));
        }
        let mut unsynced = Vec::new();
        let is_known = match self.durability {
            Durability::Fsync => self.durable.has(folder),
            Durability::None => self.containment.is_known(folder),
        };
        if !is_known {
            self.containment.check_existing_ancestor(folder)?;
            match self.durability {
                Durability::Fsync => self.make_folders(folder, &mut unsynced),
                Durability::None => fs::create_dir_all(self.containment.full_path(folder)),
            }
            .map_err(|error| self.failure("create", path, &error))?;
            self.containment.check_folder(folder, "create")?;
        }
        Ok((self.containment.full_path(path), unsynced))
    }

    /// Creates a folder and the folders above it, and names the parents of all whose entries are not known
    /// to be on disk, deepest first.
    fn make_folders(&self, folder: &str, unsynced: &mut Vec<PathBuf>) -> io::Result<()> {
        if self.durable.has(folder) {
            return Ok(());
        }
        let full = self.containment.full_path(folder);
        if folder.is_empty() {
            // The folders above the root are the user's, but those that we create must last as well.
            let missing = full.ancestors().take_while(|ancestor| !ancestor.exists());
            unsynced.extend(missing.filter_map(Path::parent).map(Path::to_path_buf));
            return fs::create_dir_all(&full);
        }
        let above = unsynced.len();
        self.make_folders(parent(folder), unsynced)?;
        unsynced.insert(above, full.parent().unwrap_or(&full).to_path_buf());
        match fs::create_dir(&full) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Syncs the entries of folders, all at once and after the file: the first sync that follows a change
    /// makes a file system write it all, and the others find little to do.
    fn sync_folders(&self, folder: &str, unsynced: &[PathBuf]) -> io::Result<()> {
        if unsynced.is_empty() {
            return Ok(());
        }
        unsynced.iter().try_for_each(|parent| (self.sync.0)(SyncOf::Folder(parent)))?;
        self.mark_durable(folder);
        Ok(())
    }

    /// The entries of the folder and of those above it are on disk.
    fn mark_durable(&self, folder: &str) {
        let mut folder = folder;
        while !self.durable.has(folder) {
            self.durable.add(folder);
            if folder.is_empty() {
                return;
            }
            folder = parent(folder);
        }
    }

    fn unsettled(&self) -> MutexGuard<'_, HashSet<String>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_folders(&self) {
        self.containment.forget();
        self.durable.forget();
    }

    fn failure(&self, verb: &'static str, path: &str, error: &io::Error) -> Error {
        self.containment.failure(verb, path, error)
    }
}

/// Reads a file if that needs no disk.
#[cfg(target_os = "linux")]
fn read_cached(file: &File, size_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut bytes = vec![0; size_bytes as usize];
    let mut read = 0;
    while read < bytes.len() {
        let rest = &mut [io::IoSliceMut::new(&mut bytes[read..])];
        match preadv2(file, rest, read as u64, ReadWriteFlags::NOWAIT) {
            // Shorter than it was: whoever reads it properly will say so.
            Ok(0) => return Ok(None),
            Ok(n) => read += n,
            Err(Errno::INTR) => {}
            // Not in memory, or a file system that cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(bytes))
}

#[cfg(not(target_os = "linux"))]
fn read_cached(_: &File, _: u64) -> io::Result<Option<Vec<u8>>> {
    Ok(None)
}

/// In place, for that is cheapest. Yet a shorter text over a longer one would be a mixture of both until it is cut off,
/// and for good if the writer dies in between: a number that is higher than either.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.is_file() => {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(metadata) if metadata.len() > bytes.len() as u64 => {
            let staged = Staged::write(path, bytes, Durability::None)?;
            return fs::rename(&staged.path, path);
        }
        _ => {}
    }
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all_at(bytes, 0)?;
    if file.metadata()?.len() != bytes.len() as u64 {
        file.set_len(bytes.len() as u64)?;
    }
    Ok(())
}

fn is_absent_folder(folder: &Path) -> bool {
    matches!(folder.symlink_metadata(), Err(error) if is_absent(&error))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn file_info(path: String, metadata: &Metadata) -> FileInfo {
    // A file from before 1970 has a broken clock behind it; 0 keeps it old.
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_millis = modified.map_or(0, |elapsed| elapsed.as_millis() as u64);
    FileInfo { path, size_bytes: metadata.len(), modified_millis }
}

#[cfg(test)]
mod tests;

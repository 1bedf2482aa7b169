//! Reading, creating and deleting files below one folder. The parent module decides on which thread each request runs.

use std::collections::HashSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
#[cfg(windows)]
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::deferred_sync::UnsyncedFiles;
use super::parallel_fsync::DiskSync;
use super::root_folder::{KnownFolders, RootFolder, check_local_path, parent};
use super::temporary_files::{TemporaryFile, is_temporary_name, refuses_hard_links};
use crate::create_readback::is_refusal;
use crate::error_mapping::kind_of;
use crate::storage_trait::{Durability, FileInfo, PutOutcome, checked_range};
use trinitylake_base::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Folder {
    pub(super) root_folder: RootFolder,
    pub(super) durability: Durability,
    /// Relative folders whose entry in their parent is durable.
    pub(super) durable: KnownFolders,
    /// Files that this handle created, but whose folders could not be synced afterwards.
    pub(super) unsettled: Mutex<HashSet<String>>,
    pub(super) unsynced: UnsyncedFiles,
    /// Number of files that are open for writing part by part.
    pub(super) files_in_parts: AtomicUsize,
    pub(super) sync: DiskSync,
}

impl Folder {
    pub(super) fn new(root_folder: RootFolder, durability: Durability, sync: DiskSync) -> Self {
        // Records the identity of the root folder if it exists. Otherwise the first write creates the folder and
        // records its identity.
        _ = root_folder.check_root();
        Self {
            root_folder,
            durability,
            durable: KnownFolders::default(),
            unsettled: Mutex::default(),
            unsynced: UnsyncedFiles::default(),
            files_in_parts: AtomicUsize::new(0),
            sync,
        }
    }

    pub(super) fn get(&self, path: &str) -> Result<Bytes> {
        let (file, _) = self.look_up(path, "read")?;
        let bytes = fs::read(&file).map_err(|error| self.failure("read", path, &error))?;
        Ok(bytes.into())
    }

    pub(super) fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let (file, metadata) = self.look_up(path, "read")?;
        let range = checked_range(path, range, metadata.len())?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        File::open(&file)
            .and_then(|mut file| {
                file.seek(SeekFrom::Start(range.start))?;
                file.read_exact(&mut bytes)
            })
            .map_err(|error| self.failure("read", path, &error))?;
        Ok(bytes.into())
    }

    pub(super) fn head(&self, path: &str) -> Result<FileInfo> {
        let (_, metadata) = self.look_up(path, "read")?;
        Ok(file_info(path.to_owned(), &metadata))
    }

    pub(super) fn put_if_absent(&self, path: &str, bytes: &[u8]) -> Result<PutOutcome> {
        // Before the file is linked to its name, every failure means that no file was created.
        let failure = |error: io::Error| self.nothing_created(path, &error);
        let (file, unsynced) = self.prepare(path)?;
        // If the name is taken, this check saves the fsync of a useless temporary file.
        if self.durability == Durability::Fsync && file.symlink_metadata().is_ok() {
            self.settle(path)?;
            return self.name_is_taken(path, &file);
        }
        let (temporary, unsynced) = match TemporaryFile::write(&file, bytes, self.durability) {
            Ok(temporary) => (temporary, unsynced),
            // Another process removed a folder that this handle had cached: create it again.
            Err(error) if is_absent(&error) => {
                self.forget_folders();
                let (_, unsynced) = self.prepare(path)?;
                (TemporaryFile::write(&file, bytes, self.durability).map_err(failure)?, unsynced)
            }
            Err(error) => return Err(failure(error)),
        };
        self.root_folder.check_root()?;
        let outcome = match fs::hard_link(&temporary.path, &file) {
            Ok(()) => PutOutcome::Created,
            // A network file system may repeat a link request whose reply was lost, and then report that the name
            // exists. Only the inode shows whether this writer created it.
            Err(_) if temporary.is_same_file(&file) => PutOutcome::Created,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.settle(path)?;
                self.name_is_taken(path, &file)?
            }
            Err(error) if refuses_hard_links(&error) => {
                let message = format!(
                    "cannot create {}: the file system has no hard links ({error}), without which two writers \
                     could both believe that they created the same version; put the lakehouse on another disk",
                    self.root_folder.uri().join(path)
                );
                return Err(Error::StorageRefused(message));
            }
            Err(error) => match self.failure("create", path, &error) {
                refusal if is_refusal(&refusal) => return Err(refusal),
                // A network file system may still execute the request, so the outcome is unknown.
                error => return Err(Error::Storage { message: error.to_string(), retryable: true }),
            },
        };
        drop(temporary);
        if outcome == PutOutcome::Created
            && self.durability == Durability::Fsync
            && let Err(error) = self.sync_entries(path, &file, &unsynced)
        {
            self.unsettled().insert(path.to_owned());
            return Err(self.not_settled(path, &error));
        }
        Ok(outcome)
    }

    /// Returns `AlreadyExists`, or an error if the name belongs to a folder or something else that is not a file,
    /// because then no writer has created the file.
    pub(super) fn name_is_taken(&self, path: &str, file: &Path) -> Result<PutOutcome> {
        let is_readable = !matches!(self.look_up(path, "read"), Err(Error::FileNotFound { .. }));
        let kind = match file.symlink_metadata() {
            Ok(metadata) if is_readable || metadata.is_file() => return Ok(PutOutcome::AlreadyExists),
            // The file was deleted in the meantime.
            Err(_) => return Ok(PutOutcome::AlreadyExists),
            Ok(metadata) if metadata.is_dir() => "a folder",
            Ok(metadata) if metadata.is_symlink() => "a symbolic link that leads to no file",
            Ok(_) => "a special file",
        };
        Err(Error::StorageRefused(format!(
            "cannot create {}: {kind} has this name, which a lakehouse does not create; nothing was written. Find out \
             where it comes from, and remove it",
            self.root_folder.uri().join(path)
        )))
    }

    /// Overwrites the file in place: readers ignore a torn hint, and a rename takes longer than a whole commit.
    pub(super) fn put_hint(&self, path: &str, bytes: &[u8]) -> Result<()> {
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

    /// Replaces the content of a file by a rename. False if the content is neither `before` nor `after`.
    pub(super) fn replace_content(&self, path: &str, before: &[u8], after: &[u8]) -> Result<bool> {
        let found = self.get(path)?;
        if found != after {
            if found != before {
                return Ok(false);
            }
            let failure = |error: io::Error| self.failure("replace", path, &error);
            let (file, _) = self.look_up(path, "replace")?;
            let temporary = TemporaryFile::write(&file, after, self.durability).map_err(failure)?;
            self.root_folder.check_root()?;
            fs::rename(&temporary.path, &file).map_err(failure)?;
        }
        if self.durability == Durability::Fsync {
            let (file, unsynced) = self.prepare(path)?;
            self.sync_entries(path, &file, &unsynced).map_err(|error| self.not_settled(path, &error))?;
        }
        Ok(true)
    }

    pub(super) fn delete(&self, path: &str) -> Result<()> {
        check_local_path(path)?;
        self.unsynced.forget(path);
        let file = self.root_folder.full_path(path);
        match self.root_folder.check_folder(parent(path), "delete") {
            Err(Error::FileNotFound { .. }) => return Ok(()),
            checked => checked?,
        }
        match fs::remove_file(&file) {
            Ok(()) => Ok(()),
            // A folder with this name is not a file. Some systems answer EPERM instead of EISDIR.
            Err(_) if file.is_dir() => Ok(()),
            Err(error) => match self.failure("delete", path, &error) {
                Error::FileNotFound { .. } => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Returns the real path and metadata of a file to be read, after a sync that may still be due.
    pub(super) fn look_up(&self, path: &str, verb: &'static str) -> Result<(PathBuf, Metadata)> {
        self.settle(path)?;
        self.root_folder.look_up(path, verb)
    }

    /// Creates the folders of a file to be written. Returns the full path of the file, and the folders with entries
    /// that are not known to be durable.
    pub(super) fn prepare(&self, path: &str) -> Result<(PathBuf, Vec<PathBuf>)> {
        check_local_path(path)?;
        let (folder, name) = (parent(path), path.rsplit('/').next().unwrap_or(path));
        if is_temporary_name(name) {
            return Err(Error::InvalidLocation(format!(
                "`{path}` cannot be written: names that end in `#` and digits mark unfinished files"
            )));
        }
        let mut unsynced = Vec::new();
        if !self.knows_folder(folder) {
            self.root_folder.check_root()?;
            self.root_folder.check_existing_ancestor(folder)?;
            match self.durability {
                Durability::Fsync => self.make_folders(folder, &mut unsynced),
                Durability::None => fs::create_dir_all(self.root_folder.full_path(folder)),
            }
            .map_err(|error| self.failure("create", path, &error))?;
            self.root_folder.check_folder(folder, "create")?;
        }
        Ok((self.root_folder.full_path(path), unsynced))
    }

    /// Whether the folder is known to exist and, with [`Durability::Fsync`], to be durable.
    pub(super) fn knows_folder(&self, folder: &str) -> bool {
        match self.durability {
            Durability::Fsync => self.durable.has(folder),
            Durability::None => self.root_folder.is_known(folder),
        }
    }

    pub(super) fn forget_folders(&self) {
        self.root_folder.forget();
        self.durable.forget();
    }

    pub(super) fn failure(&self, verb: &'static str, path: &str, error: &io::Error) -> Error {
        self.root_folder.failure(verb, path, error)
    }
}

/// Flags to open a file that do not follow a link, and do not open a pipe, which would block until a process reads it.
#[cfg(unix)]
const WITHOUT_LINKS: i32 = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;
/// `FILE_FLAG_OPEN_REPARSE_POINT`: opens a link itself, which is no regular file.
#[cfg(windows)]
const WITHOUT_LINKS: u32 = 0x0020_0000;

/// Overwrites a hint in place, which costs least. A shorter hint replaces a longer one by a rename instead: otherwise a
/// writer that dies before it truncates the file, after writing "99" over "100", would leave "990", higher than both
/// versions.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).custom_flags(WITHOUT_LINKS);
    let mut file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() > bytes.len() as u64 {
        drop(file); // Windows replaces no open file
        let temporary = TemporaryFile::write(path, bytes, Durability::None)?;
        return fs::rename(&temporary.path, path);
    }
    file.write_all(bytes)?;
    if file.metadata()?.len() != bytes.len() as u64 {
        file.set_len(bytes.len() as u64)?;
    }
    Ok(())
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(kind_of(error), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

pub(super) fn file_info(path: String, metadata: &Metadata) -> FileInfo {
    // A modification time before 1970 comes from a wrong clock. With 0 the file counts as old.
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified_millis = modified.map_or(0, |elapsed| elapsed.as_millis() as u64);
    FileInfo { path, size_bytes: metadata.len(), modified_millis }
}

//! Files that are first written under their final names, and later synced together, before the root that refers to them
//! is created. No file refers to them earlier, so their bytes and folder entries may reach the disk in any order.
//!
//! Invariants:
//! - After [`Folder::sync`] the files survive a power loss: their bytes, their entries, and the entries of all folders
//!   above them.
//! - A file whose fsync failed is never reported as synced. After a failed fsync, the operating system may drop the
//!   dirty pages and report success for the next one. Writing the file again creates a new inode.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::file_operations::{Folder, is_absent};
use super::parallel_fsync::Unsynced;
use super::root_folder::parent;
use super::temporary_files::TemporaryFile;
use crate::storage_trait::Durability;
use trinitylake_base::error::{Error, Result};

/// Maximum number of files that stay open until they are synced. The sync opens all other files again.
const MAX_OPEN_FILES: usize = 128;
/// Maximum number of remembered files; a full map is emptied. The sync of a file that is not remembered includes all
/// folders above it.
const MAX_REMEMBERED_FILES: usize = 16_384;

/// Files that were written and not synced yet.
#[derive(Debug, Default)]
pub(super) struct UnsyncedFiles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written: HashMap<String, WrittenFile>,
    open_files: usize,
    /// Files whose fsync failed.
    lost: HashSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct WrittenFile {
    pub(super) file: Option<File>,
    /// Folders with entries that are not known to be durable.
    pub(super) folders: Vec<PathBuf>,
}

impl UnsyncedFiles {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, path: &str, file: File, folders: Vec<PathBuf>) {
        let mut state = self.state();
        if state.written.len() >= MAX_REMEMBERED_FILES {
            state.written.clear();
            state.open_files = 0;
        }
        let file = (state.open_files < MAX_OPEN_FILES).then_some(file);
        state.open_files += usize::from(file.is_some());
        state.lost.remove(path);
        state.written.insert(path.to_owned(), WrittenFile { file, folders });
    }

    /// Returns `None` if this handle does not remember the file, e.g. because another handle or process has written it.
    pub(super) fn take(&self, path: &str) -> Option<WrittenFile> {
        let mut state = self.state();
        let written = state.written.remove(path)?;
        state.open_files -= usize::from(written.file.is_some());
        Some(written)
    }

    pub(super) fn has_lost(&self, path: &str) -> bool {
        self.state().lost.contains(path)
    }

    /// Records that these files could not be synced.
    pub(super) fn lose(&self, paths: &[String]) {
        self.state().lost.extend(paths.iter().cloned());
    }

    /// Drops a deleted file, which needs no sync.
    pub(super) fn forget(&self, path: &str) {
        drop(self.take(path));
    }
}

impl Folder {
    /// Creates a file under its unique name. The file may exist, because a repeated export writes the same names: with
    /// the same content, or with the beginning of it if a process was killed.
    pub(super) fn write_unsynced(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let (file, created, folders) = self.create_unsynced(path)?;
        let handle = match created {
            Ok(mut handle) => {
                if let Err(error) = handle.write_all(bytes) {
                    // Delete the incomplete file, which takes space on a disk that may be full.
                    let _ = fs::remove_file(&file);
                    return Err(self.nothing_created(path, &error));
                }
                handle
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match self.own_file(path, bytes)? {
                Some(own) if !self.unsynced.has_lost(path) => own,
                _ => self.replace(path, &file, bytes)?,
            },
            Err(error) => return Err(self.nothing_created(path, &error)),
        };
        self.wrote_unsynced(path, handle, folders);
        Ok(())
    }

    /// Creates an empty file. Returns its full path, the result of the creation, and the folders above it with entries
    /// that may not be durable.
    pub(super) fn create_unsynced(&self, path: &str) -> Result<(PathBuf, io::Result<File>, Vec<PathBuf>)> {
        let (file, folders) = self.prepare(path)?;
        match create_new(&file) {
            // Another process removed a folder that this handle had cached: create it again.
            Err(error) if is_absent(&error) => {
                self.forget_folders();
                let folders = self.prepare(path)?.1;
                let created = create_new(&file);
                Ok((file, created, folders))
            }
            created => Ok((file, created, folders)),
        }
    }

    /// Registers a completely written file for the next sync.
    pub(super) fn wrote_unsynced(&self, path: &str, file: File, folders: Vec<PathBuf>) {
        if self.durability == Durability::Fsync {
            self.unsynced.add(path, file, folders);
        }
    }

    /// Opens the file that an earlier request created, after a check that it has the same content. `None` if it is
    /// incomplete.
    fn own_file(&self, path: &str, bytes: &[u8]) -> Result<Option<File>> {
        let (file, _) = self.look_up(path, "read").map_err(|error| match error {
            Error::FileNotFound { .. } => Error::StorageRefused(format!(
                "cannot create {}: a folder or a special file has this name; find out where it comes from, and remove it",
                self.root_folder.uri().join(path)
            )),
            error => error,
        })?;
        let failure = |error: io::Error| self.failure("read", path, &error);
        let found = fs::read(&file).map_err(failure)?;
        if !bytes.starts_with(&found) {
            return Err(Error::corrupt(path, "a file with this unique name exists and has other content"));
        }
        if found.len() == bytes.len() { File::open(&file).map(Some).map_err(failure) } else { Ok(None) }
    }

    /// Replaces a file that is incomplete, or whose pages the system may have dropped, by a new inode with a new folder
    /// entry.
    fn replace(&self, path: &str, file: &Path, bytes: &[u8]) -> Result<File> {
        let replaced = || {
            let temporary = TemporaryFile::write(file, bytes, Durability::None)?;
            fs::rename(&temporary.path, file)?;
            temporary.handle.try_clone()
        };
        replaced().map_err(|error| self.nothing_created(path, &error))
    }

    /// Syncs files that were written without a sync, and the entries of the folders above them.
    pub(super) fn sync(&self, paths: &[String]) -> Result<()> {
        if self.durability == Durability::None {
            return Ok(());
        }
        if let Some(lost) = paths.iter().find(|path| self.unsynced.has_lost(path)) {
            return Err(self.is_lost(lost, &io::Error::from(ErrorKind::Other)));
        }
        let (mut names, mut files) = (Vec::with_capacity(paths.len()), Vec::with_capacity(paths.len()));
        let mut folders = BTreeSet::new();
        for path in paths {
            let full = self.root_folder.full_path(path);
            let written = match self.unsynced.take(path) {
                Some(written) => written,
                None => WrittenFile { file: None, folders: self.prepare(path)?.1 },
            };
            let file = match written.file {
                Some(file) => file,
                // Windows syncs a file only through a handle that may write.
                None => File::options()
                    .read(true)
                    .write(cfg!(windows))
                    .open(&full)
                    .map_err(|error| self.failure("sync", path, &error))?,
            };
            folders.extend(full.parent().map(Path::to_path_buf));
            folders.extend(written.folders);
            names.push(path.as_str());
            files.push(Unsynced::File(full, file));
        }
        let folders = folders.into_iter().map(Unsynced::Folder);
        let names = names.into_iter().map(Some).chain(std::iter::repeat(None));
        let answers = self.sync.all(files.into_iter().chain(folders).collect());
        if let Some((path, error)) = names.zip(answers).find_map(|(path, answer)| Some((path, answer.err()?))) {
            self.unsynced.lose(paths);
            return Err(self.is_lost(path.unwrap_or("the written files"), &error));
        }
        for path in paths {
            self.mark_durable(parent(path));
        }
        Ok(())
    }

    /// Returns the error of a creation that has left no file with this name: a refusal, and not an unknown outcome.
    pub(super) fn nothing_created(&self, path: &str, error: &io::Error) -> Error {
        match self.failure("create", path, error) {
            Error::Storage { message, retryable: false } => Error::StorageRefused(message),
            error => error,
        }
    }

    fn is_lost(&self, path: &str, error: &io::Error) -> Error {
        let message = format!(
            "cannot sync {}: {error}; the written files may be lost, so no version refers to them",
            self.root_folder.uri().join(path)
        );
        Error::Storage { message, retryable: false }
    }
}

fn create_new(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(file)
}

//! Files that are written under their own names first and made to last together, right before the file that names them is
//! created: each file and each folder is synced once, all at the same time, or all of them by one sync of their file system
//! (`disk_sync`). Nothing refers to a file before all of that is
//! done, so it does not matter whether its bytes or its entry last first.
//!
//! Invariants:
//! - What [`Folder::sync`] was told of lasts when it says so: the bytes, the entry of the file in its folder, and those of
//!   all folders above it that are not known to be on disk.
//! - What could not be synced once is never said to last: a system may forget what it could not write, and say "done" the
//!   next time it is asked. If it is handed over again, it is written again.
//! - The file that is created next is written and synced under its staging name beside the others. It is linked to its own
//!   name by [`Folder::put_if_absent`] alone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::containment::parent;
use super::disk_sync::Unsynced;
use super::folder::{Folder, is_absent};
use crate::Durability;
use crate::staging::Staged;
use trinitylake_base::error::{Error, Result};

/// Files that are kept open until they are synced; others are opened again.
const MAX_OPEN_FILES: usize = 128;
/// Names of such files that are remembered at all: for others all folders above them are synced.
const MAX_REMEMBERED_FILES: usize = 16_384;
/// Files that were staged for a name that nobody has asked for since.
const MAX_STAGED_FILES: usize = 8;

/// What has been written, and is not on disk yet.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written: HashMap<String, Written>,
    open_files: usize,
    /// Files that could not be synced.
    lost: HashSet<String>,
    staged: HashMap<String, (Bytes, Staged)>,
}

#[derive(Debug, Default)]
struct Written {
    file: Option<File>,
    /// Folders with entries that are not known to be on disk.
    folders: Vec<PathBuf>,
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, path: &str, file: File, folders: Vec<PathBuf>) {
        let mut state = self.state();
        if state.written.len() >= MAX_REMEMBERED_FILES {
            state.written.clear();
            state.open_files = 0;
        }
        let file = (state.open_files < MAX_OPEN_FILES).then_some(file);
        state.open_files += usize::from(file.is_some());
        state.lost.remove(path);
        state.written.insert(path.to_owned(), Written { file, folders });
    }

    /// `None` for a file that is not remembered: another handle has written it, or another process.
    fn take(&self, path: &str) -> Option<Written> {
        let mut state = self.state();
        let written = state.written.remove(path)?;
        state.open_files -= usize::from(written.file.is_some());
        Some(written)
    }

    fn has_lost(&self, path: &str) -> bool {
        self.state().lost.contains(path)
    }

    /// The file that was staged for this name, if it holds these bytes.
    pub(super) fn take_staged(&self, path: &str, bytes: &[u8]) -> Option<Staged> {
        let (staged_bytes, staged) = self.state().staged.remove(path)?;
        (staged_bytes == bytes).then_some(staged)
    }

    fn keep_staged(&self, path: &str, bytes: &Bytes, staged: Staged) {
        let mut state = self.state();
        if state.staged.len() >= MAX_STAGED_FILES {
            state.staged.clear();
        }
        state.staged.insert(path.to_owned(), (bytes.clone(), staged));
    }

    /// The file is deleted: whether it is on disk is nobody's concern.
    pub(super) fn forget(&self, path: &str) {
        drop(self.take(path));
    }
}

impl Folder {
    /// Creates a file under its own name. One that is there already must hold these bytes.
    pub(super) fn write_ahead(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let (file, created, folders) = self.create_ahead(path)?;
        let handle = match created {
            Ok(mut handle) => {
                if let Err(error) = handle.write_all(bytes) {
                    // What there is of it helps nobody, and takes the space that is missing.
                    let _ = fs::remove_file(&file);
                    return Err(self.nothing_created(path, &error));
                }
                handle
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let own = self.own_file(path, bytes)?;
                if self.ahead.has_lost(path) { self.replace(path, &file, bytes)? } else { own }
            }
            Err(error) => return Err(self.nothing_created(path, &error)),
        };
        self.written_ahead(path, handle, folders);
        Ok(())
    }

    /// Creates an empty file: where it is, what came of it, and the folders above it whose entries may not be on disk.
    pub(super) fn create_ahead(&self, path: &str) -> Result<(PathBuf, io::Result<File>, Vec<PathBuf>)> {
        let (file, folders) = self.prepare(path)?;
        match create_new(&file) {
            // Somebody removed a folder that this handle knew: make it again.
            Err(error) if is_absent(&error) => {
                self.forget_folders();
                let folders = self.prepare(path)?.1;
                let created = create_new(&file);
                Ok((file, created, folders))
            }
            created => Ok((file, created, folders)),
        }
    }

    /// All of a file is there, which is to be synced with others.
    pub(super) fn written_ahead(&self, path: &str, file: File, folders: Vec<PathBuf>) {
        if self.durability == Durability::Fsync {
            self.ahead.add(path, file, folders);
        }
    }

    /// The file that an earlier request has created.
    fn own_file(&self, path: &str, bytes: &[u8]) -> Result<File> {
        let (file, _) = self.look_up(path, "read").map_err(|error| match error {
            Error::FileNotFound { .. } => Error::StorageRefused(format!(
                "cannot create {}: what has this name is no regular file; find out who made it, and remove it",
                self.containment.root().join(path)
            )),
            error => error,
        })?;
        let failure = |error: io::Error| self.failure("read", path, &error);
        if fs::read(&file).map_err(failure)? != bytes {
            return Err(Error::corrupt(path, "a file with this unique name exists and has other content"));
        }
        File::open(&file).map_err(failure)
    }

    /// What the system may have forgotten is written once more, as another file with another entry in its folder. Whoever
    /// reads meanwhile sees the same bytes.
    fn replace(&self, path: &str, file: &Path, bytes: &[u8]) -> Result<File> {
        let replaced = || {
            let staged = Staged::write(file, bytes, Durability::None)?;
            fs::rename(&staged.path, file)?;
            staged.handle.try_clone()
        };
        replaced().map_err(|error| self.nothing_created(path, &error))
    }

    /// Makes files last that were written ahead, and stages `next` beside them.
    pub(super) fn sync(&self, paths: &[String], next: Option<(&str, &Bytes)>) -> Result<()> {
        if self.durability == Durability::None {
            return Ok(());
        }
        if let Some(lost) = paths.iter().find(|path| self.ahead.has_lost(path)) {
            return Err(self.is_lost(lost, &io::Error::from(ErrorKind::Other)));
        }
        let staged = match next {
            Some((path, bytes)) => Some((path, bytes, self.stage(path, bytes)?)),
            None => None,
        };
        let (mut names, mut files) = (Vec::with_capacity(paths.len()), Vec::with_capacity(paths.len() + 1));
        let mut folders = BTreeSet::new();
        for path in paths {
            let full = self.containment.full_path(path);
            let written = match self.ahead.take(path) {
                Some(written) => written,
                None => Written { file: None, folders: self.prepare(path)?.1 },
            };
            let file = match written.file {
                Some(file) => file,
                None => File::open(&full).map_err(|error| self.failure("sync", path, &error))?,
            };
            folders.extend(full.parent().map(Path::to_path_buf));
            folders.extend(written.folders);
            names.push(path.as_str());
            files.push(Unsynced::File(full, file));
        }
        if let Some((_, _, staged)) = &staged {
            let handle = staged.handle.try_clone().map_err(|error| self.failure("sync", "", &error))?;
            files.push(Unsynced::File(staged.path.clone(), handle));
        }
        let folders = folders.into_iter().map(Unsynced::Folder);
        let names = names.into_iter().map(Some).chain(std::iter::repeat(None));
        let answers = self.sync.all(files.into_iter().chain(folders).collect());
        if let Some((path, error)) = names.zip(answers).find_map(|(path, answer)| Some((path, answer.err()?)))
        {
            self.ahead.state().lost.extend(paths.iter().cloned());
            return Err(self.is_lost(path.unwrap_or("what was written"), &error));
        }
        for path in paths {
            self.mark_durable(parent(path));
        }
        if let Some((path, bytes, staged)) = staged {
            self.ahead.keep_staged(path, bytes, staged);
        }
        Ok(())
    }

    fn stage(&self, path: &str, bytes: &[u8]) -> Result<Staged> {
        let (file, _) = self.prepare(path)?;
        Staged::write(&file, bytes, Durability::None).map_err(|error| self.nothing_created(path, &error))
    }

    /// No name leads to what could not be created, whatever failed.
    pub(super) fn nothing_created(&self, path: &str, error: &io::Error) -> Error {
        match self.failure("create", path, error) {
            Error::Storage { message, retryable: false } => Error::StorageRefused(message),
            error => error,
        }
    }

    fn is_lost(&self, path: &str, error: &io::Error) -> Error {
        let message = format!(
            "cannot sync {}: {error}; what a transaction has written may be lost, so nothing refers to it",
            self.containment.root().join(path)
        );
        Error::Storage { message, retryable: false }
    }
}

fn create_new(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(file)
}

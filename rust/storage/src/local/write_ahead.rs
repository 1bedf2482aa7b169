//! Files that are written under their own names first and synced together later, right before the file that refers to them
//! is created. Nothing refers to a file before that, so its bytes and its entry may reach the disk in any order.
//!
//! Invariants:
//! - After [`Folder::sync`] its files survive a power loss: their bytes, their entries, and the entries of all folders
//!   above them.
//! - A file that could not be synced once is never reported as synced: a system may forget what it could not write, and
//!   answer "done" the next time. If it is written again, it is another file.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::containment::parent;
use super::disk_sync::Unsynced;
use super::folder::{Folder, is_absent};
use super::staging::Staged;
use super::unsynced_files::WrittenFile;
use crate::storage::Durability;
use trinitylake_base::error::{Error, Result};

impl Folder {
    /// Creates a file under its unique name. An existing one must hold these bytes.
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
                if self.unsynced.has_lost(path) { self.replace(path, &file, bytes)? } else { own }
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
            self.unsynced.add(path, file, folders);
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

    /// Writes a file again whose pages the system may have dropped, as another file with another folder entry.
    /// Concurrent readers see the same bytes.
    fn replace(&self, path: &str, file: &Path, bytes: &[u8]) -> Result<File> {
        let replaced = || {
            let staged = Staged::write(file, bytes, Durability::None)?;
            fs::rename(&staged.path, file)?;
            staged.handle.try_clone()
        };
        replaced().map_err(|error| self.nothing_created(path, &error))
    }

    /// Syncs files that were written ahead, and the entries of the folders above them.
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
            let full = self.containment.full_path(path);
            let written = match self.unsynced.take(path) {
                Some(written) => written,
                None => WrittenFile { file: None, folders: self.prepare(path)?.1 },
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
        let folders = folders.into_iter().map(Unsynced::Folder);
        let names = names.into_iter().map(Some).chain(std::iter::repeat(None));
        let answers = self.sync.all(files.into_iter().chain(folders).collect());
        if let Some((path, error)) = names.zip(answers).find_map(|(path, answer)| Some((path, answer.err()?)))
        {
            self.unsynced.lose(paths);
            return Err(self.is_lost(path.unwrap_or("what was written"), &error));
        }
        for path in paths {
            self.mark_durable(parent(path));
        }
        Ok(())
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

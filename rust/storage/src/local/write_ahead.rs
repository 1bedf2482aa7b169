//! Files that are written under their final names first and synced together later, just before the root that refers to
//! them is created. No file refers to them earlier, so their bytes and folder entries may reach the disk in any order.
//!
//! Invariants:
//! - After [`Folder::sync`] the files survive a power loss: their bytes, their entries, and the entries of all folders
//!   above them.
//! - A file whose fsync failed is never reported as synced. After a failed fsync, the operating system may drop the
//!   dirty pages and report success for the next one. Writing the file again creates a new inode.

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
    /// Creates a file under its unique name. If the file exists, it must have the same content.
    pub(super) fn write_ahead(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let (file, created, folders) = self.create_ahead(path)?;
        let handle = match created {
            Ok(mut handle) => {
                if let Err(error) = handle.write_all(bytes) {
                    // An incomplete file is useless, and takes space on a disk that may be full.
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

    /// Creates an empty file. Returns its full path, the result of the creation, and the folders above it with entries
    /// that may not be durable.
    pub(super) fn create_ahead(&self, path: &str) -> Result<(PathBuf, io::Result<File>, Vec<PathBuf>)> {
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
    pub(super) fn written_ahead(&self, path: &str, file: File, folders: Vec<PathBuf>) {
        if self.durability == Durability::Fsync {
            self.unsynced.add(path, file, folders);
        }
    }

    /// Opens the file that an earlier request created, after a check that it has the same content.
    fn own_file(&self, path: &str, bytes: &[u8]) -> Result<File> {
        let (file, _) = self.look_up(path, "read").map_err(|error| match error {
            Error::FileNotFound { .. } => Error::StorageRefused(format!(
                "cannot create {}: a folder or a special file has this name; find out where it comes from, and remove it",
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

    /// Writes a file again whose pages the system may have dropped, as a new inode with a new folder entry. Concurrent
    /// readers see the same bytes.
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
        if let Some((path, error)) = names.zip(answers).find_map(|(path, answer)| Some((path, answer.err()?)))
        {
            self.unsynced.lose(paths);
            return Err(self.is_lost(path.unwrap_or("the written files"), &error));
        }
        for path in paths {
            self.mark_durable(parent(path));
        }
        Ok(())
    }

    /// A failed creation leaves no file under the name, whatever the cause, so it is a refusal and not an unknown
    /// outcome.
    pub(super) fn nothing_created(&self, path: &str, error: &io::Error) -> Error {
        match self.failure("create", path, error) {
            Error::Storage { message, retryable: false } => Error::StorageRefused(message),
            error => error,
        }
    }

    fn is_lost(&self, path: &str, error: &io::Error) -> Error {
        let message = format!(
            "cannot sync {}: {error}; the written files may be lost, so no version refers to them",
            self.containment.root().join(path)
        );
        Error::Storage { message, retryable: false }
    }
}

fn create_new(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(file)
}

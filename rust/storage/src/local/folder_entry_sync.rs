//! Durable folder entries: a file survives a power loss only if its entry and the entries of all folders above it are
//! on disk.
//!
//! Invariants:
//! - A folder counts as durable only after this handle has synced its entry in the parent folder: another process may
//!   have created the folder without syncing it yet.
//! - If the folders of a file could not be synced, the file is reported neither as existing nor as absent until a later
//!   sync of these folders succeeds.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use super::file_operations::Folder;
use super::parallel_fsync::SyncOf;
use super::root_folder::parent;
use super::temporary_files::TemporaryFile;
use trinitylake_base::error::{Error, Result};

impl Folder {
    /// Syncs the folder entry of a file, and the entries of the folders above it that are not known to be durable.
    pub(super) fn sync_entries(&self, path: &str, file: &Path, unsynced: &[PathBuf]) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            self.sync.one(SyncOf::Folder(folder))?;
        }
        self.sync_folders(parent(path), unsynced)
    }

    /// Repeats the sync that failed when this file was created. Until it succeeds, the file is reported neither as
    /// existing nor as absent.
    pub(super) fn settle(&self, path: &str) -> Result<()> {
        if !self.unsettled().contains(path) {
            return Ok(());
        }
        let (file, unsynced) = self.prepare(path)?;
        // After a failed fsync, the system may consider the folder clean and skip the next fsync. Creating and removing
        // a temporary file in it makes the folder dirty again, so that it is written.
        TemporaryFile::write(&file, &[], self.durability)
            .map(drop)
            .and_then(|()| self.sync_entries(path, &file, &unsynced))
            .map_err(|error| self.not_settled(path, &error))?;
        self.unsettled().remove(path);
        Ok(())
    }

    /// Returns the error of an unknown outcome, from which the caller cannot conclude whether the file exists.
    pub(super) fn not_settled(&self, path: &str, error: &io::Error) -> Error {
        let message = format!(
            "cannot sync the folder of {}: {error}; whether the file survives a power loss is not known",
            self.root_folder.uri().join(path)
        );
        Error::Storage { message, retryable: true }
    }

    /// Creates a folder and the folders above it. Adds to `unsynced` the parents of all folders whose entries are not
    /// known to be durable, deepest first.
    pub(super) fn make_folders(&self, folder: &str, unsynced: &mut Vec<PathBuf>) -> io::Result<()> {
        if self.durable.has(folder) {
            return Ok(());
        }
        let full = self.root_folder.full_path(folder);
        if folder.is_empty() {
            // Folders above the root belong to the user, but folders that this call creates must be durable as well.
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

    /// Syncs folder entries after the file. This is fast, because the first fsync makes the file system write its whole
    /// journal, so that the other ones write little.
    pub(super) fn sync_folders(&self, folder: &str, unsynced: &[PathBuf]) -> io::Result<()> {
        if unsynced.is_empty() {
            return Ok(());
        }
        unsynced.iter().try_for_each(|parent| self.sync.one(SyncOf::Folder(parent)))?;
        self.mark_durable(folder);
        Ok(())
    }

    /// Marks the folder and all folders above it as durable.
    pub(super) fn mark_durable(&self, folder: &str) {
        let mut folder = folder;
        while !self.durable.has(folder) {
            self.durable.add(folder);
            if folder.is_empty() {
                return;
            }
            folder = parent(folder);
        }
    }

    pub(super) fn unsettled(&self) -> MutexGuard<'_, HashSet<String>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

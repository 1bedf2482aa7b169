//! Durable folder entries: a file survives a power loss if its entry and those of all folders above are on disk.
//!
//! Invariants:
//! - A folder counts as on disk once its entry in its parent was synced by this handle, and then only (another process
//!   may have made it a moment ago).
//! - A file whose folders could not be synced is neither there nor absent until a later sync of them has succeeded.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use super::containment::parent;
use super::disk_sync::SyncOf;
use super::folder::Folder;
use super::staging::Staged;
use trinitylake_base::error::{Error, Result};

impl Folder {
    /// Makes the entry of a file last, and those of the folders above it that are not known to be on disk.
    pub(super) fn sync_entries(&self, path: &str, file: &Path, unsynced: &[PathBuf]) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            self.sync.one(SyncOf::Folder(folder))?;
        }
        self.sync_folders(parent(path), unsynced)
    }

    /// Syncs what an earlier creation of this file could not. Until that succeeds, the file is neither there
    /// nor absent.
    pub(super) fn settle(&self, path: &str) -> Result<()> {
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
    pub(super) fn not_settled(&self, path: &str, error: &io::Error) -> Error {
        let message = format!(
            "cannot sync the folder of {}: {error}; whether the file survives a power loss is not known",
            self.containment.root().join(path)
        );
        Error::Storage { message, retryable: true }
    }

    /// Creates a folder and the folders above it, and names the parents of all whose entries are not known
    /// to be on disk, deepest first.
    pub(super) fn make_folders(&self, folder: &str, unsynced: &mut Vec<PathBuf>) -> io::Result<()> {
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
    pub(super) fn sync_folders(&self, folder: &str, unsynced: &[PathBuf]) -> io::Result<()> {
        if unsynced.is_empty() {
            return Ok(());
        }
        unsynced.iter().try_for_each(|parent| self.sync.one(SyncOf::Folder(parent)))?;
        self.mark_durable(folder);
        Ok(())
    }

    /// The entries of the folder and of those above it are on disk.
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

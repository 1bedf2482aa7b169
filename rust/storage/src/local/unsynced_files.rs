//! Files that one handle has written and not synced yet, with their open descriptors.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of files that stay open until they are synced; the sync opens the others again.
const MAX_OPEN_FILES: usize = 128;
/// Maximum number of remembered files; a full map is emptied. For a file that is not remembered, a sync includes all
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

    /// `None` if this handle does not remember the file, e.g. because another handle or process has written it.
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

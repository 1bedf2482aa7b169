//! Options, progress and report of a garbage collection.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::file_kind::Kind;
use crate::transaction::Note;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Minimum age of a deleted file by the store's clock. `None`: `txn_ttl_millis`.
    pub grace_millis: Option<u64>,
    /// Report what would be deleted, and delete nothing.
    pub dry_run: bool,
    /// Maximum number of example paths of each class in the report.
    pub examples: usize,
    /// Commit message and author of the fence.
    pub note: Note,
}

/// Number and size of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub files: u64,
    pub size_bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, size_bytes: u64) {
        self.files += 1;
        self.size_bytes += size_bytes;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Version of the fence; `None` if there was nothing to delete, or in a dry run.
    pub version: Option<u64>,
    /// Unreferenced files older than this time of the store were deleted.
    pub before_millis: u64,
    /// Files that were deleted, or in a dry run would be deleted, by type.
    pub deleted: BTreeMap<Kind, Count>,
    /// Deleted files of tables, by the folder of the table.
    pub deleted_by_folder: BTreeMap<String, Count>,
    /// Referenced files, and files that gc never deletes, by type.
    pub kept: BTreeMap<Kind, Count>,
    /// Unreferenced files that are too young to delete.
    pub young: Count,
    /// Files that are not of this format.
    pub unknown: Count,
    /// Files of external or federated tables.
    pub foreign: Count,
    /// Examples of the deleted files.
    pub deleted_paths: Vec<String>,
    pub unknown_paths: Vec<String>,
    /// Number of roots that were marked.
    pub roots: u64,
}

impl Report {
    pub fn total_deleted(&self) -> Count {
        self.deleted.values().fold(Count::default(), |sum, one| Count {
            files: sum.files + one.files,
            size_bytes: sum.size_bytes + one.size_bytes,
        })
    }

    /// Whether every file was recognised as the lakehouse's own.
    pub(super) fn knows_all(&self) -> bool {
        self.unknown.files == 0 && self.foreign.files == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Marked(u64),
    Swept(u64),
}

pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Callback that does nothing.
pub fn no_progress() -> OnProgress {
    Arc::new(|_| {})
}

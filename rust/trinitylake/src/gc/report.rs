//! Options, progress and report of a garbage collection.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind::Kind;
use crate::transaction::Note;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Age by the store's clock at which a file may be deleted: `txn_ttl_millis` by default.
    pub grace_millis: Option<u64>,
    /// Delete nothing.
    pub dry_run: bool,
    /// Number of example paths of each sort in the report.
    pub examples: usize,
    /// Message and author for the log.
    pub note: Note,
}

/// Files, and their size.
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

/// Result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Version of the fence; `None` without anything to delete, or in a dry run.
    pub version: Option<u64>,
    /// By the store's clock: older files were deleted.
    pub before_millis: u64,
    /// Deleted, or in a dry run what would be, by the kind of file.
    pub deleted: BTreeMap<Kind, Count>,
    /// The same of files of tables, by the folder of the table.
    pub deleted_by_folder: BTreeMap<String, Count>,
    /// Reached by a root, or a file of the format itself.
    pub kept: BTreeMap<Kind, Count>,
    /// Not reached, and too young.
    pub young: Count,
    /// Not a file of this format.
    pub unknown: Count,
    /// Belongs to an external or federated table.
    pub foreign: Count,
    /// Some of the paths: deleted, or to be deleted.
    pub deleted_paths: Vec<String>,
    pub unknown_paths: Vec<String>,
    /// Roots that were read.
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

/// Progress of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Marked(u64),
    Swept(u64),
}

/// Callback for progress.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Callback that does nothing.
pub fn no_progress() -> OnProgress {
    Arc::new(|_| {})
}

//! Sweep: lists all files of the lakehouse, page by page, and deletes the garbage among them.

use std::sync::Arc;

use super::file_classifier::{Classified, Classifier};
use super::file_kind::{Kind, folder_of};
use super::mark::Marks;
use super::report::Report;
use super::walk::Walk;
use crate::error::Result;
use crate::file_names::root_version;
use crate::lakehouse::Lakehouse;
use crate::storage::{FileInfo, delete_all};
use crate::version::store_clock::ClockCheck;
use crate::version::wait_before_deleting;

/// Maximum number of folders in a report.
pub const MAX_REPORTED_FOLDERS: usize = 10_000;
#[derive(Debug)]
pub(super) struct Sweep {
    lakehouse: Arc<Lakehouse>,
    classifier: Classifier,
    /// Whether [`Sweep::wait_for_older_observations`] has waited.
    has_waited: bool,
    walk: Walk,
    clock: ClockCheck,
}

/// A file that is garbage.
pub(super) type GarbageFile = (Kind, FileInfo);

impl Sweep {
    pub fn begin(lakehouse: &Arc<Lakehouse>, before_millis: u64, oldest: u64, clock: ClockCheck) -> Sweep {
        Sweep {
            lakehouse: lakehouse.clone(),
            classifier: Classifier::new(lakehouse.storage().clone(), before_millis, oldest),
            has_waited: false,
            walk: Walk::begin(lakehouse.storage().clone()),
            clock,
        }
    }

    /// Returns the next page of files; `None` after the last page.
    pub async fn next(&mut self) -> Result<Option<Vec<FileInfo>>> {
        self.walk.next().await
    }

    pub async fn classify(&mut self, file: &FileInfo, marks: &Marks) -> Result<Classified> {
        self.classifier.classify(file, marks).await
    }

    /// Returns the garbage among these files, and counts all other files in the report.
    pub async fn classify_all(
        &mut self,
        files: Vec<FileInfo>,
        marks: &Marks,
        report: &mut Report,
        examples: usize,
    ) -> Result<Vec<GarbageFile>> {
        let mut garbage = Vec::new();
        for file in files {
            match self.classify(&file, marks).await? {
                Classified::Kept(kind) => report.kept.entry(kind).or_default().add(file.size_bytes),
                Classified::Foreign => report.foreign.add(file.size_bytes),
                Classified::Young(_) => report.young.add(file.size_bytes),
                Classified::Garbage(kind) => garbage.push((kind, file)),
                Classified::Unknown => {
                    report.unknown.add(file.size_bytes);
                    if report.unknown_paths.len() < examples {
                        report.unknown_paths.push(file.path);
                    }
                }
            }
        }
        Ok(garbage)
    }

    pub async fn check_clock(&mut self) -> Result<()> {
        let storage = self.lakehouse.storage().as_ref();
        self.clock.check(storage, self.lakehouse.environment().as_ref()).await
    }

    /// Call this before roots are deleted. Waits until no process relies on an observation from before the boundary any
    /// more. The expiry that published the boundary may still be waiting for the same.
    pub async fn wait_for_older_observations(&mut self, has_roots: bool) {
        if self.has_waited || !has_roots {
            return;
        }
        let environment = self.lakehouse.environment().as_ref();
        wait_before_deleting::wait_for_older_observations(self.lakehouse.storage().as_ref(), environment).await;
        self.has_waited = true;
    }

    pub async fn delete(&self, garbage: &[GarbageFile]) -> Result<()> {
        let paths = garbage.iter().map(|(_, file)| file.path.clone()).collect();
        delete_all(self.lakehouse.storage().as_ref(), paths).await
    }
}

/// Whether one of the files is a root.
pub(super) fn has_roots(garbage: &[GarbageFile]) -> bool {
    garbage.iter().any(|(_, file)| root_version(&file.path).is_some())
}

impl Report {
    pub(super) fn count_deleted(&mut self, garbage: &[GarbageFile], examples: usize) {
        for (kind, file) in garbage {
            self.deleted.entry(*kind).or_default().add(file.size_bytes);
            if let Some(folder) = folder_of(*kind, &file.path)
                && (self.deleted_by_folder.len() < MAX_REPORTED_FOLDERS || self.deleted_by_folder.contains_key(folder))
            {
                self.deleted_by_folder.entry(folder.to_string()).or_default().add(file.size_bytes);
            }
            if self.deleted_paths.len() < examples {
                self.deleted_paths.push(file.path.clone());
            }
        }
    }
}

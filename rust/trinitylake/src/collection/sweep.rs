//! Sweeping: going through all files below the root, some at a time, and deleting those that are garbage.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt, stream};
use trinitylake_iceberg::in_metadata;

use super::Report;
use super::kind::{Kind, Verdict, is_named_by_a_writer, table_folder, verdict};
use super::mark::Marks;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::managed_table_folder::table_id_digits;
use crate::path::root_version;
use crate::storage::{FileInfo, Place, Step};
use crate::transaction::fence::STORE_CLOCK_STEP_MILLIS;
use crate::tree::node_store::PARALLEL_REQUESTS;
use crate::version::store_time::StoreTime;
use crate::version::wait_before_deleting;

/// Places that are listed at once.
const PARALLEL_LISTS: usize = 16;
/// So many files are judged at a time.
const FILES_AT_ONCE: usize = 10_000;
/// The store is asked for the time again after so long.
const CLOCK_CHECK_MILLIS: u64 = 10_000;
/// Folders of which it is remembered whether a table lies there.
const MAX_KNOWN_FOLDERS: usize = 10_000;
/// The clock of a store may be behind by so much of what passed, before it counts as set back.
const TOLERATED_DRIFT: u64 = 100;

pub(super) struct Sweep {
    lakehouse: Arc<Lakehouse>,
    before_millis: u64,
    oldest: u64,
    /// Since that boundary was read, until all looks from before it are over.
    has_waited: bool,
    places: Vec<Place>,
    known_folders: HashMap<String, bool>,
    asked_elapsed_millis: u64,
    clock_checked_millis: Option<u64>,
}

/// Garbage.
pub(super) type Doomed = (Kind, FileInfo);

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// It is reached, or the format's own.
    Kept(Kind),
    /// Nothing reaches it, and it may be about to be committed.
    Young(Kind),
    Garbage(Kind),
    /// It belongs to an external or federated table.
    Foreign,
    /// Nobody of this format made it.
    Unknown,
}

impl Sweep {
    /// The store was asked for the time just before `asked_elapsed_millis`.
    pub fn begin(
        lakehouse: &Arc<Lakehouse>,
        before_millis: u64,
        oldest: u64,
        asked_elapsed_millis: u64,
    ) -> Sweep {
        Sweep {
            lakehouse: lakehouse.clone(),
            before_millis,
            oldest,
            has_waited: false,
            places: vec![Place::default()],
            known_folders: HashMap::new(),
            asked_elapsed_millis,
            clock_checked_millis: None,
        }
    }

    /// The next files; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Vec<FileInfo>>> {
        if self.places.is_empty() {
            return Ok(None);
        }
        let storage = self.lakehouse.storage().clone();
        let mut files = Vec::new();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < PARALLEL_LISTS
                && files.len() < FILES_AT_ONCE
                && let Some(place) = self.places.pop()
            {
                let storage = storage.clone();
                running.push(async move { storage.walk(&place).await });
            }
            let Some(step) = running.next().await else { return Ok(Some(files)) };
            let Step { files: found, places } = step?;
            files.extend(found);
            self.places.extend(places);
        }
    }

    /// Which of these are garbage. The others are counted.
    pub async fn judge(
        &mut self,
        files: Vec<FileInfo>,
        marks: &Marks,
        report: &mut Report,
        examples: usize,
    ) -> Result<Vec<Doomed>> {
        let mut doomed = Vec::new();
        for file in files {
            match self.verdict_on(&file, marks).await? {
                Judged::Kept(kind) => report.kept.entry(kind).or_default().add(file.size_bytes),
                Judged::Foreign => report.foreign.add(file.size_bytes),
                Judged::Young(_) => report.young.add(file.size_bytes),
                Judged::Garbage(kind) => doomed.push((kind, file)),
                Judged::Unknown => {
                    report.unknown.add(file.size_bytes);
                    if report.unknown_paths.len() < examples {
                        report.unknown_paths.push(file.path);
                    }
                }
            }
        }
        Ok(doomed)
    }

    /// What becomes of one file.
    pub async fn verdict_on(&mut self, file: &FileInfo, marks: &Marks) -> Result<Judged> {
        let by_name = verdict(&file.path, self.oldest);
        if marks.contains(&file.path) {
            return Ok(Judged::Kept(match by_name {
                Verdict::Garbage(kind) | Verdict::Stays(kind) | Verdict::OfTable(kind) => kind,
                Verdict::Unknown => Kind::Data,
            }));
        }
        if marks.is_foreign(&file.path) {
            return Ok(Judged::Foreign);
        }
        let kind = match by_name {
            Verdict::Stays(kind) => return Ok(Judged::Kept(kind)),
            Verdict::Garbage(kind) => kind,
            Verdict::OfTable(kind) if self.is_of_table(&file.path, marks).await? => kind,
            Verdict::OfTable(_) | Verdict::Unknown => return Ok(Judged::Unknown),
        };
        let is_young = file.modified_millis >= self.before_millis;
        Ok(if is_young { Judged::Young(kind) } else { Judged::Garbage(kind) })
    }

    /// Does the file lie in the folder of a managed table, one that is there or one that was?
    async fn is_of_table(&mut self, path: &str, marks: &Marks) -> Result<bool> {
        if marks.is_in_table(path) {
            return Ok(true);
        }
        let Some(folder) = table_folder(path).filter(|folder| !folder.starts_with('_')) else {
            return Ok(false);
        };
        Ok(is_named_by_a_writer(path, folder) || self.was_table(folder).await?)
    }

    /// Does a metadata file in the folder say that a table with the digits of its name lies there?
    async fn was_table(&mut self, folder: &str) -> Result<bool> {
        if let Some(known) = self.known_folders.get(folder) {
            return Ok(*known);
        }
        let storage = self.lakehouse.storage();
        let files = storage.list(&format!("{folder}/metadata/")).await?;
        let mut was_table = false;
        for file in files.iter().filter(|file| file.path.contains(".metadata.json")).take(1) {
            let digits = table_id_digits(folder).unwrap_or_default();
            was_table = match storage.get(&file.path).await {
                Ok(bytes) => in_metadata(&bytes, &file.path)
                    .is_ok_and(|metadata| metadata.table_uuid.starts_with(digits)),
                Err(Error::FileNotFound { .. }) => false,
                Err(error) => return Err(error),
            };
        }
        if self.known_folders.len() >= MAX_KNOWN_FOLDERS {
            self.known_folders.clear();
        }
        self.known_folders.insert(folder.to_string(), was_table);
        Ok(was_table)
    }

    /// That the store's clock has not been set back since `time` was asked for: what is written since would look old.
    pub async fn check_clock(&mut self, time: StoreTime) -> Result<()> {
        let environment = self.lakehouse.environment().as_ref();
        let elapsed_millis = environment.elapsed_millis();
        if self.clock_checked_millis.is_some_and(|checked| elapsed_millis < checked + CLOCK_CHECK_MILLIS) {
            return Ok(());
        }
        let now = StoreTime::ask(self.lakehouse.storage().as_ref(), environment).await?;
        let passed = elapsed_millis - self.asked_elapsed_millis;
        let shown = now.millis_since(time);
        if shown + passed / TOLERATED_DRIFT + STORE_CLOCK_STEP_MILLIS < passed {
            return Err(Error::StorageRefused(format!(
                "the clock of the store was set back: it shows that {shown} ms passed, and {passed} ms did. Files that \
                 were just written may look old, so nothing more is deleted; try again once the clock is right"
            )));
        }
        self.clock_checked_millis = Some(elapsed_millis);
        Ok(())
    }

    /// The boundary may have been published a moment ago, by an expiry that still waits for those who have not seen it.
    pub async fn wait_for_all_looks(&mut self, doomed: &[Doomed]) {
        if self.has_waited || doomed.iter().all(|(_, file)| root_version(&file.path).is_none()) {
            return;
        }
        let environment = self.lakehouse.environment().as_ref();
        wait_before_deleting::wait_for_all_looks(self.lakehouse.storage().as_ref(), environment).await;
        self.has_waited = true;
    }

    pub async fn delete(&self, doomed: &[Doomed]) -> Result<()> {
        let storage = self.lakehouse.storage().as_ref();
        let paths: Vec<String> = doomed.iter().map(|(_, file)| file.path.clone()).collect();
        stream::iter(paths)
            .map(|path| async move { storage.delete(&path).await })
            .buffer_unordered(PARALLEL_REQUESTS)
            .try_collect()
            .await
    }
}

impl Report {
    pub(super) fn count_deleted(&mut self, doomed: &[Doomed], examples: usize) {
        for (kind, file) in doomed {
            self.deleted.entry(*kind).or_default().add(file.size_bytes);
            if matches!(kind, Kind::TableMetadata | Kind::Data) {
                let folder =
                    table_folder(&file.path).or_else(|| file.path.rsplit_once('/').map(|(folder, _)| folder));
                let folder = folder.unwrap_or_default().to_string();
                if self.deleted_by_folder.len() < MAX_KNOWN_FOLDERS
                    || self.deleted_by_folder.contains_key(&folder)
                {
                    self.deleted_by_folder.entry(folder).or_default().add(file.size_bytes);
                }
            }
            if self.deleted_paths.len() < examples {
                self.deleted_paths.push(file.path.clone());
            }
        }
    }
}

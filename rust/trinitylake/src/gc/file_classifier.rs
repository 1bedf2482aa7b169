//! Classifies a file as referenced, young, garbage, foreign or unknown: by its name, its age, and the mark.

use std::collections::HashMap;
use std::sync::Arc;

use trinitylake_iceberg::in_metadata;

use super::file_kind::{Kind, Verdict, is_named_by_a_writer, table_folder, verdict};
use crate::error::{Error, Result};
use crate::managed_table_folder::table_id_digits;
use crate::storage::{FileInfo, Storage};

/// Maximum number of folders in the cache.
const MAX_KNOWN_FOLDERS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classified {
    /// Referenced, or a file that gc never deletes.
    Kept(Kind),
    /// Unreferenced, but so young that a running transaction may commit it.
    Young(Kind),
    Garbage(Kind),
    /// Belongs to an external or federated table.
    Foreign,
    /// A file of other software, to judge by its name.
    Unknown,
}

/// Lookups of paths in the result of the mark.
pub trait Known {
    /// Whether the path is marked as referenced.
    fn contains(&self, path: &str) -> bool;
    /// Whether the path is in the folder of an external or federated table.
    fn is_foreign(&self, path: &str) -> bool;
    /// Whether the path is in the folder of a managed table.
    fn is_in_table(&self, path: &str) -> bool;
}

#[derive(Debug)]
pub struct Classifier {
    storage: Arc<dyn Storage>,
    /// Unreferenced files older than this time of the store are garbage.
    before_millis: u64,
    /// Versions below this one have expired.
    oldest: u64,
    known_folders: HashMap<String, bool>,
}

impl Classifier {
    pub fn new(storage: Arc<dyn Storage>, before_millis: u64, oldest: u64) -> Classifier {
        Classifier { storage, before_millis, oldest, known_folders: HashMap::new() }
    }

    /// Returns the class of one file.
    pub async fn classify(&mut self, file: &FileInfo, marks: &impl Known) -> Result<Classified> {
        let by_name = verdict(&file.path, self.oldest);
        if marks.contains(&file.path) {
            return Ok(Classified::Kept(match by_name {
                Verdict::Garbage(kind) | Verdict::Stays(kind) | Verdict::OfTable(kind) => kind,
                Verdict::Unknown => Kind::Data,
            }));
        }
        if marks.is_foreign(&file.path) {
            return Ok(Classified::Foreign);
        }
        let kind = match by_name {
            Verdict::Stays(kind) => return Ok(Classified::Kept(kind)),
            Verdict::Garbage(kind) => kind,
            Verdict::OfTable(kind) if self.is_of_table(&file.path, marks).await? => kind,
            Verdict::OfTable(_) | Verdict::Unknown => return Ok(Classified::Unknown),
        };
        let is_young = file.modified_millis >= self.before_millis;
        Ok(if is_young { Classified::Young(kind) } else { Classified::Garbage(kind) })
    }

    /// Whether the file is in the folder of a managed table, existing or dropped.
    async fn is_of_table(&mut self, path: &str, marks: &impl Known) -> Result<bool> {
        if marks.is_in_table(path) {
            return Ok(true);
        }
        let Some(folder) = table_folder(path).filter(|folder| !folder.starts_with('_')) else {
            return Ok(false);
        };
        Ok(is_named_by_a_writer(path, folder) || self.was_table(folder).await?)
    }

    /// Whether the folder contains table metadata with a table id that begins with the digits at the end of the
    /// folder's name.
    async fn was_table(&mut self, folder: &str) -> Result<bool> {
        if let Some(known) = self.known_folders.get(folder) {
            return Ok(*known);
        }
        let storage = &self.storage;
        let files = storage.list(&format!("{folder}/metadata/")).await?;
        let mut was_table = false;
        for file in files.iter().filter(|file| file.path.contains(".metadata.json")).take(1) {
            let digits = table_id_digits(folder).unwrap_or_default();
            was_table = match storage.get(&file.path).await {
                Ok(bytes) => {
                    in_metadata(&bytes, &file.path).is_ok_and(|metadata| metadata.table_uuid.starts_with(digits))
                }
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
}

//! A file that is written part by part under its final name, so that a large file is never in memory as a whole.
//!
//! Invariants:
//! - The file has its own unique name from the beginning; no other file refers to it before it is finished.
//! - At most [`MAX_OPEN_FILES`] files are written in this way at the same time, so that the process has descriptors for
//!   other files.
//! - A file that is not finished is removed by the process that began it. A forked child shares the open file, but
//!   neither writes to it nor removes it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file_operations::Folder;
use crate::storage_trait::FileInParts;
use trinitylake_base::error::{Error, Result};

/// Maximum number of files that one handle writes part by part at the same time. A writer opens one file per partition,
/// and a process may be limited to a few hundred open files.
const MAX_OPEN_FILES: usize = 32;

#[derive(Debug)]
pub(super) struct MultipartFile {
    folder: Arc<Folder>,
    path: String,
    file: PathBuf,
    /// Open until the file is finished or aborted.
    handle: Option<File>,
    /// Folders above the file with entries that are not known to be durable.
    folders: Vec<PathBuf>,
    process: u32,
}

impl MultipartFile {
    /// Begins a file. `None` if [`MAX_OPEN_FILES`] files are open: the caller then uploads the file as a whole.
    pub(super) fn begin(folder: &Arc<Folder>, path: &str) -> Result<Option<MultipartFile>> {
        if folder.files_in_parts.fetch_add(1, Ordering::SeqCst) >= MAX_OPEN_FILES {
            folder.files_in_parts.fetch_sub(1, Ordering::SeqCst);
            return Ok(None);
        }
        let begun = MultipartFile::create(folder, path);
        if begun.is_err() {
            folder.files_in_parts.fetch_sub(1, Ordering::SeqCst);
        }
        begun.map(Some)
    }

    fn create(folder: &Arc<Folder>, path: &str) -> Result<MultipartFile> {
        let (file, created, folders) = folder.create_unsynced(path)?;
        let handle = created.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::ObjectAlreadyExists(format!("{path}: the file exists")),
            _ => folder.nothing_created(path, &error),
        })?;
        let (folder, path) = (Arc::clone(folder), path.to_owned());
        Ok(MultipartFile { folder, path, file, handle: Some(handle), folders, process: std::process::id() })
    }

    /// Open handle, available only in the process that began the file.
    fn own_handle(&mut self) -> Result<&mut File> {
        let is_own = self.process == std::process::id();
        self.handle.as_mut().filter(|_| is_own).ok_or_else(|| {
            Error::TransactionClosed(format!(
                "{} is not written: it was aborted, or belongs to another process",
                self.path
            ))
        })
    }

    /// Takes the handle and frees its place among the open files.
    fn take_handle(&mut self) -> Option<File> {
        let handle = self.handle.take()?;
        self.folder.files_in_parts.fetch_sub(1, Ordering::SeqCst);
        Some(handle)
    }

    fn abort(&mut self) {
        if self.take_handle().is_some() && self.process == std::process::id() {
            // If the incomplete file cannot be removed, it only takes space, because no file refers to it.
            let _ = fs::remove_file(&self.file);
        }
    }
}

impl FileInParts for MultipartFile {
    fn write(&mut self, part: &[u8]) -> Result<()> {
        let written = self.own_handle()?.write_all(part);
        written.map_err(|error| {
            self.abort();
            self.folder.nothing_created(&self.path, &error)
        })
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.own_handle()?;
        if let Some(handle) = self.take_handle() {
            self.folder.wrote_unsynced(&self.path, handle, std::mem::take(&mut self.folders));
        }
        Ok(())
    }
}

impl Drop for MultipartFile {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests;

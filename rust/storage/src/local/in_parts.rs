//! A file that is written where it lies, part by part, so that a large one is never in memory as a whole.
//!
//! Invariants:
//! - It has its own name from the beginning, which nobody else can give, and which nothing refers to before its end.
//! - As many are open as [`MAX_OPEN_FILES`] says, so that others of this process can be opened.
//! - One that could not be written to its end is removed, by the process that began it: a forked child has the same file
//!   open, and neither adds to it nor takes it away.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::folder::Folder;
use crate::storage::FileInParts;
use trinitylake_base::error::{Error, Result};

/// Files of one handle that are open at the same time: a writer of many partitions has as many, and a process a few hundred.
const MAX_OPEN_FILES: usize = 32;

#[derive(Debug)]
pub(super) struct FileAhead {
    folder: Arc<Folder>,
    path: String,
    file: PathBuf,
    /// Until its end.
    handle: Option<File>,
    /// Above it, with entries that are not known to be on disk.
    folders: Vec<PathBuf>,
    process: u32,
}

impl FileAhead {
    /// `None` while as many files are open as may be: this one is put whole.
    pub(super) fn begin(folder: &Arc<Folder>, path: &str) -> Result<Option<FileAhead>> {
        if folder.files_in_parts.fetch_add(1, Ordering::SeqCst) >= MAX_OPEN_FILES {
            folder.files_in_parts.fetch_sub(1, Ordering::SeqCst);
            return Ok(None);
        }
        let begun = FileAhead::create(folder, path);
        if begun.is_err() {
            folder.files_in_parts.fetch_sub(1, Ordering::SeqCst);
        }
        begun.map(Some)
    }

    fn create(folder: &Arc<Folder>, path: &str) -> Result<FileAhead> {
        let (file, created, folders) = folder.create_ahead(path)?;
        let handle = created.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::ObjectAlreadyExists(format!("{path}: the file exists")),
            _ => folder.nothing_created(path, &error),
        })?;
        let (folder, path) = (Arc::clone(folder), path.to_owned());
        Ok(FileAhead { folder, path, file, handle: Some(handle), folders, process: std::process::id() })
    }

    /// Open handle, in the process that began the file.
    fn own_handle(&mut self) -> Result<&mut File> {
        let is_own = self.process == std::process::id();
        self.handle.as_mut().filter(|_| is_own).ok_or_else(|| {
            Error::TransactionClosed(format!(
                "{} is not written: it was given up, or another process began it",
                self.path
            ))
        })
    }

    /// Its handle, which is nobody's any more.
    fn let_go(&mut self) -> Option<File> {
        let handle = self.handle.take()?;
        self.folder.files_in_parts.fetch_sub(1, Ordering::SeqCst);
        Some(handle)
    }

    fn give_up(&mut self) {
        if self.let_go().is_some() && self.process == std::process::id() {
            // What there is of it helps nobody, and takes space. If it stays, nothing refers to it.
            let _ = fs::remove_file(&self.file);
        }
    }
}

impl FileInParts for FileAhead {
    fn write(&mut self, part: &[u8]) -> Result<()> {
        let written = self.own_handle()?.write_all(part);
        written.map_err(|error| {
            self.give_up();
            self.folder.nothing_created(&self.path, &error)
        })
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.own_handle()?;
        if let Some(handle) = self.let_go() {
            self.folder.written_ahead(&self.path, handle, std::mem::take(&mut self.folders));
        }
        Ok(())
    }
}

impl Drop for FileAhead {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests;

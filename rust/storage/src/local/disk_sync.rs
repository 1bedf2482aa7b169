//! Waiting for the disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What is to be on disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum SyncOf<'a> {
    File(&'a Path, &'a File),
    /// The entries of a folder.
    Folder(&'a Path),
}

/// Waits for the disk; tests make it fail, and write down what was asked for.
#[derive(Clone)]
pub(super) struct DiskSync(pub(super) Arc<Sync>);

pub(super) type Sync = dyn Fn(SyncOf<'_>) -> io::Result<()> + Send + std::marker::Sync;

impl std::fmt::Debug for DiskSync {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DiskSync").finish_non_exhaustive()
    }
}

pub(super) fn sync_to_disk(what: SyncOf<'_>) -> io::Result<()> {
    match what {
        SyncOf::File(path, file) => file
            .sync_all()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        SyncOf::Folder(folder) => File::open(folder)?.sync_all(),
    }
}

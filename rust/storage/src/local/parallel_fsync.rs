//! Fsync of files and folders, many at the same time.
//!
//! Invariant: a file or folder whose fsync failed is not synced a second time. After a failed fsync, the operating
//! system may drop the dirty pages and report success for the next fsync.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use tokio::runtime::Handle;

/// Maximum number of syncs that run at the same time.
const THREADS: usize = 24;

/// A file or folder to sync.
#[derive(Clone, Copy, Debug)]
pub(super) enum SyncOf<'a> {
    File(&'a Path, &'a File),
    /// The entries of a folder.
    Folder(&'a Path),
}

/// Owned variant of [`SyncOf`], which can be sent to another thread.
#[derive(Debug)]
pub(super) enum Unsynced {
    File(PathBuf, File),
    Folder(PathBuf),
}

/// Function that syncs a file or folder. Tests replace it to make a sync fail and to record the requests.
#[derive(Clone)]
pub(super) struct DiskSync(Arc<Sync>);

pub(super) type Sync = dyn Fn(SyncOf<'_>) -> io::Result<()> + Send + std::marker::Sync;

impl std::fmt::Debug for DiskSync {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DiskSync").finish_non_exhaustive()
    }
}

pub(super) fn sync_to_disk(what: SyncOf<'_>) -> io::Result<()> {
    let (path, synced) = match what {
        SyncOf::File(path, file) => (path, file.sync_all()),
        SyncOf::Folder(path) => (path, open_folder(path).and_then(|folder| folder.sync_all())),
    };
    synced.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(unix)]
fn open_folder(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Windows syncs a folder only through a handle that may write, and opens a folder only with
/// `FILE_FLAG_BACKUP_SEMANTICS`.
#[cfg(windows)]
fn open_folder(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    File::options().read(true).write(true).custom_flags(0x0200_0000).open(path)
}

impl DiskSync {
    pub(super) fn new(sync: Arc<Sync>) -> Self {
        Self(sync)
    }

    /// Syncs to the real disks of this machine.
    pub(super) fn of_this_machine() -> Self {
        Self::new(Arc::new(sync_to_disk))
    }

    pub(super) fn one(&self, what: SyncOf<'_>) -> io::Result<()> {
        (self.0)(what)
    }

    /// Syncs files and folders, and returns a result for each of them.
    ///
    /// The syncs run at the same time, because a journaling file system writes its journal once for all waiting
    /// requests. They run on the runtime's threads for blocking work and on the current thread, so that they also end
    /// if no other thread is free.
    pub(super) fn all(&self, unsynced: Vec<Unsynced>) -> Vec<io::Result<()>> {
        let count = unsynced.len();
        let mut answers: Vec<_> = (0..count).map(|_| Err(io::Error::other("a thread ended"))).collect();
        let round = Arc::new(Round { sync: self.clone(), unsynced, next: AtomicUsize::new(0) });
        let (sender, receiver) = channel();
        if let Ok(runtime) = Handle::try_current() {
            for _ in 1..count.min(THREADS) {
                let (round, sender) = (round.clone(), sender.clone());
                drop(runtime.spawn_blocking(move || round.work(&sender)));
            }
        }
        round.work(&sender);
        drop(sender);
        for (number, answer) in receiver.iter().take(count) {
            answers[number] = answer;
        }
        answers
    }
}

/// Work that several threads share.
struct Round {
    sync: DiskSync,
    unsynced: Vec<Unsynced>,
    /// Index of the next item to sync.
    next: AtomicUsize,
}

impl Round {
    fn work(&self, answers: &Sender<(usize, io::Result<()>)>) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let answer = match self.unsynced.get(number) {
                None => return,
                Some(Unsynced::File(path, file)) => self.sync.one(SyncOf::File(path, file)),
                Some(Unsynced::Folder(folder)) => self.sync.one(SyncOf::Folder(folder)),
            };
            // The receiver lives until it has received a result for each item, so sending cannot fail.
            let _ = answers.send((number, answer));
        }
    }
}

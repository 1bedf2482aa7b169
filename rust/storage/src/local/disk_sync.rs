//! Waiting for the disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use tokio::runtime::Handle;

/// So many are waited for at the same time.
const THREADS: usize = 24;

/// What is to be on disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum SyncOf<'a> {
    File(&'a Path, &'a File),
    /// The entries of a folder.
    Folder(&'a Path),
}

/// The same, for another thread.
#[derive(Debug)]
pub(super) enum Unsynced {
    File(PathBuf, File),
    Folder(PathBuf),
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

impl DiskSync {
    /// Makes all of these last, with an answer for each. All are asked for at the same time, files and folders alike: a
    /// file system that keeps a journal writes it once for all who wait, and once more for each who comes later. The
    /// threads are those that the runtime keeps for what blocks; this thread takes its part, so where none of them is
    /// free it does it all.
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

/// What several threads sync together.
struct Round {
    sync: DiskSync,
    unsynced: Vec<Unsynced>,
    /// The first that nobody has taken.
    next: AtomicUsize,
}

impl Round {
    fn work(&self, answers: &Sender<(usize, io::Result<()>)>) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let answer = match self.unsynced.get(number) {
                None => return,
                Some(Unsynced::File(path, file)) => (self.sync.0)(SyncOf::File(path, file)),
                Some(Unsynced::Folder(folder)) => (self.sync.0)(SyncOf::Folder(folder)),
            };
            // Who asked is gone only after all have answered.
            let _ = answers.send((number, answer));
        }
    }
}

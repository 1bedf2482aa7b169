//! Waiting for the disk: for each file and folder alone, or for the whole file system once.
//!
//! Invariants:
//! - Nothing is said to last that a file or the file system could not write. Who has once been told of an error is not
//!   asked again: a system forgets what it could not write, and says "done" the next time.
//! - The file system is synced as a whole only where [`Machine`] says that this is right, and everything lies on it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::io::Errno;
use tokio::runtime::Handle;

use super::machine::{Machine, ThisMachine, begin_bytes, bytes_to_disk, file_system_to_disk};

/// So many are waited for at the same time.
const THREADS: usize = 24;

/// From here on one sync of the file system is quicker than one of each. With fewer, what is gained on a disk that has
/// nothing else to do is little beside what is lost on one that has: it is waited for more often, one thing after another.
const MIN_TOGETHER: usize = 8;
/// Bytes that others have written and that are not on disk. All of them would be waited for.
const MAX_FOREIGN_BYTES: u64 = 1 << 20;
/// Bytes of our own: with more of them their way to the disk is what takes the time.
const MAX_OWN_BYTES: u64 = 4 << 20;

/// What is to be on disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum SyncOf<'a> {
    File(&'a Path, &'a File),
    /// The entries of a folder.
    Folder(&'a Path),
    /// The bytes of a file begin their way to the disk.
    BytesBegun(&'a Path, &'a File),
    /// The bytes of a file, and nothing that leads to them.
    Bytes(&'a Path, &'a File),
    /// Everything on the file system of this folder, if the bytes of our files are on their way.
    FileSystem(&'a Path, &'a File),
}

/// The same, for another thread.
#[derive(Debug)]
pub(super) enum Unsynced {
    File(PathBuf, File),
    Folder(PathBuf),
}

/// Waits for the disk; tests make it fail, and write down what was asked for.
#[derive(Clone)]
pub(super) struct DiskSync {
    sync: Arc<Sync>,
    machine: Arc<dyn Machine>,
    /// The file system could not be synced as a whole once.
    is_each_alone: Arc<AtomicBool>,
}

pub(super) type Sync = dyn Fn(SyncOf<'_>) -> io::Result<()> + Send + std::marker::Sync;

impl std::fmt::Debug for DiskSync {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DiskSync").finish_non_exhaustive()
    }
}

pub(super) fn sync_to_disk(what: SyncOf<'_>) -> io::Result<()> {
    let (path, synced) = match what {
        SyncOf::File(path, file) => (path, file.sync_all()),
        SyncOf::Folder(path) => (path, File::open(path).and_then(|folder| folder.sync_all())),
        SyncOf::BytesBegun(path, file) => (path, begin_bytes(file)),
        SyncOf::Bytes(path, file) => (path, bytes_to_disk(file)),
        SyncOf::FileSystem(path, folder) => (path, file_system_to_disk(folder)),
    };
    synced.map_err(|error| match is_refusal(&error) {
        true => error,
        false => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    })
}

/// What became of an attempt to sync everything together.
enum Together {
    /// It was not made, or only begun.
    No,
    /// The bytes of some files were lost: the answers for all of them so far.
    Lost(Vec<io::Result<()>>),
    /// The file system was asked.
    Told(io::Result<()>),
}

impl DiskSync {
    pub(super) fn new(sync: Arc<Sync>, machine: Arc<dyn Machine>) -> Self {
        Self { sync, machine, is_each_alone: Arc::default() }
    }

    /// The disks of this machine.
    pub(super) fn of_this_machine() -> Self {
        Self::new(Arc::new(sync_to_disk), Arc::new(ThisMachine))
    }

    pub(super) fn one(&self, what: SyncOf<'_>) -> io::Result<()> {
        (self.sync)(what)
    }

    /// Makes all of these last, with an answer for each.
    pub(super) fn all(&self, unsynced: Vec<Unsynced>) -> Vec<io::Result<()>> {
        let mut answers: Vec<io::Result<()>> = match self.together(&unsynced) {
            Together::Told(told) => {
                return unsynced.iter().map(|_| told.as_ref().copied().map_err(copy)).collect();
            }
            Together::Lost(answers) => answers,
            Together::No => unsynced.iter().map(|_| Ok(())).collect(),
        };
        let (places, rest): (Vec<usize>, Vec<Unsynced>) =
            unsynced.into_iter().enumerate().filter(|(place, _)| answers[*place].is_ok()).unzip();
        for (place, answer) in places.into_iter().zip(self.each(rest)) {
            answers[place] = answer;
        }
        answers
    }

    /// Writes the bytes of all files, each of which has an answer of its own, and then syncs the file system once.
    ///
    /// The one sync alone would not do. It does not tell of bytes that found no place on the disk: the system drops them,
    /// and says "done" to it and to whoever syncs the file afterwards (Linux 6.18, ext4 that goes on after errors). Where
    /// the bytes are written for their own file, as when it is synced, that error is told. The file was opened before they
    /// were written, so it also knows what went wrong with them since.
    ///
    /// The folder is opened here, before anything is written, and for this round alone: a descriptor is told once of each
    /// error of its file system since it was opened, so no other thread, handle or forked process takes one from another.
    /// What went wrong with a folder before, a descriptor that were opened to sync it alone would not know either.
    ///
    /// If the file system has an error, all of these have it. None is asked alone: what could not be written is clean by
    /// then, and would be said to last.
    fn together(&self, unsynced: &[Unsynced]) -> Together {
        let Some((path, folder)) = self.file_system(unsynced) else { return Together::No };
        let mut answers: Vec<io::Result<()>> = Vec::with_capacity(unsynced.len());
        answers.extend(unsynced.iter().map(|thing| match thing {
            Unsynced::File(path, file) => self.one(SyncOf::BytesBegun(path, file)),
            Unsynced::Folder(_) => Ok(()),
        }));
        for (answer, thing) in answers.iter_mut().zip(unsynced) {
            if let (Ok(()), Unsynced::File(path, file)) = (&answer, thing) {
                *answer = self.one(SyncOf::Bytes(path, file));
            }
        }
        let mut errors = answers.iter().filter_map(|answer| answer.as_ref().err()).peekable();
        if errors.peek().is_some() {
            if errors.all(is_refusal) {
                self.is_each_alone.store(true, Ordering::Relaxed);
                return Together::No;
            }
            return Together::Lost(answers);
        }
        let told = self.one(SyncOf::FileSystem(path, &folder));
        let Err(error) = told else { return Together::Told(Ok(())) };
        self.is_each_alone.store(true, Ordering::Relaxed);
        if is_refusal(&error) { Together::No } else { Together::Told(Err(of_all(&error))) }
    }

    /// A folder of the file system that is to be synced, if that is right and quick.
    fn file_system<'a>(&self, unsynced: &'a [Unsynced]) -> Option<(&'a Path, File)> {
        if unsynced.len() < MIN_TOGETHER || self.is_each_alone.load(Ordering::Relaxed) {
            return None;
        }
        let path = unsynced.iter().find_map(|thing| match thing {
            Unsynced::Folder(path) => Some(path),
            Unsynced::File(..) => None,
        })?;
        let folder = File::open(path).ok()?;
        if !self.machine.may_sync_together(&folder) {
            return None;
        }
        let device = folder.metadata().ok()?.dev();
        let (mut own_bytes, mut known) = (0, HashSet::new());
        for thing in unsynced {
            if let Unsynced::File(path, file) = thing {
                let metadata = file.metadata().ok()?;
                if metadata.dev() != device {
                    return None;
                }
                own_bytes += metadata.len();
                known.extend(path.parent());
            }
        }
        // What holds one of these files lies where the file does.
        for thing in unsynced {
            if let Unsynced::Folder(path) = thing
                && !known.contains(path.as_path())
                && fs::metadata(path).ok()?.dev() != device
            {
                return None;
            }
        }
        let is_quiet = own_bytes <= MAX_OWN_BYTES
            && self.machine.dirty_bytes().is_some_and(|dirty| dirty <= own_bytes + MAX_FOREIGN_BYTES);
        is_quiet.then_some((path, folder))
    }

    /// Asks for each alone. All are asked for at the same time, files and folders alike: a file system that keeps a
    /// journal writes it once for all who wait, and once more for each who comes later. The threads are those that the
    /// runtime keeps for what blocks; this thread takes its part, so where none of them is free it does it all.
    fn each(&self, unsynced: Vec<Unsynced>) -> Vec<io::Result<()>> {
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

fn of_all(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{error} (of the whole file system, which was synced once for all)"))
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// The call is not there, or not for us (a container may forbid it): nothing was tried.
fn is_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::PERM))
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
                Some(Unsynced::File(path, file)) => self.sync.one(SyncOf::File(path, file)),
                Some(Unsynced::Folder(folder)) => self.sync.one(SyncOf::Folder(folder)),
            };
            // Who asked is gone only after all have answered.
            let _ = answers.send((number, answer));
        }
    }
}

#[cfg(test)]
mod tests;

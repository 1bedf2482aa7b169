//! One sync for all: where it is made, and what is said when it fails.

use std::collections::HashSet;
use std::sync::Mutex;

use tempfile::TempDir;

use super::*;

/// A machine that is what a test says.
#[derive(Debug)]
struct Fake {
    may_sync_together: bool,
    dirty_bytes: Option<u64>,
}

const SUITABLE: Fake = Fake { may_sync_together: true, dirty_bytes: Some(0) };

impl Machine for Fake {
    fn may_sync_together(&self, _: &File) -> bool {
        self.may_sync_together
    }

    fn dirty_bytes(&self) -> Option<u64> {
        self.dirty_bytes
    }
}

impl DiskSync {
    /// Where nothing is ever synced together.
    pub(in super::super) fn each_alone(
        sync: impl Fn(SyncOf<'_>) -> io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Self {
        Self::new(Arc::new(sync), Arc::new(Fake { may_sync_together: false, dirty_bytes: None }))
    }

    /// Where everything is synced together.
    pub(in super::super) fn together_always(
        sync: impl Fn(SyncOf<'_>) -> io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Self {
        Self::new(Arc::new(sync), Arc::new(SUITABLE))
    }
}

fn io_error() -> io::Error {
    Errno::IO.into()
}

/// A disk as a system keeps it: what could not be written is lost, and nobody is told of it twice.
#[derive(Debug, Default)]
struct Disk {
    /// Each request, as one word and its path.
    asked: Vec<(&'static str, PathBuf)>,
    /// Files whose bytes are written, and not what leads to them.
    bytes: HashSet<PathBuf>,
    lasting: HashSet<PathBuf>,
    lost: HashSet<PathBuf>,
}

impl Disk {
    /// One request, which fails or not.
    fn ask(&mut self, what: SyncOf<'_>, all: &[PathBuf], error: Option<io::Error>) -> io::Result<()> {
        let (word, path) = match what {
            SyncOf::File(path, _) => ("file", path),
            SyncOf::Folder(path) => ("folder", path),
            SyncOf::BytesBegun(path, _) => ("begun", path),
            SyncOf::Bytes(path, _) => ("bytes", path),
            SyncOf::FileSystem(path, _) => ("file system", path),
        };
        self.asked.push((word, path.to_path_buf()));
        if let Some(error) = error {
            if is_refusal(&error) {
                return Err(error);
            }
            match word {
                // It does not say which of them.
                "file system" => self.lost.extend(all.iter().step_by(2).cloned()),
                _ => drop(self.lost.insert(path.to_path_buf())),
            }
            return Err(error);
        }
        match word {
            "bytes" => drop(self.bytes.insert(path.to_path_buf())),
            "file" | "folder" => drop(self.lasting.insert(path.to_path_buf())),
            // Bytes that it has to find a place for itself are dropped, and nobody is told.
            "file system" => {
                let is_written = |path: &&PathBuf| path.is_dir() || self.bytes.contains(*path);
                let (written, dropped): (Vec<_>, Vec<_>) = all.iter().partition(is_written);
                self.lasting.extend(written.into_iter().cloned());
                self.lost.extend(dropped.into_iter().cloned());
            }
            _ => {}
        }
        Ok(())
    }

    fn lasts(&self, path: &Path) -> bool {
        self.lasting.contains(path) && !self.lost.contains(path)
    }

    fn words(&self) -> Vec<&'static str> {
        self.asked.iter().map(|(word, _)| *word).collect()
    }
}

/// Five files and their folders on a disk, of whose requests some fail.
struct Bench {
    folder: TempDir,
    paths: Vec<PathBuf>,
    disk: Arc<Mutex<Disk>>,
    sync: DiskSync,
}

type Errors = fn(usize, &SyncOf<'_>) -> Option<io::Error>;

impl Bench {
    fn new(
        machine: Fake,
        errors: impl Fn(usize, &SyncOf<'_>) -> Option<io::Error> + Send + std::marker::Sync + 'static,
    ) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "a/one", "b", "b/two", "b/three", "b/four", "c", "c/five"];
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
        for path in &paths {
            match path.parent() == Some(folder.path()) {
                true => fs::create_dir(path).unwrap(),
                false => fs::write(path, "bytes").unwrap(),
            }
        }
        let disk: Arc<Mutex<Disk>> = Arc::default();
        let (asked, all) = (disk.clone(), paths.clone());
        let sync = move |what: SyncOf<'_>| {
            let mut disk = asked.lock().unwrap();
            let error = errors(disk.asked.len(), &what);
            disk.ask(what, &all, error)
        };
        let sync = DiskSync::new(Arc::new(sync), Arc::new(machine));
        Bench { folder, paths, disk, sync }
    }

    fn unsynced(&self) -> Vec<Unsynced> {
        let unsynced = |path: &PathBuf| match path.is_dir() {
            true => Unsynced::Folder(path.clone()),
            false => Unsynced::File(path.clone(), File::open(path).unwrap()),
        };
        self.paths.iter().map(unsynced).collect()
    }

    /// Syncs all of it. Whatever is said to last does.
    fn sync(&self) -> Vec<io::Result<()>> {
        let answers = self.sync.all(self.unsynced());
        let disk = self.disk.lock().unwrap();
        for (path, answer) in self.paths.iter().zip(&answers) {
            assert!(answer.is_err() || disk.lasts(path), "{path:?} is lost: {disk:?}");
        }
        answers
    }

    fn asked(&self) -> Vec<&'static str> {
        let mut disk = self.disk.lock().unwrap();
        let words = disk.words();
        disk.asked.clear();
        words
    }
}

const NO_ERRORS: Errors = |_, _| None;
/// As few as are synced together.
const EACH: [&str; MIN_TOGETHER] = ["folder", "file", "folder", "file", "file", "file", "folder", "file"];
const TOGETHER: [&str; 11] =
    ["begun", "begun", "begun", "begun", "begun", "bytes", "bytes", "bytes", "bytes", "bytes", "file system"];

#[test]
fn one_sync_makes_all_last_when_the_bytes_are_on_their_way() {
    let bench = Bench::new(SUITABLE, NO_ERRORS);
    assert!(bench.sync().iter().all(Result::is_ok));
    assert_eq!(bench.asked(), TOGETHER);
}

/// The file system may do more than is asked for, wait for what others write, or not tell of its errors.
#[test]
fn each_is_synced_where_nobody_knows_that_one_sync_is_right() {
    let unsuitable = Fake { may_sync_together: false, dirty_bytes: Some(0) };
    let unknown = Fake { may_sync_together: true, dirty_bytes: None };
    let busy = Fake { may_sync_together: true, dirty_bytes: Some(MAX_FOREIGN_BYTES + 26) };
    for machine in [unsuitable, unknown, busy] {
        let bench = Bench::new(machine, NO_ERRORS);
        assert!(bench.sync().iter().all(Result::is_ok));
        assert_eq!(bench.asked(), EACH);
    }
    let own_bytes = Fake { may_sync_together: true, dirty_bytes: Some(MAX_FOREIGN_BYTES + 25) };
    let bench = Bench::new(own_bytes, NO_ERRORS);
    bench.sync();
    assert_eq!(bench.asked(), TOGETHER, "five times five bytes are our own");
    File::options().write(true).open(&bench.paths[1]).unwrap().set_len(MAX_OWN_BYTES + 1).unwrap();
    bench.sync();
    assert_eq!(bench.asked(), EACH, "a large file");
    let small = File::options().write(true).open(&bench.paths[1]).unwrap();
    small.set_len(5).unwrap();
    let mut few = bench.unsynced();
    few.pop();
    assert!(bench.sync.all(few).iter().all(Result::is_ok));
    assert_eq!(bench.asked(), EACH[..MIN_TOGETHER - 1], "few things");
}

/// A disk that is mounted below the root is another file system.
#[cfg(target_os = "linux")]
#[test]
fn what_lies_on_another_file_system_is_synced_alone() {
    let bench = Bench::new(SUITABLE, NO_ERRORS);
    for elsewhere in [
        Unsynced::Folder("/proc".into()),
        Unsynced::File("/proc/version".into(), File::open("/proc/version").unwrap()),
    ] {
        let mut unsynced = bench.unsynced();
        unsynced.push(elsewhere);
        assert!(bench.sync.all(unsynced).iter().all(Result::is_ok));
        assert_eq!(bench.asked().len(), EACH.len() + 1);
    }
    drop(bench.folder);
}

/// Each request of a sync fails once, and the disk is asked once more. What it lost is never said to last.
#[test]
fn whatever_fails_nothing_that_is_lost_is_said_to_last() {
    for failing in 0..TOGETHER.len() {
        let bench = Bench::new(SUITABLE, move |number, _| (number == failing).then(io_error));
        let answers = bench.sync();
        assert!(answers.iter().any(Result::is_err), "request {failing}");
        let asked = bench.asked();
        let bytes_of_one = failing + 1 < TOGETHER.len();
        assert_eq!(
            answers.iter().filter(|answer| answer.is_ok()).count(),
            if bytes_of_one { EACH.len() - 1 } else { 0 }
        );
        if bytes_of_one {
            let failed = bench.paths.iter().zip(&answers).find(|(_, answer)| answer.is_err()).unwrap().0;
            assert!(bench.disk.lock().unwrap().lost.contains(failed));
            assert!(!asked.contains(&"file system"), "{asked:?}");
            assert_eq!(
                asked.iter().filter(|word| EACH.contains(word)).count(),
                EACH.len() - 1,
                "the others: {asked:?}"
            );
        } else {
            assert_eq!(asked, TOGETHER, "none of them is asked alone, and called clean");
            assert!(answers[0].as_ref().unwrap_err().to_string().contains("whole file system"));
        }
    }
}

#[test]
fn a_file_system_that_failed_once_is_not_asked_again() {
    let bench = Bench::new(SUITABLE, |_, what| matches!(what, SyncOf::FileSystem(..)).then(io_error));
    assert!(bench.sync().iter().all(Result::is_err));
    bench.asked();
    *bench.disk.lock().unwrap() = Disk::default();
    assert!(bench.sync().iter().all(Result::is_ok));
    assert_eq!(bench.asked(), EACH);
}

/// A container that forbids the calls: nothing was tried, and no commit fails.
#[test]
fn where_a_call_is_refused_each_is_synced() {
    for errno in [Errno::NOSYS, Errno::PERM] {
        let refusals: [fn(&SyncOf<'_>) -> bool; 2] =
            [|what| matches!(what, SyncOf::BytesBegun(..)), |what| matches!(what, SyncOf::FileSystem(..))];
        for is_refused in refusals {
            let bench = Bench::new(SUITABLE, move |_, what| is_refused(what).then(|| errno.into()));
            assert!(bench.sync().iter().all(Result::is_ok));
            assert!(bench.asked().ends_with(&EACH));
            assert!(bench.sync().iter().all(Result::is_ok));
            assert_eq!(bench.asked(), EACH, "it is not tried again");
        }
    }
}

/// On this machine, whatever it has below its temporary folder.
#[test]
fn the_disk_of_this_machine_is_synced() {
    let bench = Bench::new(SUITABLE, NO_ERRORS);
    let mut machines: Vec<Arc<dyn Machine>> = vec![Arc::new(ThisMachine)];
    if ThisMachine.may_sync_together(&File::open(bench.folder.path()).unwrap()) {
        // However much others write.
        machines.push(Arc::new(SUITABLE));
    }
    for machine in machines {
        let asked: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let log = asked.clone();
        let sync = move |what: SyncOf<'_>| {
            if matches!(what, SyncOf::FileSystem(..)) {
                log.lock().unwrap().push("file system");
            }
            sync_to_disk(what)
        };
        let answers = DiskSync::new(Arc::new(sync), machine).all(bench.unsynced());
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        println!("synced together: {}", !asked.lock().unwrap().is_empty());
    }
}

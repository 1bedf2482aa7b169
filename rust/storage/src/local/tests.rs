#![cfg_attr(windows, allow(unused_imports, reason = "some tests are for Unix"))]

use std::collections::HashMap;
use std::fs;
use std::io;
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt;
#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::parallel_fsync::{SyncOf, sync_to_disk};
use super::root_folder::is_windows_name;
use super::temporary_files::{TemporaryFile, refuses_hard_links};
use super::*;
use crate::create_readback::{Claim, claim};
use crate::{open, tests::local};
use trinitylake_base::environment::testing::TestEnvironment;

fn storage(folder: &TempDir) -> Arc<dyn Storage> {
    local(folder.path(), Durability::None)
}

async fn create(storage: &dyn Storage, path: &str) -> Result<PutOutcome> {
    storage.put_if_absent(path, Bytes::from_static(b"content")).await
}

async fn paths(storage: &dyn Storage) -> Vec<String> {
    storage.list("").await.unwrap().into_iter().map(|file| file.path).collect()
}

#[tokio::test]
async fn a_root_that_does_not_exist_is_empty_until_the_first_file() {
    for durability in [Durability::Fsync, Durability::None] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("not/yet");
        let storage = local(&root, durability);
        assert_eq!(storage.list("").await.unwrap(), []);
        assert!(storage.get("file").await.unwrap_err().is_file_not_found());
        storage.delete("file").await.unwrap();
        assert!(!root.exists(), "reading created the folder");
        create(&*storage, "a/file").await.unwrap();
        assert_eq!(paths(&*storage).await, ["a/file"]);
    }
}

/// A handle caches which folders exist, and with fsync which folders are durable. It empties the cache when another
/// process has removed a folder.
#[tokio::test]
async fn only_durable_folders_are_cached() {
    for durability in [Durability::Fsync, Durability::None] {
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::new(&RootUri::parse(folder.path().to_str().unwrap()).unwrap(), durability);
        assert!(!storage.folder().knows_folder("a/b"));
        storage.write_unsynced("a/b/first", Bytes::from_static(b"content")).await.unwrap();
        assert_eq!(storage.folder().knows_folder("a/b"), durability == Durability::None, "a file was synced too early");
        storage.sync(&["a/b/first".to_owned()]).await.unwrap();
        assert!(storage.folder().knows_folder("a/b") && !storage.folder().knows_folder("a/c"));
        fs::remove_dir_all(folder.path().join("a")).unwrap();
        create(&storage, "a/b/second").await.unwrap();
        assert!(storage.folder().knows_folder("a/b"), "made again");
    }
}

/// Writes are refused if the root is another folder than before. Otherwise, if a disk is unmounted for a moment, a
/// server that has all needed files in its caches would report commits that it wrote to the empty folder in place of
/// the disk.
#[tokio::test]
async fn a_write_is_refused_if_another_folder_replaced_the_root() {
    for durability in [Durability::Fsync, Durability::None] {
        let place = tempfile::tempdir().unwrap();
        let (root, away) = (place.path().join("lake"), place.path().join("away"));
        let storage = local(&root, durability);
        assert_eq!(create(&*storage, "a/first").await.unwrap(), PutOutcome::Created, "the root is created");
        assert_eq!(create(&*storage, "_001.arrow").await.unwrap(), PutOutcome::Created);
        let refused = async |why: &str| {
            for path in ["_002.arrow", "a/second", "b/second"] {
                let created = create(&*storage, path).await;
                assert!(matches!(created, Err(Error::StorageRefused(_))), "{why} {path}: {created:?}");
            }
        };
        fs::rename(&root, &away).unwrap();
        refused("gone").await;
        assert!(!root.exists());
        fs::create_dir(&root).unwrap();
        refused("empty").await;
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "the other folder stays empty");
        fs::create_dir(root.join("a")).unwrap();
        refused("another").await;
        fs::remove_dir_all(&root).unwrap();
        fs::rename(&away, &root).unwrap();
        assert_eq!(create(&*storage, "_002.arrow").await.unwrap(), PutOutcome::Created, "back again");
        assert_eq!(create(&*storage, "a/second").await.unwrap(), PutOutcome::Created);
    }
}

/// Files that dead writers left are neither listed nor read, and do not disturb later writers (failure mode 30).
#[tokio::test]
async fn leftover_temporary_files_are_hidden_and_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    for name in ["_001.arrow#1", "_001.arrow#2", "_staged#1000000001", "a#b#7"] {
        fs::write(folder.path().join(name), "half a fi").unwrap();
    }
    // All temporary names that this process would use next are taken.
    for number in 0..300 {
        fs::write(folder.path().join(format!("_staged#{}{number:09}", std::process::id())), "").unwrap();
    }
    let synced = local(folder.path(), Durability::Fsync);
    assert_eq!(create(&*synced, "_001.arrow").await.unwrap(), PutOutcome::Created);
    storage.put_hint("hint", Bytes::new()).await.unwrap();
    assert_eq!(paths(&*storage).await, ["_001.arrow", "hint"]);
    assert_eq!(storage.list("_").await.unwrap().len(), 1);
    for path in ["file#1", "a/b#22"] {
        assert!(matches!(create(&*storage, path).await, Err(Error::InvalidLocation(_))), "{path}");
    }
    for path in ["file#", "file#1a", "#1/file", "t#1.arrow"] {
        create(&*storage, path).await.unwrap();
    }
}

#[tokio::test]
async fn losing_writers_leave_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    for _ in 0..3 {
        create(&*storage, "file").await.unwrap();
        storage.put_hint("hint", Bytes::new()).await.unwrap();
    }
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 2);
}

/// A file or folder behind a link that leads out of the root is neither read, written, listed nor deleted (failure mode
/// 42).
#[cfg(unix)]
#[tokio::test]
async fn a_link_out_of_the_root_is_not_followed() {
    for durability in [Durability::Fsync, Durability::None] {
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("folder")).unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let folder = tempfile::tempdir().unwrap();
        symlink(outside.path(), folder.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
        symlink("../../../../../../../../etc", folder.path().join("relative")).unwrap();
        let storage = local(folder.path(), durability);
        for path in ["out/secret", "file", "relative/passwd"] {
            let refused = |error: Error| {
                let Error::InvalidLocation(message) = error else { panic!("{path} {error:?}") };
                assert!(message.contains("leads out of the lakehouse"), "{message}");
            };
            refused(storage.get(path).await.unwrap_err());
            refused(storage.get_range(path, 0..1).await.unwrap_err());
            refused(storage.head(path).await.unwrap_err());
        }
        for path in ["out/new", "out/folder/new", "out/new/new"] {
            assert!(matches!(create(&*storage, path).await, Err(Error::InvalidLocation(_))), "{path}");
            assert!(matches!(storage.put_hint(path, Bytes::new()).await, Err(Error::InvalidLocation(_))), "{path}");
        }
        assert!(matches!(storage.delete("out/secret").await, Err(Error::InvalidLocation(_))));
        assert!(matches!(storage.list("out/").await, Err(Error::InvalidLocation(_))));
        assert_eq!(paths(&*storage).await, [""; 0]);
        // Deleting the link itself is allowed, and does not touch its target.
        storage.delete("file").await.unwrap();
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_within_the_root_is_followed_but_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    create(&*storage, "a/file").await.unwrap();
    symlink("a/file", folder.path().join("link")).unwrap();
    symlink("a", folder.path().join("b")).unwrap();
    symlink("absent", folder.path().join("dangling")).unwrap();
    symlink(".", folder.path().join("loop")).unwrap();
    for path in ["link", "b/file", "loop/loop/a/file"] {
        assert_eq!(storage.get(path).await.unwrap(), "content", "{path}");
    }
    assert!(!storage.exists("dangling").await.unwrap());
    assert!(matches!(create(&*storage, "dangling").await, Err(Error::StorageRefused(_))));
    assert_eq!(create(&*storage, "link").await.unwrap(), PutOutcome::AlreadyExists);
    assert_eq!(paths(&*storage).await, ["a/file"]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_root_may_itself_be_a_link() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("real")).unwrap();
    symlink("real", folder.path().join("lake")).unwrap();
    let storage = local(&folder.path().join("lake"), Durability::Fsync);
    create(&*storage, "a/file").await.unwrap();
    assert_eq!(paths(&*storage).await, ["a/file"]);
    assert!(folder.path().join("real/a/file").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn only_regular_files_exist() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    fs::create_dir(folder.path().join("folder")).unwrap();
    // Reading a pipe without a writer would block forever.
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
    assert!(made.success());
    symlink("nowhere", folder.path().join("link")).unwrap();
    symlink("circle", folder.path().join("circle")).unwrap();
    for path in ["folder", "pipe", "link", "circle"] {
        assert!(storage.get(path).await.unwrap_err().is_file_not_found(), "{path}");
        assert!(!storage.exists(path).await.unwrap(), "{path}");
        let refused = create(&*storage, path).await.unwrap_err();
        assert!(matches!(&refused, Error::StorageRefused(message) if message.contains(path)), "{path}: {refused}");
    }
    storage.delete("folder").await.unwrap();
    assert!(folder.path().join("folder").exists());
    assert_eq!(paths(&*storage).await, [""; 0]);
}

/// If the name of the next root belongs to a folder, a pipe or a link without a target, a commit fails at once.
/// Otherwise it would retry for its whole time limit and report an unknown outcome. With a cycle of links, the
/// lakehouse could not even be opened.
#[cfg(unix)]
#[tokio::test]
async fn a_claim_of_a_name_that_is_not_a_file_is_refused() {
    for durability in [Durability::Fsync, Durability::None] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("_0.arrow")).unwrap();
        symlink("nowhere", folder.path().join("_1.arrow")).unwrap();
        symlink("_3.arrow", folder.path().join("_2.arrow")).unwrap();
        symlink("_2.arrow", folder.path().join("_3.arrow")).unwrap();
        let storage = local(folder.path(), durability);
        for path in ["_0.arrow", "_1.arrow", "_2.arrow"] {
            let environment = TestEnvironment::seeded(1);
            let claim = claim(storage.as_ref(), &*environment, path, Bytes::from_static(b"root"), 0).await;
            assert!(matches!(&claim, Claim::Refused(_)), "{path}: {claim:?}");
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_listing_leaves_out_invalid_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in [&b"not utf-8 \xff"[..], b"line\nbreak", b"\x7f"] {
        let name = std::ffi::OsStr::from_bytes(name);
        fs::write(folder.path().join(name), "").unwrap();
        fs::create_dir(folder.path().join(name).with_extension("folder")).unwrap();
    }
    let storage = storage(&folder);
    create(&*storage, "file").await.unwrap();
    assert_eq!(paths(&*storage).await, ["file"]);
}

/// A path segment may have 255 bytes. A longer one is an invalid location in every operation (failure mode 39).
#[cfg(unix)]
#[tokio::test]
async fn a_segment_of_255_bytes_is_the_longest() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    let longest = "x".repeat(255);
    create(&*storage, &longest).await.unwrap();
    create(&*storage, &format!("a/{longest}")).await.unwrap();
    storage.put_hint(&longest, Bytes::new()).await.unwrap();
    let too_long = "x".repeat(256);
    for path in [too_long.clone(), format!("{too_long}/file")] {
        for error in [
            create(&*storage, &path).await.unwrap_err(),
            storage.get(&path).await.unwrap_err(),
            storage.delete(&path).await.unwrap_err(),
        ] {
            let Error::InvalidLocation(message) = error else { panic!("{error:?}") };
            assert!(message.contains("too long"), "{message}");
        }
    }
}

#[tokio::test]
async fn an_error_names_a_file_in_place_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for (root, path) in [(folder.path().to_owned(), "file/below"), (folder.path().join("file"), "below")] {
        for durability in [Durability::Fsync, Durability::None] {
            let storage = local(&root, durability);
            for error in
                [create(&*storage, path).await.unwrap_err(), storage.put_hint(path, Bytes::new()).await.unwrap_err()]
            {
                let Error::StorageRefused(message) = error else { panic!("{error:?}") };
                assert!(message.contains("not a folder") && message.contains("file/below"), "{message}");
            }
            assert!(storage.get(path).await.unwrap_err().is_file_not_found());
        }
    }
}

#[tokio::test]
async fn a_removed_folder_is_created_again() {
    for durability in [Durability::Fsync, Durability::None] {
        let folder = tempfile::tempdir().unwrap();
        let storage = local(folder.path(), durability);
        create(&*storage, "a/b/one").await.unwrap();
        fs::remove_dir_all(folder.path().join("a")).unwrap();
        create(&*storage, "a/b/two").await.unwrap();
        fs::remove_dir_all(folder.path().join("a")).unwrap();
        storage.put_hint("a/b/three", Bytes::new()).await.unwrap();
        assert_eq!(paths(&*storage).await, ["a/b/three"]);
    }
}

/// If a link was created but the reply reports a failure, the inode of the file shows the success (failure mode 28).
#[test]
fn a_created_link_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let temporary = TemporaryFile::write(&file, b"ours", Durability::None).unwrap();
    assert!(!temporary.is_same_file(&file));
    fs::write(&file, "theirs").unwrap();
    assert!(!temporary.is_same_file(&file));
    fs::remove_file(&file).unwrap();
    fs::hard_link(&temporary.path, &file).unwrap();
    assert!(temporary.is_same_file(&file));
}

/// A disk without hard links is recognised by the error code. For example, Linux reports EPERM for a file system such
/// as FAT (failure mode 29).
#[cfg(unix)]
#[test]
fn a_disk_without_hard_links_is_recognised() {
    for (code, refuses) in [(1, true), (95, true), (31, true), (18, true), (17, false), (28, false), (2, false)] {
        assert_eq!(refuses_hard_links(&io::Error::from_raw_os_error(code)), refuses, "{code}");
    }
}

#[tokio::test]
async fn a_handle_works_from_many_threads_and_runtimes() {
    let folder = tempfile::tempdir().unwrap();
    let root = RootUri::parse(folder.path().to_str().unwrap()).unwrap();
    let storage = open(&root, &HashMap::new(), Durability::Fsync).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let storage = storage.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for file in 0..10 {
                    // All threads create the same new folders at the same time.
                    let path = format!("{file}/a/b/{thread}");
                    runtime.block_on(create(&*storage, &path)).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(paths(&*storage).await.len(), 40);
}

/// A local storage whose first `failures` syncs of folders fail.
fn with_failing_syncs(folder: &Path, failures: usize) -> (LocalStorage, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(failures));
    let counted = left.clone();
    let sync = move |what: SyncOf<'_>| {
        if matches!(what, SyncOf::File(..)) {
            return sync_to_disk(what);
        }
        let is_left = |left: usize| left.checked_sub(1);
        match counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_left) {
            Ok(_) => Err(io::Error::from_raw_os_error(5)),
            Err(_) => sync_to_disk(what),
        }
    };
    let root = RootUri::parse(folder.to_str().unwrap()).unwrap();
    (LocalStorage::with_sync(&root, Durability::Fsync, DiskSync::new(Arc::new(sync))), left)
}

async fn claim_root(storage: &LocalStorage) -> Claim {
    let environment = trinitylake_base::environment::testing::TestEnvironment::seeded(1);
    claim(storage, environment.as_ref(), "_root", Bytes::from_static(b"mine"), 30_000).await
}

/// A root whose folder could not be synced is not reported as committed. Otherwise, if the sync fails with EIO after
/// the root was linked, the writer would read its own bytes and report "committed", and a power loss could then remove
/// the version.
#[tokio::test]
async fn mode_46_a_file_whose_sync_failed_is_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, left) = with_failing_syncs(folder.path(), usize::MAX);
    let answer = claim_root(&storage).await;
    assert!(matches!(answer, Claim::Unknown(Error::CommitStateUnknown(_))), "{answer:?}");
    assert!(left.load(Ordering::SeqCst) < usize::MAX - 3, "the sync was not retried");
    for doubtful in [storage.get("_root").await.map(drop), storage.head("_root").await.map(drop)] {
        assert!(matches!(doubtful, Err(Error::Storage { retryable: true, .. })), "{doubtful:?}");
    }
    // Other handles may read the file, also new ones in this process, because they sync the same folder before they
    // publish a root that is based on it.
    let (other, _) = with_failing_syncs(folder.path(), 0);
    assert_eq!(other.get("_root").await.unwrap(), "mine");
}

#[tokio::test]
async fn a_sync_that_succeeds_later_settles_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, left) = with_failing_syncs(folder.path(), 2);
    assert!(matches!(claim_root(&storage).await, Claim::Won { sent_once: false }));
    assert_eq!(left.load(Ordering::SeqCst), 0);
    assert_eq!(storage.get("_root").await.unwrap(), "mine");
    assert_eq!(storage.list("").await.unwrap().len(), 1, "a temporary file was left");
}

#[tokio::test]
async fn settling_a_file_syncs_its_new_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, left) = with_failing_syncs(folder.path(), 1);
    storage.put_if_absent("a/b/file", Bytes::from_static(b"x")).await.unwrap_err();
    assert_eq!(left.load(Ordering::SeqCst), 0);
    let again = storage.put_if_absent("a/b/file", Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(again, PutOutcome::AlreadyExists, "after it was synced");
    assert!(storage.folder().durable.has("a/b"), "and the folders above it");
}

/// Retries on a local disk end soon. Otherwise a process without free file descriptors would retry each request for
/// half a minute.
#[tokio::test]
async fn retries_against_a_local_disk_end_soon() {
    use trinitylake_base::environment::Environment;
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    let environment = TestEnvironment::seeded(1);
    let mut retries = storage.retry_policy().begin(environment.as_ref());
    let mut attempts = 1;
    while retries.pause().await {
        attempts += 1;
    }
    let waited = environment.elapsed_millis();
    assert!(waited <= 2_000 && (4..=11).contains(&attempts), "{attempts} attempts in {waited} ms");
}

/// A process that is killed while it writes the hint leaves no hint above all roots. Otherwise, if it is killed after
/// it wrote "99" over "100" and before it truncates the file, the hint would be 990, and all commits would fail until
/// an operator deletes it.
#[cfg(unix)]
#[tokio::test]
async fn a_shorter_hint_is_never_written_over_a_longer_one() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    let file = folder.path().join("hint");
    let inode = || fs::metadata(&file).unwrap().ino();
    storage.put_hint("hint", Bytes::from_static(b"98")).await.unwrap();
    let first = fs::File::open(&file).unwrap();
    for longer in ["99", "100"] {
        let before = inode();
        storage.put_hint("hint", Bytes::from_static(longer.as_bytes())).await.unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), inode()), (longer, before), "in place");
    }
    storage.put_hint("hint", Bytes::from_static(b"99")).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "99");
    assert_eq!(std::io::read_to_string(first).unwrap(), "100", "the old file was changed");
    assert_eq!(paths(&*storage).await, ["hint"]);
}

/// Files and folders that were synced, and whether the root was visible at that time.
#[derive(Clone, Debug, Default)]
struct SyncLog(Arc<std::sync::Mutex<Vec<(PathBuf, bool)>>>);

impl SyncLog {
    fn take(&self) -> Vec<(PathBuf, bool)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A local storage that records what it syncs, and whether the file `root_file` existed at that time.
fn with_log(folder: &Path, root_file: &'static str) -> (LocalStorage, SyncLog) {
    let (log, base) = (SyncLog::default(), folder.to_path_buf());
    let written = log.clone();
    let sync = move |what: SyncOf<'_>| {
        let (SyncOf::File(path, _) | SyncOf::Folder(path)) = what;
        let relative = path.strip_prefix(&base).unwrap_or(path).to_path_buf();
        let is_seen = !root_file.is_empty() && base.join(root_file).exists();
        written.0.lock().unwrap().push((relative, is_seen));
        sync_to_disk(what)
    };
    let root = RootUri::parse(folder.to_str().unwrap()).unwrap();
    (LocalStorage::with_sync(&root, Durability::Fsync, DiskSync::new(Arc::new(sync))), log)
}

/// All files and folder entries are synced before the root becomes visible. Otherwise a power loss could remove the
/// entry of a definition, or of its folder, although the root exists.
#[tokio::test]
async fn all_files_are_durable_before_the_root_and_each_folder_is_synced_once() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, log) = with_log(folder.path(), "_root");
    let files = ["a/b/c/one", "a/b/c/two", "a/b/d/three", "data/four", "five"];
    for file in files {
        storage.write_unsynced(file, Bytes::from(file)).await.unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(file)).unwrap(), file, "it has its final name");
    }
    assert!(log.take().is_empty(), "a file was synced too early");
    storage.sync(&files.map(str::to_string)).await.unwrap();
    let mut names: Vec<String> = log.take().iter().map(|(path, _)| path.display().to_string()).collect();
    names.sort();
    let folders = ["", "a", "a/b", "a/b/c", "a/b/d", "data"];
    let mut expected: Vec<&str> = files.iter().chain(&folders).copied().collect();
    expected.sort_unstable();
    assert_eq!(names, expected, "each file and each folder once");

    let root = Bytes::from_static(b"root");
    assert_eq!(storage.put_if_absent("_root", root).await.unwrap(), PutOutcome::Created);
    assert_eq!(log.take(), [(PathBuf::new(), true)], "its folder entry, after the file was synced and linked");
    assert_eq!(paths(&storage).await.len(), 6, "a temporary file was left");
}

/// A sync fails if it fails in any of its threads, and the error names the file.
#[tokio::test]
async fn the_error_names_the_file_whose_sync_failed() {
    let files = ["one", "two", "three"];
    for broken in files {
        let folder = tempfile::tempdir().unwrap();
        let sync = move |what: SyncOf<'_>| match what {
            SyncOf::File(path, _) if path.ends_with(broken) => Err(io::Error::from_raw_os_error(5)),
            what => sync_to_disk(what),
        };
        let root = RootUri::parse(folder.path().to_str().unwrap()).unwrap();
        let storage = LocalStorage::with_sync(&root, Durability::Fsync, DiskSync::new(Arc::new(sync)));
        for file in files {
            storage.write_unsynced(file, Bytes::from(file)).await.unwrap();
        }
        let error = storage.sync(&files.map(str::to_string)).await.unwrap_err();
        assert!(error.to_string().contains(broken), "{error}");
    }
}

/// Files and folders are synced at the same time. Otherwise each folder would add one wait for the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn files_and_folders_are_synced_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a/one", "b/two", "c/three"];
    // No sync ends before all seven have begun: three files, their folders, and the root folder.
    let here = Arc::new((std::sync::Mutex::new(0), std::sync::Condvar::new()));
    let sync = move |_: SyncOf<'_>| {
        let (count, came) = &*here;
        let mut count = count.lock().unwrap();
        *count += 1;
        came.notify_all();
        let alone = came.wait_timeout_while(count, std::time::Duration::from_secs(20), |count| *count < 7).unwrap().1;
        if alone.timed_out() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(()) }
    };
    let root = RootUri::parse(folder.path().to_str().unwrap()).unwrap();
    let storage = LocalStorage::with_sync(&root, Durability::Fsync, DiskSync::new(Arc::new(sync)));
    for file in files {
        storage.write_unsynced(file, Bytes::from(file)).await.unwrap();
    }
    storage.sync(&files.map(str::to_string)).await.unwrap();
}

/// If all threads of the runtime are busy, the caller syncs alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_sync_needs_no_other_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, log) = with_log(folder.path(), "");
    storage.write_unsynced("a/b/file", Bytes::from_static(b"x")).await.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    drop(runtime.spawn_blocking(move || held.recv()));
    let synced = std::thread::spawn(move || {
        let _inside = runtime.enter();
        let synced = storage.folder().sync(&["a/b/file".into()]);
        drop(release);
        synced
    });
    synced.join().unwrap().unwrap();
    assert_eq!(log.take().len(), 4, "the file, and the entries of three folders");
}

/// A file whose fsync failed is not reported as durable when the next fsync succeeds.
#[tokio::test]
async fn a_file_whose_sync_failed_is_never_reported_as_durable() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, left) = with_failing_syncs(folder.path(), 1);
    storage.write_unsynced("a/file", Bytes::from_static(b"x")).await.unwrap();
    for _ in 0..2 {
        let answer = storage.sync(&["a/file".into()]).await;
        assert!(matches!(answer, Err(Error::Storage { retryable: false, .. })), "{answer:?}");
    }
    assert_eq!(left.load(Ordering::SeqCst), 0);
    storage.write_unsynced("a/other", Bytes::from_static(b"x")).await.unwrap();
    storage.sync(&["a/other".into()]).await.unwrap();
}

/// A file whose sync failed is written again by a later request for it. Otherwise, if two transactions with the same
/// chosen id write the same file and the fsync of the first one fails, the second one would find the file and sync
/// nothing.
#[cfg(unix)]
#[tokio::test]
async fn a_file_whose_sync_failed_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, left) = with_failing_syncs(folder.path(), 1);
    let inode = || folder.path().join("a/file").metadata().unwrap().ino();
    storage.write_unsynced("a/file", Bytes::from_static(b"x")).await.unwrap();
    let first = inode();
    storage.write_unsynced("a/file", Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(inode(), first, "a file that was not lost is not written again");
    storage.sync(&["a/file".into()]).await.unwrap_err();
    assert_eq!(left.load(Ordering::SeqCst), 0);
    storage.write_unsynced("a/file", Bytes::from_static(b"x")).await.unwrap();
    assert_ne!(inode(), first, "a new inode, whose pages are dirty");
    storage.sync(&["a/file".into()]).await.unwrap();
    assert_eq!(storage.get("a/file").await.unwrap(), "x");
    assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 1, "a temporary file was left");
}

#[tokio::test]
async fn a_file_that_another_handle_wrote_ahead_is_synced_with_its_folders() {
    let folder = tempfile::tempdir().unwrap();
    storage(&folder).write_unsynced("a/b/file", Bytes::from_static(b"x")).await.unwrap();
    let (other, log) = with_log(folder.path(), "");
    other.sync(&["a/b/file".into()]).await.unwrap();
    let names: Vec<String> = log.take().iter().map(|(path, _)| path.display().to_string()).collect();
    for expected in ["a/b/file", "a/b", "a", ""] {
        assert!(names.iter().any(|name| name == expected), "{expected:?}: {names:?}");
    }
}

/// Names are unique: an existing file was written by an earlier attempt of the same request; other content is
/// corruption.
#[tokio::test]
async fn writing_a_file_ahead_twice_needs_the_same_content() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage(&folder);
    storage.write_unsynced("file", Bytes::from_static(b"ours")).await.unwrap();
    storage.write_unsynced("file", Bytes::from_static(b"ours")).await.unwrap();
    let answer = storage.write_unsynced("file", Bytes::from_static(b"theirs")).await;
    assert!(matches!(answer, Err(Error::CorruptFile { .. })), "{answer:?}");
    assert_eq!(storage.get("file").await.unwrap(), "ours");
}

/// An incomplete file of a killed export is replaced. Otherwise each later export to the same place would fail, because
/// the file has other content.
#[tokio::test]
async fn the_beginning_of_a_file_is_replaced_by_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    for there in ["", "ou", "ours"] {
        std::fs::write(folder.path().join("file"), there).unwrap();
        storage(&folder).put_unique("file", Bytes::from_static(b"ours")).await.unwrap();
        assert_eq!(storage(&folder).get("file").await.unwrap(), "ours");
    }
}

/// On Windows, a path such as `a\..\..\b` is refused, because it would leave the root.
#[test]
fn names_that_mean_another_file_on_windows_are_found() {
    for name in ["a\\b", "a:b", "con", "Nul.txt", "com1", "LPT².x", "a.", "a ", "a*", "a?", "<a>", "a|b", "\"a\""] {
        assert!(!is_windows_name(name), "{name}");
    }
    for name in ["a", "_latest_hint.txt", "Größe-01234567", "console", "com10", "com", "a.b", ".a", "a#b"] {
        assert!(is_windows_name(name), "{name}");
    }
}

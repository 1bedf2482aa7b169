#![cfg_attr(windows, allow(unused_imports, reason = "some tests are for Unix"))]

//! Files that are written part by part: their durability, and the removal of unfinished ones.

use std::sync::Mutex;

use super::super::LocalStorage;
use super::super::parallel_fsync::{DiskSync, SyncOf, sync_to_disk};
use crate::memory_files::MemoryFiles;
use crate::{BackgroundUploads, CountingStorage, Durability, Storage};
use trinitylake_base::environment::SystemEnvironment;
use trinitylake_base::root_uri::RootUri;

use super::*;

fn root(folder: &tempfile::TempDir) -> RootUri {
    RootUri::parse(folder.path().to_str().unwrap()).unwrap()
}

fn local(folder: &tempfile::TempDir) -> Arc<dyn Storage> {
    Arc::new(LocalStorage::new(&root(folder), Durability::None))
}

fn pending(storage: Arc<dyn Storage>) -> Arc<BackgroundUploads> {
    BackgroundUploads::new(storage, SystemEnvironment::shared())
}

fn files(folder: &tempfile::TempDir) -> Vec<PathBuf> {
    let data = folder.path().join("data");
    fs::read_dir(data).map_or_else(|_| Vec::new(), |files| files.map(|file| file.unwrap().path()).collect())
}

/// Each part is written immediately. Otherwise a file of 400 MB would stay in memory until it is complete.
#[cfg(unix)]
#[tokio::test]
async fn parts_are_written_at_once_and_synced_with_the_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let synced: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
    let log = synced.clone();
    let sync = move |what: SyncOf<'_>| {
        let (SyncOf::File(path, _) | SyncOf::Folder(path)) = &what;
        log.lock().unwrap().push(path.to_path_buf());
        sync_to_disk(what)
    };
    let storage = LocalStorage::with_sync(&root(&folder), Durability::Fsync, DiskSync::new(Arc::new(sync)));
    let counting = Arc::new(CountingStorage::new(Arc::new(storage)));
    let pending = pending(counting.clone());
    let mut file = pending.begin("data/large").await.unwrap().unwrap();
    file.write(b"first ").unwrap();
    file.write(b"and last").unwrap();
    assert_eq!(fs::read(folder.path().join("data/large")).unwrap(), b"first and last", "before it is finished");
    assert!(!pending.has("data/large") && synced.lock().unwrap().is_empty());
    file.finish().unwrap();
    assert!(pending.has("data/large") && !pending.is_settled(), "the commit has to sync it");
    let paths = pending.written().await.unwrap();
    assert_eq!(paths, ["data/large"]);
    counting.sync(&paths).await.unwrap();
    let real = folder.path().canonicalize().unwrap();
    for expected in [real.join("data/large"), real.join("data"), real.clone()] {
        assert!(synced.lock().unwrap().contains(&expected), "{expected:?} was not synced: {synced:?}");
    }
    let counters = counting.counters();
    assert_eq!((counters.put_if_absent, counters.written_bytes), (1, 14));
}

/// A failed writer removes its file. Otherwise it would leave gigabytes under names that no file refers to.
#[tokio::test]
async fn an_unfinished_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let pending = pending(local(&folder));
    let mut unfinished = pending.begin("data/a").await.unwrap().unwrap();
    unfinished.write(b"half of it").unwrap();
    assert_eq!(files(&folder).len(), 1);
    drop(unfinished);
    assert!(files(&folder).is_empty() && !pending.has("data/a"));

    let mut late = pending.begin("data/b").await.unwrap().unwrap();
    let later = pending.begin("data/c").await.unwrap().unwrap();
    pending.cancel();
    assert!(matches!(late.write(b"more"), Err(Error::TransactionClosed(_))));
    assert!(matches!(later.finish(), Err(Error::TransactionClosed(_))));
    drop(late);
    assert!(files(&folder).is_empty(), "the transaction was over");
    assert!(pending.begin("data/d").await.is_err());
}

#[tokio::test]
async fn an_existing_file_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let storage = local(&folder);
    storage.write_unsynced("data/a", "theirs".into()).await.unwrap();
    let answer = pending(storage.clone()).begin("data/a").await.err();
    assert!(matches!(answer, Some(Error::ObjectAlreadyExists(_))), "{answer:?}");
    assert_eq!(storage.get("data/a").await.unwrap(), "theirs");
}

/// A forked child does not remove an unfinished file of its parent when the child ends.
#[tokio::test]
async fn a_forked_child_neither_appends_to_a_file_nor_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let begun = Arc::new(Folder::new(
        super::super::RootFolder::new(&root(&folder)),
        Durability::None,
        DiskSync::of_this_machine(),
    ));
    let mut file = MultipartFile::begin(&begun, "data/a").unwrap().unwrap();
    file.write(b"ours").unwrap();
    file.process += 1; // as a child sees it
    assert!(matches!(file.write(b"theirs"), Err(Error::TransactionClosed(_))));
    drop(file);
    assert_eq!(fs::read(folder.path().join("data/a")).unwrap(), b"ours");
}

/// The number of open files is limited. Otherwise an append to many partitions would exhaust the file descriptors of
/// the process.
#[tokio::test]
async fn the_number_of_open_files_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let pending = pending(local(&folder));
    let mut open = Vec::new();
    while let Some(file) = pending.begin(&format!("data/{}", open.len())).await.unwrap() {
        open.push(file);
        assert!(open.len() <= MAX_OPEN_FILES);
    }
    assert_eq!((open.len(), files(&folder).len()), (MAX_OPEN_FILES, MAX_OPEN_FILES));
    open.pop().unwrap().finish().unwrap();
    drop(open.pop());
    pending.begin("data/0").await.err().expect("an existing file is refused and not counted");
    for again in ["data/x", "data/y"] {
        open.push(pending.begin(again).await.unwrap().expect("another file may be opened again"));
    }
    assert!(pending.begin("data/z").await.unwrap().is_none());
}

#[tokio::test]
async fn other_stores_accept_only_whole_files() {
    assert!(pending(MemoryFiles::shared()).begin("data/a").await.unwrap().is_none());
}

//! Discovery of the latest version, for any content of the hint.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;

use super::refresh::{ROUNDS, rounds};
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::file_names::{LATEST_HINT_PATH, boundary_path, root_path, root_path_000, root_version};
use crate::node::codec::encode;
use crate::node::mutable_node::MutableNode;
use crate::storage::latency::LatencyStorage;
use crate::storage::{CountingStorage, FileInfo, PutOutcome, Storage};
use crate::tests::fixture::{MemoryFiles, add_namespace, new_lakehouse, open, small_definition};
use crate::version::Version;
use crate::version::discovery::{self, Found};
use crate::version::history::PAGE;
use crate::version::root_metadata::RootMetadata;

const LATEST: u64 = 12;

/// A lakehouse with versions 0 to 12; `expire_before` expires the first ones.
async fn lake(expire_before: Option<u64>) -> Arc<MemoryFiles> {
    let (files, _, lakehouse) = new_lakehouse().await;
    for i in 0..LATEST {
        add_namespace(&lakehouse, &format!("n{i}")).await.unwrap();
    }
    if expire_before.is_some() {
        expire(&lakehouse, expire_before, false).await.unwrap();
    }
    files
}

async fn assert_found(hint: Option<&'static [u8]>) {
    for expire_before in [None, Some(1), Some(8), Some(LATEST)] {
        let files = lake(expire_before).await;
        match hint {
            Some(hint) => files.overwrite(LATEST_HINT_PATH, hint),
            None => files.delete(LATEST_HINT_PATH).await.unwrap(),
        }
        let environment = TestEnvironment::seeded(2);
        let lakehouse = open(files, &environment).await;
        assert_eq!(lakehouse.known().number, LATEST, "hint {hint:?}, expired before {expire_before:?}");
        assert_eq!(add_namespace(&lakehouse, "more").await.unwrap(), LATEST + 1);
    }
}

/// The latest version is found from a stale hint.
#[tokio::test]
async fn mode_6_stale_hint() {
    assert_found(Some(b"0")).await;
    assert_found(Some(b"5")).await;
    assert_found(Some(b"11")).await;
}

#[tokio::test]
async fn mode_8_corrupt_or_empty_hint() {
    for hint in [b"".as_slice(), b"\xFF\xFE", b"latest", b"-1", b"1e3", b"99999999999999999999", &[b'1'; 4096]] {
        assert_found(Some(hint)).await;
    }
    assert_found(Some(b" 12\n")).await;
}

/// The latest version is found without a hint. Otherwise a reader would search from version 0, which has expired, and
/// report that no lakehouse exists.
#[tokio::test]
async fn mode_9_missing_hint_with_version_0_expired() {
    assert_found(None).await;
}

/// A minimal root.
fn root(version: u64) -> Bytes {
    let definition = small_definition();
    let metadata = RootMetadata {
        version,
        commit_id: "commit".into(),
        lakehouse_definition: "_lakehouse_def_x.binpb".into(),
        inline_definition: Some(definition.bytes().clone()),
        ..RootMetadata::default()
    };
    let encoded =
        encode(&metadata.system_rows().unwrap(), &MutableNode::default(), definition.order(), Default::default());
    encoded.unwrap().bytes
}

/// A store with the roots of very many versions, which are created when they are read.
#[derive(Debug)]
struct LongHistory {
    latest: u64,
    hint: u64,
    /// Number of roots that are being read, and its maximum.
    reading: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl LongHistory {
    fn new(latest: u64, hint: u64) -> LongHistory {
        LongHistory { latest, hint, reading: AtomicUsize::default(), most_at_once: AtomicUsize::default() }
    }
}

#[async_trait]
impl Storage for LongHistory {
    fn root(&self) -> &str {
        "memory://long-history/"
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        match root_version(path) {
            Some(version) if version <= self.latest => {
                let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
                self.most_at_once.fetch_max(reading, Ordering::SeqCst);
                tokio::task::yield_now().await;
                self.reading.fetch_sub(1, Ordering::SeqCst);
                Ok(root(version))
            }
            _ if path == LATEST_HINT_PATH => Ok(self.hint.to_string().into()),
            _ => Err(Error::FileNotFound { path: path.into() }),
        }
    }

    async fn get_range(&self, _: &str, _: Range<u64>) -> Result<Bytes> {
        panic!("no range is read in this test")
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        match root_version(path).is_some_and(|version| version <= self.latest) {
            true => Ok(FileInfo { path: path.to_string(), size_bytes: 0, modified_millis: 0 }),
            false => Err(Error::FileNotFound { path: path.to_string() }),
        }
    }

    async fn put_if_absent(&self, _: &str, _: Bytes) -> Result<PutOutcome> {
        panic!("nothing is written in this test")
    }

    async fn sync(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    async fn put_hint(&self, _: &str, _: Bytes) -> Result<()> {
        panic!("nothing is written in this test")
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        assert_eq!(prefix, "_expired/", "a million roots must not be listed");
        Ok(Vec::new())
    }

    async fn delete(&self, _: &str) -> Result<()> {
        panic!("nothing is deleted in this test")
    }
}

/// A search from an old version takes few requests. Otherwise a job that was suspended for a year would read all
/// versions one by one.
#[tokio::test]
async fn mode_12_a_million_versions_behind_takes_a_galloping_search() {
    for (hint, behind) in [(0, 1_000_000), (77, 999_983), (1 << 33, 1 << 20), (5, 1), (5, 0), (0, 6), (0, 7), (0, 64)] {
        let latest = hint + behind;
        let storage = CountingStorage::new(Arc::new(LongHistory::new(latest, hint)));
        let environment = TestEnvironment::seeded(1);
        let found = discovery::latest(&storage, environment.as_ref()).await.unwrap();
        assert_eq!(found, Found { version: latest, root: root(latest), missing: None });
        let counters = storage.counters();
        assert!(counters.get <= 4, "{behind} behind: {} reads", counters.get);
        assert!(counters.head <= 100, "{behind} behind: {} probes", counters.head);
    }
}

#[tokio::test]
async fn galloping_ends_at_every_distance() {
    for behind in (0..300).chain([4095, 4096, 4097]) {
        let storage = LongHistory::new(10 + behind, 10);
        assert_eq!(discovery::last_existing(&storage, 10).await.unwrap(), 10 + behind);
        assert_eq!(discovery::last_existing_far(&storage, 10).await.unwrap(), 10 + behind);
    }
}

/// A hint that is hundreds of versions old costs at most two more rounds. Otherwise opening would take eight sequential
/// requests.
#[tokio::test(start_paused = true)]
async fn a_stale_hint_takes_at_most_two_more_rounds() {
    for behind in [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 383, 384] {
        let storage = Arc::new(LongHistory::new(50 + behind, 50));
        let storage = CountingStorage::new(Arc::new(LatencyStorage::new(storage, ROUNDS)));
        let environment = TestEnvironment::seeded(1);
        let (found, rounds) = rounds(discovery::latest(&storage, environment.as_ref())).await;
        assert_eq!(found.unwrap().version, 50 + behind);
        // Rounds in addition to the reads of the hint, of the root that it names, and of the latest root.
        let looking = rounds - if behind == 0 { 2 } else { 3 };
        assert!(looking <= 2, "{behind} behind: {looking} rounds of looking");
        assert!(storage.counters().requests() <= 60, "{behind} behind: {:?}", storage.counters());
    }
}

/// The history is read in pages. Otherwise the roots of all versions, possibly a million, would be in memory at once.
#[tokio::test]
async fn reading_the_history_holds_one_page_of_roots() {
    let storage = Arc::new(LongHistory::new(1999, 1999));
    let lakehouse = open(storage.clone(), &TestEnvironment::seeded(1)).await;
    let mut history = lakehouse.history(None).await.unwrap();
    let (mut seen, mut next) = (Vec::<Weak<Version>>::new(), 2000);
    loop {
        let page = history.page(usize::MAX).await.unwrap();
        if page.is_empty() {
            break;
        }
        for past in &page {
            next -= 1;
            assert_eq!(past.number, next);
            seen.push(Arc::downgrade(past.version.as_ref().unwrap()));
        }
        let held = seen.iter().filter(|version| version.strong_count() > 0).count();
        // The handle itself holds the latest version.
        assert!(held <= PAGE as usize + 1, "{held} versions are held");
    }
    assert_eq!((next, seen.len()), (0, 2000));
    assert!(storage.most_at_once.load(Ordering::SeqCst) <= PAGE as usize);
}

/// Versions with numbers of more than 32 bits are committed and found (failure mode 13).
#[tokio::test]
async fn mode_13_versions_beyond_32_bits_are_committed_and_found() {
    let number = (1 << 32) - 1;
    let files = MemoryFiles::shared();
    files.overwrite(&boundary_path(number), "");
    files.overwrite(&root_path(number), root(number));
    let environment = TestEnvironment::seeded(1);
    let lakehouse = open(files.clone(), &environment).await;
    for i in 1..=3 {
        assert_eq!(add_namespace(&lakehouse, &format!("n{i}")).await.unwrap(), number + i);
    }
    files.delete(LATEST_HINT_PATH).await.unwrap();
    assert_eq!(open(files, &environment).await.known().number, number + 3);
}

/// Revision 000 of the format used the suffix `.ipc` for roots.
#[tokio::test]
async fn a_lakehouse_of_the_older_revision_opens() {
    let files = MemoryFiles::shared();
    files.overwrite(&root_path_000(0), root(0));
    assert_eq!(open(files, &TestEnvironment::seeded(1)).await.known().number, 0);
}

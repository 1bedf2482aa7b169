//! Creating and opening a lakehouse, and looking up versions by number and time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::environment::Environment;
use crate::environment::testing::{START_MILLIS, TestEnvironment};
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::file_names::root_path;
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
use crate::node::codec::{decode, encode};
use crate::node::mutable_node::MutableNode;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::storage::{FileInfo, PutOutcome, RetryPolicy, Storage};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, contents, create, names, new_lakehouse, open, small_definition, text,
};
use crate::transaction::TransactionOptions;

#[tokio::test]
async fn a_new_lakehouse_is_empty_and_opens_again() {
    let (files, environment, created) = new_lakehouse().await;
    let opened = open(files.clone(), &environment).await;
    for lakehouse in [&created, &opened] {
        let version = lakehouse.latest().await.unwrap();
        assert_eq!((version.number, version.definition.name()), (0, "lake"));
        assert!(contents(&version).await.is_empty());
    }
    assert_eq!(created.known().metadata, opened.known().metadata);
}

#[tokio::test]
async fn a_second_creation_is_refused_and_leaves_nothing_behind() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    create(files.clone(), &environment).await;
    let before = files.paths();
    let again = Lakehouse::create(files.clone(), environment, small_definition(), None).await;
    assert!(matches!(again, Err(Error::ObjectAlreadyExists(_))));
    assert_eq!(files.paths(), before);
}

#[tokio::test]
async fn one_of_many_concurrent_creations_wins() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let creators = (0..16).map(|_| Lakehouse::create(files.clone(), environment.clone(), small_definition(), None));
    let created = futures::future::join_all(creators).await;
    assert_eq!(created.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(
        created
            .iter()
            .flat_map(|result| result.as_ref().err())
            .all(|error| { matches!(error, Error::ObjectAlreadyExists(_)) })
    );
    open(files, &environment).await;
}

#[tokio::test]
async fn an_empty_folder_is_not_a_lakehouse() {
    let files = MemoryFiles::shared();
    files.overwrite("data.parquet", "something else");
    let opened = Lakehouse::open(files, TestEnvironment::seeded(1), None).await;
    assert!(matches!(opened, Err(Error::NotALakehouse(_))));
}

#[tokio::test]
async fn settings_out_of_range_are_refused() {
    let refused = [
        proto::LakehouseDef { order: 2, ..Default::default() },
        proto::LakehouseDef { namespace_name_max_size_bytes: 2000, ..Default::default() },
        proto::LakehouseDef { file_path_max_size_bytes: 50, ..Default::default() },
        proto::LakehouseDef {
            properties: [("root.buffer-size-bytes".into(), "much".into())].into(),
            ..Default::default()
        },
    ];
    for definition in refused {
        let files = MemoryFiles::shared();
        let definition = LakehouseDefinition::encode(definition);
        let created = Lakehouse::create(files.clone(), TestEnvironment::seeded(1), definition, None).await;
        assert!(matches!(created, Err(Error::InvalidArgument(_))));
        assert!(files.paths().is_empty());
    }
}

#[tokio::test]
async fn a_handle_follows_the_commits_of_another() {
    let (files, environment, writer) = new_lakehouse().await;
    let reader = open(files.clone(), &environment).await;
    for i in 0..70 {
        add_namespace(&writer, &format!("n{i}")).await.unwrap();
    }
    assert_eq!(reader.latest().await.unwrap().number, 70);
    assert_eq!(names(&reader.known()).await.len(), 70);
}

/// Creation times increase with the version even if the clock of one writer is a day behind, because time travel
/// bisects them.
#[tokio::test]
async fn mode_14_creation_times_increase_despite_clock_skew() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let day_behind = TestEnvironment::seeded(2);
    day_behind.set_now_millis(START_MILLIS - 24 * 60 * 60 * 1000);
    let other = open(files, &day_behind).await;
    for i in 0..10 {
        environment.advance(Duration::from_millis(5));
        add_namespace(if i % 2 == 0 { &lakehouse } else { &other }, &format!("n{i}")).await.unwrap();
    }
    let log = lakehouse.log(1000, None).await.unwrap();
    assert_eq!(log.len(), 11);
    assert!(log.windows(2).all(|pair| {
        pair[0].metadata.created_at_millis > pair[1].metadata.created_at_millis && pair[0].number == pair[1].number + 1
    }));
}

#[tokio::test]
async fn time_travel_finds_the_version_of_every_moment() {
    let (_, environment, lakehouse) = new_lakehouse().await;
    for i in 0..20 {
        environment.advance(Duration::from_millis(10 * (1 + i % 3)));
        add_namespace(&lakehouse, &format!("n{i}")).await.unwrap();
    }
    let log = lakehouse.log(1000, None).await.unwrap();
    for moment in START_MILLIS..=environment.now_millis() + 5 {
        let expected = log.iter().find(|version| version.metadata.created_at_millis <= moment).unwrap();
        assert_eq!(lakehouse.version_at(moment as i64).await.unwrap().number, expected.number, "{moment}");
    }
    let error = lakehouse.version_at(START_MILLIS as i64 - 1).await.unwrap_err();
    assert!(matches!(error, Error::VersionNotFound(_)), "{error}");
}

#[tokio::test]
async fn the_log_is_newest_first_and_paged() {
    let (_, _, lakehouse) = new_lakehouse().await;
    for i in 0..40 {
        add_namespace(&lakehouse, &format!("n{i}")).await.unwrap();
    }
    let numbers = async |limit: Option<usize>, before| -> Vec<u64> {
        lakehouse.log(limit.unwrap_or(1000), before).await.unwrap().iter().map(|version| version.number).collect()
    };
    assert_eq!(numbers(None, None).await, (0..=40).rev().collect::<Vec<_>>());
    assert_eq!(numbers(Some(3), None).await, [40, 39, 38]);
    assert_eq!(numbers(Some(3), Some(2)).await, [1, 0]);
    assert_eq!(numbers(Some(1), Some(1000)).await, [40]);
    assert!(numbers(None, Some(0)).await.is_empty());
}

#[tokio::test]
async fn a_version_after_the_latest_does_not_exist() {
    let (_, _, lakehouse) = new_lakehouse().await;
    assert!(matches!(lakehouse.version(1).await, Err(Error::VersionNotFound(_))));
}

/// A root that was copied to another name, or written with a different order, is corrupt.
#[tokio::test]
async fn mode_36_a_root_of_another_version_or_order_is_corrupt() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    create(files.clone(), &environment).await;
    let root = files.get(&root_path(0)).await.unwrap();
    files.overwrite(&root_path(1), root.clone());
    let latest = open(files.clone(), &environment).await.latest().await;
    assert!(matches!(&latest, Err(Error::CorruptFile { path, .. }) if *path == root_path(1)), "{latest:?}");

    files.delete(&root_path(1)).await.unwrap();
    let node = decode(root, "root", None).unwrap();
    let system: Vec<(&str, String)> = node
        .system_rows()
        .filter(|(key, _)| !["n_keys", "height"].contains(key))
        .map(|(key, value)| (key, value.to_string()))
        .collect();
    let other_order = encode(&system, &MutableNode::default(), 7, Default::default()).unwrap();
    files.overwrite(&root_path(0), other_order.bytes);
    let opened = Lakehouse::open(files, environment, None).await;
    assert!(matches!(opened, Err(Error::CorruptFile { ref message, .. }) if message.contains("order")), "{opened:?}");
}

/// Commits versions and expires the first ones, like other processes while a creator is suspended. With `late_root`,
/// the creator then creates this root as version 0 again.
async fn live_and_expire(files: Arc<MemoryFiles>, late_root: Option<Bytes>) {
    let lakehouse = open(files.clone(), &TestEnvironment::seeded(2)).await;
    for namespace in ["a", "b"] {
        add_namespace(&lakehouse, namespace).await.unwrap();
    }
    expire(&lakehouse, Some(2), false).await.unwrap();
    if let Some(root) = late_root {
        files.overwrite(&root_path(0), root);
    }
}

async fn assert_alive(files: &Arc<MemoryFiles>) {
    let latest = open(files.clone(), &TestEnvironment::seeded(3)).await.latest().await.unwrap();
    assert_eq!(names(&latest).await, ["namespace a", "namespace b"]);
    assert!(files.has(&latest.metadata.lakehouse_definition));
}

/// A creator that received no reply deletes no definition that may be in use. Otherwise, if it finds another creator's
/// root 0, it would delete its own definition, which the lakehouse uses.
#[tokio::test]
async fn a_creation_of_unknown_outcome_deletes_nothing() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let elsewhere = MemoryFiles::shared();
    create(elsewhere.clone(), &TestEnvironment::seeded(4)).await;
    let late_root = elsewhere.get(&root_path(0)).await.unwrap();
    let intruder = Intruder::new(&files);
    intruder.add(|| async {});
    let shared = files.clone();
    intruder.add(|| live_and_expire(shared, Some(late_root)));
    let lost = Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(0)), Action::FailAfter);
    // All attempts to read the root fail.
    let unread = (0..=u64::from(RetryPolicy::default().max_retries))
        .map(|nth| Fault::new(Trigger::on(Verb::Get, nth).path(&root_path(0)), Action::FailBefore));
    let storage = Arc::new(FaultyStorage::new(intruder.clone(), std::iter::once(lost).chain(unread)));
    let error = Lakehouse::create(storage.clone(), environment, small_definition(), None).await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    assert_eq!((storage.unfired().len(), intruder.waiting()), (0, 0));
    assert_alive(&files).await;
}

/// If version 0 expires while `create` runs, `create` fails. Otherwise it would report a new, empty lakehouse.
#[tokio::test]
async fn a_creation_after_an_expiry_fails() {
    let files = MemoryFiles::shared();
    let intruder = Intruder::new(&files);
    let shared = files.clone();
    intruder.add(|| async move {
        create(shared.clone(), &TestEnvironment::seeded(4)).await;
        live_and_expire(shared, None).await;
    });
    let environment = TestEnvironment::seeded(1);
    let error = Lakehouse::create(intruder, environment, small_definition(), None).await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    assert_alive(&files).await;
}

/// If the newest root is damaged, older versions and the log can still be read. Otherwise one flipped bit would prevent
/// opening the lakehouse.
#[tokio::test]
async fn mode_56_a_damaged_newest_root_hides_only_itself() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for name in ["a", "b", "c"] {
        add_namespace(&lakehouse, name).await.unwrap();
    }
    let newest = files.get(&root_path(3)).await.unwrap();
    for damaged in [newest.slice(..newest.len() / 2), Bytes::new(), {
        let mut flipped = newest.to_vec();
        flipped[newest.len() / 3] ^= 1;
        flipped.into()
    }] {
        files.overwrite(&root_path(3), damaged);
        let opened = open(files.clone(), &environment).await;
        assert_eq!(names(&opened.version(2).await.unwrap()).await, ["namespace a", "namespace b"]);
        assert_eq!(versions_found(&opened).await, [(3, false), (2, true), (1, true), (0, true)]);
        let base = opened.version(2).await.unwrap();
        let mut transaction = opened.begin(base, TransactionOptions::default()).unwrap();
        let refusals = [
            transaction.create(ObjectKind::Namespace, "d", "", text("d")).await.map(drop),
            opened.latest().await.map(drop),
            opened.version(3).await.map(drop),
            opened.rollback(2, "", "").await.map(drop),
        ];
        for refused in refusals {
            assert!(matches!(&refused, Err(Error::CorruptFile { path, .. }) if *path == root_path(3)), "{refused:?}");
        }
        let message = opened.latest().await.unwrap_err().to_string();
        assert!(message.contains("restore the file") && message.contains("up to 2"), "{message}");
        assert!(!files.has(&root_path(4)));
    }
    files.overwrite(&root_path(3), newest);
    add_namespace(&open(files.clone(), &environment).await, "d").await.unwrap();
}

/// Numbers of the versions in the history, and whether each can be read.
async fn versions_found(lakehouse: &Lakehouse) -> Vec<(u64, bool)> {
    let mut history = lakehouse.history(None).await.unwrap();
    history.page(1000).await.unwrap().iter().map(|past| (past.number, past.version.is_ok())).collect()
}

/// A store that does not find the root at `path` for the first `misses` requests.
#[derive(Debug)]
struct LateRoot {
    files: Arc<MemoryFiles>,
    path: String,
    misses: AtomicU64,
}

#[async_trait]
impl Storage for LateRoot {
    fn root(&self) -> &str {
        self.files.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        let counted = |misses: u64| misses.checked_sub(1);
        if path == self.path && self.misses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted).is_ok() {
            return Err(Error::FileNotFound { path: path.to_string() });
        }
        self.files.get(path).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.files.get_range(path, range).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.files.head(path).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.files.put_if_absent(path, bytes).await
    }

    async fn sync(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.files.put_hint(path, bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.files.list(prefix).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.files.delete(path).await
    }
}

/// A version that is committed during a request for it is found. Otherwise a process that does not find the root, and
/// then learns that the version is the latest one, would report a corrupt file.
#[tokio::test]
async fn mode_51_a_version_committed_during_its_read_is_not_corrupt() {
    let (files, environment, writer) = new_lakehouse().await;
    let slow = Arc::new(LateRoot { files: files.clone(), path: root_path(1), misses: AtomicU64::new(1) });
    let reader = open(slow, &environment).await;
    add_namespace(&writer, "a").await.unwrap();
    assert_eq!(reader.version(1).await.unwrap().number, 1);
    assert!(matches!(reader.version(2).await, Err(Error::VersionNotFound(_))));
}

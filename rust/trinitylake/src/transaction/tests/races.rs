//! Concurrent writers: each one commits, or gets an error that says that it did not.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::environment::Environment;
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::file_names::root_path;
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::storage::faulty::{Action, FaultyStorage, Verb};
use crate::storage::{FileInfo, PutOutcome, Storage};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, create, names, new_lakehouse, open,
    text,
};
use crate::transaction::{CommitLimits, Isolation, Outcome, Transaction, TransactionOptions};

#[tokio::test]
async fn a_root_is_based_on_the_previous_one_of_any_writer() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let other = open(files.clone(), &environment).await;
    for (handle, name) in [(&lakehouse, "a"), (&lakehouse, "b"), (&other, "c"), (&lakehouse, "d"), (&other, "e")] {
        add_namespace(handle, name).await.unwrap();
        add_namespace(handle, &format!("{name}.{name}")).await.unwrap();
    }
    let latest = lakehouse.latest().await.unwrap();
    let expected = ["a", "a.a", "b", "b.b", "c", "c.c", "d", "d.d", "e", "e.e"];
    assert_eq!(names(&latest).await, expected.map(|name| format!("namespace {name}")));
    assert_whole(&latest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disjoint_commits_of_many_tasks_all_succeed() {
    const TASKS: usize = 8;
    const COMMITS: usize = 50;
    let (files, environment, lakehouse) = new_lakehouse().await;
    // Half of the tasks share a handle, the others have their own.
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let handle = if task % 2 == 0 { lakehouse.clone() } else { open(files.clone(), &environment).await };
        tasks.push(tokio::spawn(async move {
            let mut versions = Vec::new();
            for i in 0..COMMITS {
                versions.push(add_namespace(&handle, &format!("task{task}.{i}")).await.unwrap());
            }
            versions
        }));
    }
    let mut versions = HashSet::new();
    for task in tasks {
        let of_one_task = task.await.unwrap();
        assert!(of_one_task.is_sorted_by(|a, b| a < b), "later commits have higher versions");
        versions.extend(of_one_task);
    }
    // Transactions of the shared handle may share versions; each version contains at least one transaction.
    let latest = open(files, &environment).await.latest().await.unwrap();
    assert_eq!(latest.number as usize, versions.len());
    assert_eq!(names(&latest).await.len(), TASKS * COMMITS);
    assert_whole(&latest).await;
}

/// A rebase over many versions keeps the changes of both handles.
#[tokio::test]
async fn a_rebase_over_many_versions_keeps_the_changes_of_both_sides() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "old").await.unwrap();
    let mut long = begin(&lakehouse, Isolation::Snapshot).await;
    for i in 0..40 {
        long.create(Table, "old", &format!("t{i:02}"), text("t")).await.unwrap();
    }
    let rival = open(files, &environment).await;
    for i in 0..120 {
        add_namespace(&rival, &format!("n{i:03}")).await.unwrap();
    }
    for i in 0..60 {
        let mut transaction = begin(&rival, Isolation::Snapshot).await;
        transaction.drop_object(Namespace, &format!("n{i:03}"), "").await.unwrap();
        commit(&mut transaction).await.unwrap();
    }
    assert_eq!(commit(&mut long).await.unwrap(), 182);
    let latest = rival.latest().await.unwrap();
    assert_eq!(names(&latest).await.len(), 1 + 40 + 60);
    assert_whole(&latest).await;
}

/// A lakehouse, a handle on a store that runs other commits just before a root is created, and the handle of these
/// commits.
async fn intruded() -> (Arc<Intruder>, Arc<Lakehouse>, Arc<Lakehouse>, Arc<TestEnvironment>) {
    let (files, environment, rival) = new_lakehouse().await;
    let intruder = Intruder::new(&files);
    let lakehouse = open(intruder.clone(), &environment).await;
    (intruder, lakehouse, rival, environment)
}

fn intrude(intruder: &Intruder, rival: &Arc<Lakehouse>, namespace: String) {
    let rival = rival.clone();
    intruder.add(move || async move {
        add_namespace(&rival, &namespace).await.unwrap();
    });
}

/// A writer that loses every race ends with an error that says so. Otherwise it would try forever, and its job would
/// seem to hang.
#[tokio::test]
async fn mode_26_a_livelock_ends_with_an_error() {
    let (intruder, lakehouse, rival, environment) = intruded().await;
    for i in 0..100 {
        intrude(&intruder, &rival, format!("n{i}"));
    }
    let mut unlucky = begin(&lakehouse, Isolation::Snapshot).await;
    unlucky.create(Namespace, "unlucky", "", text("")).await.unwrap();
    let limits = CommitLimits { max_attempts: 7, ..CommitLimits::default() };
    let error = unlucky.commit(limits).await.unwrap_err();
    assert!(matches!(&error, Error::CommitConflict { message, .. } if message.contains("7 attempts")), "{error}");
    assert_eq!(intruder.waiting(), 93);

    for i in 0..100 {
        let (rival, environment) = (rival.clone(), environment.clone());
        intruder.add(move || async move {
            environment.advance(Duration::from_millis(30));
            add_namespace(&rival, &format!("late{i}")).await.unwrap();
        });
    }
    let mut out_of_time = begin(&lakehouse, Isolation::Snapshot).await;
    out_of_time.create(Namespace, "unlucky", "", text("")).await.unwrap();
    let limits = CommitLimits { max_attempts: u32::MAX, timeout_millis: 200, ..CommitLimits::default() };
    let start = environment.elapsed_millis();
    let error = out_of_time.commit(limits).await.unwrap_err();
    assert!(matches!(&error, Error::CommitConflict { message, .. } if message.contains("attempts")), "{error}");
    assert!(environment.elapsed_millis() - start < 1000);
    assert!(!names(&rival.latest().await.unwrap()).await.contains(&"namespace unlucky".into()));
}

#[tokio::test]
async fn a_commit_that_loses_a_few_races_succeeds() {
    let (intruder, lakehouse, rival, _) = intruded().await;
    for i in 0..20 {
        intrude(&intruder, &rival, format!("n{i:02}"));
    }
    assert_eq!(add_namespace(&lakehouse, "patient").await.unwrap(), 21);
    assert_eq!(names(&rival.latest().await.unwrap()).await.len(), 21);
}

/// The conflicting version is committed while the root is being written.
#[tokio::test]
async fn a_conflict_just_before_the_root_is_found() {
    let (intruder, lakehouse, rival, _) = intruded().await;
    intrude(&intruder, &rival, "same".into());
    let result = add_namespace(&lakehouse, "same").await;
    assert!(matches!(result, Err(Error::CommitConflict { .. })), "{result:?}");
    assert_eq!(names(&rival.latest().await.unwrap()).await, ["namespace same"]);
}

fn with_id(lakehouse: &Arc<Lakehouse>, id: &str) -> Transaction {
    let options = TransactionOptions { id: Some(id.into()), ..TransactionOptions::default() };
    lakehouse.begin(lakehouse.known(), options).unwrap()
}

async fn run_job(lakehouse: &Arc<Lakehouse>, table: &str) -> Result<u64> {
    let mut transaction = with_id(lakehouse, "job-1");
    transaction.create(Namespace, table, "", text("")).await?;
    commit(&mut transaction).await
}

/// A repeated job with the same id commits once. Otherwise a scheduler that repeats a job would load every row twice.
#[tokio::test]
async fn mode_15_equal_transaction_ids_commit_once() {
    let (intruder, lakehouse, rival, environment) = intruded().await;
    assert_eq!(run_job(&rival, "first").await.unwrap(), 1);
    for i in 0..100 {
        add_namespace(&rival, &format!("n{i:02}")).await.unwrap();
    }
    // The first handle has not observed the commit; the second one has.
    assert_eq!(run_job(&lakehouse, "second").await.unwrap(), 1);
    assert_eq!(run_job(&rival, "third").await.unwrap(), 1);
    let fresh = open(intruder.files.clone(), &environment).await;
    assert_eq!(run_job(&fresh, "fourth").await.unwrap(), 1);
    assert_eq!(rival.latest().await.unwrap().number, 101);
}

/// Of two concurrent runs with the same id, one commits, even if it commits after the other one has checked the id.
#[tokio::test]
async fn mode_15_concurrent_equal_transaction_ids_commit_once() {
    let (intruder, lakehouse, rival, _) = intruded().await;
    let other = rival.clone();
    intruder.add(move || async move {
        assert_eq!(run_job(&other, "first").await.unwrap(), 1);
    });
    assert_eq!(run_job(&lakehouse, "second").await.unwrap(), 1);
    let names = names(&rival.latest().await.unwrap()).await;
    assert_eq!(names, ["namespace first", "transaction job-1"]);
}

#[tokio::test]
async fn mode_15_a_commit_in_doubt_is_settled_by_its_id() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    create(files.clone(), &environment).await;
    // The first root is created, and from then on the store does not answer.
    let mut silent = false;
    let policy = move |operation: &crate::storage::faulty::Operation| {
        silent |= operation.verb == Verb::PutIfAbsent && operation.path == root_path(1);
        silent.then_some(Action::FailAfter)
    };
    let storage = Arc::new(FaultyStorage::with_policy(files.clone(), Box::new(policy)));
    let lakehouse = open(storage.clone(), &environment).await;
    let error = run_job(&lakehouse, "once").await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    assert!(
        storage.log().iter().all(|operation| operation.verb != Verb::Delete),
        "a file was deleted although the outcome is unknown"
    );

    let later = open(files, &environment).await;
    assert_eq!(run_job(&later, "again").await.unwrap(), 1);
    assert_eq!(later.latest().await.unwrap().number, 1);
}

/// The store fails from the moment at which the root is sent; the root may have been created or not.
#[tokio::test]
async fn a_store_that_answers_with_errors_leaves_the_commit_unknown() {
    for arrives in [Action::FailBefore, Action::FailAfter] {
        let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
        create(files.clone(), &environment).await;
        let mut is_sent = false;
        let policy = move |operation: &crate::storage::faulty::Operation| {
            is_sent |= operation.path == root_path(1) && operation.verb == Verb::PutIfAbsent;
            let is_gone = is_sent && operation.path == root_path(1) && operation.verb != Verb::Head;
            is_gone.then_some(arrives)
        };
        let lakehouse = open(Arc::new(FaultyStorage::with_policy(files.clone(), Box::new(policy))), &environment).await;
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        transaction.create(Namespace, "a", "", text("")).await.unwrap();
        let error = commit(&mut transaction).await.unwrap_err();
        assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
        assert!(environment.elapsed_millis() >= 120_000, "gave up before the deadline");
        assert_eq!(files.has(&root_path(1)), arrives == Action::FailAfter);
        assert!(transaction.committed_version().is_none());
    }
}

/// Definition files are written once, even if their transaction tries several times.
#[tokio::test]
async fn definitions_are_written_once_over_many_attempts() {
    let (intruder, lakehouse, rival, _) = intruded().await;
    for i in 0..10 {
        intrude(&intruder, &rival, format!("n{i}"));
    }
    add_namespace(&lakehouse, "mine").await.unwrap();
    let written = intruder.files.paths().iter().filter(|path| path.contains("-namespace-mine-")).count();
    assert_eq!(written, 1);
}

#[tokio::test]
async fn every_version_records_its_exact_changes() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "a").await.unwrap();
    for i in 0..40 {
        add_table(&lakehouse, "a", &format!("t{i:02}")).await.unwrap();
        if i % 3 == 2 {
            let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
            transaction.drop_object(Table, "a", &format!("t{:02}", i - 1)).await.unwrap();
            transaction.replace(Table, "a", &format!("t{i:02}"), text("new")).await.unwrap();
            commit(&mut transaction).await.unwrap();
        }
    }
    lakehouse.rollback(20, "", "").await.unwrap();
    let cold = open(files, &environment).await;
    let mut versions = cold.log(1000, None).await.unwrap();
    versions.reverse();
    for pair in versions.windows(2) {
        let recorded: HashSet<String> =
            pair[1].changes(&pair[0]).await.unwrap().iter().map(|change| change.key.clone()).collect();
        let changed: HashSet<String> =
            pair[0].diff(&pair[1]).await.unwrap().into_iter().map(|difference| difference.key).collect();
        assert_eq!(recorded, changed, "version {}", pair[1].number);
    }
}

/// A late writer reads the versions since its base in pages. Otherwise, after an hour of suspension, it would request
/// all of them at once and hold them in memory.
#[tokio::test(start_paused = true)]
async fn missed_versions_are_read_page_by_page() {
    const VERSIONS: u64 = 300;
    let (files, environment, lakehouse) = new_lakehouse().await;
    let gauge = Arc::new(Gauge::new(files));
    let late = open(gauge.clone(), &environment).await;
    let mut transaction = begin(&late, Isolation::Snapshot).await;
    transaction.create(Namespace, "late", "", text("late")).await.unwrap();
    let mut second = begin(&late, Isolation::Snapshot).await;
    second.create(Namespace, "n007", "", text("of the second")).await.unwrap();
    for i in 0..VERSIONS {
        add_namespace(&lakehouse, &format!("n{i:03}")).await.unwrap();
    }
    assert_eq!(commit(&mut transaction).await.unwrap(), VERSIONS + 1);
    assert!(gauge.most() <= 40, "{} concurrent requests", gauge.most());
    let Err(Error::CommitConflict { keys, .. }) = commit(&mut second).await else { panic!() };
    assert_eq!(keys, ["namespace n007"]);
}

/// Storage that counts concurrent requests.
#[derive(Debug)]
struct Gauge {
    files: Arc<MemoryFiles>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    fn new(files: Arc<MemoryFiles>) -> Gauge {
        Gauge { files, now: AtomicUsize::default(), most: AtomicUsize::default() }
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    async fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Storage for Gauge {
    fn root(&self) -> &str {
        self.files.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.enter().await;
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

#[tokio::test]
async fn a_commit_without_time_still_tries_once() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    let outcome = transaction
        .commit(CommitLimits { max_attempts: 0, timeout_millis: 0, ..CommitLimits::default() })
        .await
        .unwrap();
    assert_eq!(outcome, Outcome::Committed(1));
}

/// `max_attempts` limits rebases as well. Otherwise the count would begin again after each rebase of a table, and a
/// commit with three attempts could rebase its table sixty times.
#[tokio::test]
async fn the_limits_include_rebases() {
    for (max_attempts, timeout_millis, most) in [(3, 120_000, 4), (1, 120_000, 2), (1000, 100, 20)] {
        let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
        add_namespace(&lakehouse, "ns").await.unwrap();
        add_table(&lakehouse, "ns", "t").await.unwrap();
        let mut unlucky = begin(&lakehouse, Isolation::Snapshot).await;
        unlucky.replace(Table, "ns", "t", text("unlucky")).await.unwrap();
        let limits = CommitLimits { max_attempts, timeout_millis, ..CommitLimits::default() };
        let mut redone = 0;
        let error = loop {
            let mut rival = begin(&lakehouse, Isolation::Snapshot).await;
            rival.replace(Table, "ns", "t", text("rival")).await.unwrap();
            commit(&mut rival).await.unwrap();
            lakehouse.environment().sleep(Duration::from_millis(10)).await;
            match unlucky.commit(limits).await {
                Ok(Outcome::Conflicts(conflicts)) => {
                    redone += 1;
                    unlucky.rebase(&conflicts.tables[0], text("rival and unlucky")).unwrap();
                }
                Ok(Outcome::Committed(version)) => panic!("committed as {version}"),
                Err(error) => break error,
            }
        };
        let Error::CommitConflict { message, keys, winners } = &error else { panic!("{error}") };
        assert_eq!(winners.len(), 1, "{message}");
        assert!(message.contains(&format!("version {}", winners[0].version)), "{message}");
        assert!(redone <= most, "redone {redone} times");
        assert_eq!(keys, &["table ns.t"]);
        assert!(message.contains("gave up") && message.contains("rebases"), "{message}");
    }
}

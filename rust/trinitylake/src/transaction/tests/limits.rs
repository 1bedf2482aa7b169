//! Commits on a failing store end within their time limit and leave no files.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::join3;

use crate::environment::Environment;
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::file_names::root_version;
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::faulty::{Action, FaultyStorage, Operation, Verb};
use crate::storage::latency::{Latency, LatencyStorage};
use crate::tests::fixture::{MemoryFiles, add_namespace, begin, names, new_lakehouse, open, text};
use crate::transaction::{CommitLimits, Files, Isolation, Outcome, Transaction};

async fn paths(files: &Arc<MemoryFiles>) -> BTreeSet<String> {
    files.list("").await.unwrap().into_iter().map(|file| file.path).collect()
}

/// A transaction that creates so many namespaces that the root flushes a part of its buffer.
async fn creating(lakehouse: &Arc<Lakehouse>, name: &str) -> Transaction {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    for i in 0..6 {
        let namespace = format!("{name}{i}");
        transaction.create(Namespace, &namespace, "", text(&namespace)).await.unwrap();
    }
    transaction
}

async fn commit_within(transaction: &mut Transaction, timeout_millis: u64) -> Result<u64> {
    match transaction.commit(CommitLimits { timeout_millis, ..CommitLimits::default() }).await? {
        Outcome::Committed(version) => Ok(version),
        Outcome::Conflicts(conflicts) => panic!("{conflicts:?}"),
    }
}

/// A lakehouse with several tree levels, and a handle whose store fails on demand.
async fn faulty_lake(
    mut policy: impl FnMut(&Operation) -> Option<Action> + Send + 'static,
) -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<AtomicBool>, Arc<FaultyStorage>, Arc<Lakehouse>) {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for i in 0..12 {
        add_namespace(&lakehouse, &format!("old{i}")).await.unwrap();
    }
    let fails = Arc::new(AtomicBool::new(false));
    let is_failing = fails.clone();
    let faulty = Arc::new(FaultyStorage::with_policy(
        files.clone(),
        Box::new(move |operation| is_failing.load(Ordering::SeqCst).then(|| policy(operation)).flatten()),
    ));
    let lakehouse = open(faulty.clone(), &environment).await;
    (files, environment, fails, faulty, lakehouse)
}

/// A commit on a store that is down ends at its own timeout. Otherwise a commit with a timeout of five seconds would
/// retry for half a minute, because each request uses the full time limit of the store's policy.
#[tokio::test]
async fn a_commit_on_a_store_that_is_down_ends_at_its_deadline() {
    let (_, environment, fails, faulty, lakehouse) = faulty_lake(|_| Some(Action::FailBefore)).await;
    for timeout_millis in [5_000, 700, 0] {
        let mut transaction = creating(&lakehouse, "new").await;
        let (started, sent) = (environment.elapsed_millis(), faulty.log().len());
        fails.store(true, Ordering::SeqCst);
        let error = commit_within(&mut transaction, timeout_millis).await.unwrap_err();
        fails.store(false, Ordering::SeqCst);
        assert!(matches!(error, Error::Storage { retryable: true, .. }), "{error}");
        assert_eq!(environment.elapsed_millis() - started, timeout_millis);
        assert!(faulty.log().len() > sent, "no root was tried");
        assert!(matches!(transaction.files(), Files::Unreachable(_)));
    }
    let mut transaction = creating(&lakehouse, "new").await;
    commit_within(&mut transaction, 0).await.unwrap();
}

/// If a leader times out, members with a later deadline try again. Otherwise they would fail with the leader's error
/// although they have time.
#[tokio::test(start_paused = true)]
async fn a_leader_that_times_out_does_not_fail_its_members() {
    let is_second = AtomicBool::new(false);
    let failures = Arc::new(AtomicUsize::new(0));
    let failed = failures.clone();
    // Nodes of the second root cannot be written for some time.
    let policy = move |operation: &Operation| {
        if operation.verb == Verb::PutIfAbsent && root_version(&operation.path).is_some() {
            is_second.store(true, Ordering::SeqCst);
        }
        let fails = is_second.load(Ordering::SeqCst)
            && operation.verb == Verb::PutIfAbsent
            && operation.path.contains("node-")
            && failed.fetch_add(1, Ordering::SeqCst) < 12;
        fails.then_some(Action::FailBefore)
    };
    let (files, environment, fails, faulty, _) = faulty_lake(policy).await;
    let slow = Arc::new(LatencyStorage::new(faulty, Latency::S3_STANDARD));
    let lakehouse = open(slow, &environment).await;
    let mut first = creating(&lakehouse, "a").await;
    let mut second = creating(&lakehouse, "b").await;
    let mut third = creating(&lakehouse, "c").await;
    fails.store(true, Ordering::SeqCst);
    let (first, second, third) =
        join3(commit_within(&mut first, 60_000), commit_within(&mut second, 200), commit_within(&mut third, 60_000))
            .await;
    first.unwrap();
    assert!(matches!(second, Err(Error::Storage { retryable: true, .. })), "{second:?}");
    third.unwrap();
    assert!(failures.load(Ordering::SeqCst) >= 12);
    let latest = open(files, &environment).await.known();
    assert_eq!(names(&latest).await.len(), 12 + 6 + 6);
}

/// A refused commit removes its files. Otherwise a commit that fills a disk would leave files on the disk, although
/// nothing can have been committed.
#[tokio::test]
async fn a_refused_commit_leaves_no_files() {
    // The store refuses one definition, or the nodes, or the root.
    let definitions = |operation: &Operation| operation.path.contains("-new5-");
    let nodes = |operation: &Operation| operation.path.contains("node-");
    let root = |operation: &Operation| root_version(&operation.path).is_some();
    type IsRefused = fn(&Operation) -> bool;
    let refused: [(IsRefused, bool); 3] = [(definitions, false), (nodes, false), (root, true)];
    for (is_refused, has_nodes) in refused {
        let policy = move |operation: &Operation| {
            (operation.verb == Verb::PutIfAbsent && is_refused(operation)).then_some(Action::Deny)
        };
        let (files, _, fails, faulty, lakehouse) = faulty_lake(policy).await;
        let before = paths(&files).await;
        let mut transaction = creating(&lakehouse, "new").await;
        let sent = faulty.log().len();
        fails.store(true, Ordering::SeqCst);
        let error = commit_within(&mut transaction, 5_000).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied(_)), "{error}");
        assert!(matches!(transaction.files(), Files::Unreachable(_)));
        let written = &faulty.log()[sent..];
        let nodes = written.iter().filter(|one| one.verb == Verb::PutIfAbsent && one.path.contains("node-"));
        assert!(!has_nodes || nodes.count() > 0, "no node was written");
        assert_eq!(paths(&files).await, before);
        // The lakehouse can be written again once there is space.
        fails.store(false, Ordering::SeqCst);
        let mut transaction = creating(&lakehouse, "new").await;
        commit_within(&mut transaction, 5_000).await.unwrap();
    }
}

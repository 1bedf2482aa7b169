//! Background uploads of statements, and the durability barrier before the root.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, join3};
use tokio::time::Instant;

use crate::environment::SystemEnvironment;
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::file_names::root_version;
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::storage::latency::{Latency, LatencyStorage};
use crate::storage::{CountingStorage, Storage};
use crate::tests::fixture::{MemoryFiles, begin, commit, create, open, text};
use crate::transaction::{Files, Isolation, Transaction};

/// Duration of a write request.
const WRITE: Duration = Latency::S3_STANDARD.write;

struct Lake {
    files: Arc<MemoryFiles>,
    faulty: Arc<FaultyStorage>,
    counting: Arc<CountingStorage>,
    lakehouse: Arc<Lakehouse>,
}

/// A handle on a slow store, on tokio's paused clock, whose background tasks run in the background.
async fn slow_lake(faults: Vec<Fault>) -> Lake {
    let files = MemoryFiles::shared();
    create(files.clone(), &TestEnvironment::seeded(1)).await;
    let faulty = Arc::new(FaultyStorage::new(files.clone(), faults));
    let slow = Arc::new(LatencyStorage::new(faulty.clone(), Latency::S3_STANDARD));
    let counting = Arc::new(CountingStorage::new(slow));
    let lakehouse = Lakehouse::open(counting.clone(), SystemEnvironment::shared(), None).await.unwrap();
    Lake { files, faulty, counting, lakehouse }
}

async fn with_data(lakehouse: &Arc<Lakehouse>, name: &str, files: usize) -> Transaction {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    for number in 0..files {
        transaction.pending().put(&format!("data/{name}-{number}"), text(name)).await.unwrap();
    }
    transaction.create(Namespace, name, "", text(name)).await.unwrap();
    transaction
}

fn denied(path: &str) -> Fault {
    Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(path), Action::Deny)
}

/// Files are uploaded in parallel. Otherwise an append of ten rows would wait for the store nine times, and a
/// transaction on ten tables more than forty times.
#[tokio::test(start_paused = true)]
async fn a_commit_takes_two_rounds_for_any_number_of_files() {
    let lake = slow_lake(Vec::new()).await;
    for (name, files) in [("nothing", 0), ("some", 4), ("much", 30)] {
        let mut transaction = begin(&lake.lakehouse, Isolation::Snapshot).await;
        let (before, start) = (lake.counting.counters(), Instant::now());
        for number in 0..files {
            transaction.pending().put(&format!("data/{name}-{number}"), text(name)).await.unwrap();
        }
        transaction.create(Namespace, name, "", text(name)).await.unwrap();
        commit(&mut transaction).await.unwrap();
        let rounds = start.elapsed().as_secs_f64() / WRITE.as_secs_f64();
        assert!(rounds < 2.4, "{name}: {rounds} rounds");
        let sent = lake.counting.counters().since(&before);
        assert_eq!(sent.put_if_absent, files as u64 + 2, "its files, the definition and the root");
    }
}

/// A root is sent after all uploads have ended. Otherwise a version could reference data files that do not exist.
#[tokio::test(start_paused = true)]
async fn no_root_is_sent_before_all_of_its_files_exist() {
    let late = Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path("data/slow-1"), Action::Delay(Duration::from_secs(5)));
    let lake = slow_lake(vec![late]).await;
    let mut transaction = with_data(&lake.lakehouse, "slow", 3).await;
    let start = Instant::now();
    assert_eq!(commit(&mut transaction).await.unwrap(), 1);
    assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
    let log = lake.faulty.log();
    let sent = |path: &str| log.iter().position(|operation| operation.path.starts_with(path)).unwrap();
    let root = log.iter().position(|one| one.verb == Verb::PutIfAbsent && root_version(&one.path) == Some(1));
    let sync = log.iter().rposition(|operation| operation.verb == Verb::Sync).unwrap();
    assert!(sent("data/slow-1") < sync && sync < root.unwrap(), "{log:?}");
}

/// A commit fails if an upload failed. Otherwise its root would reference a file that the store has refused.
#[tokio::test(start_paused = true)]
async fn a_failed_upload_fails_the_commit_and_creates_no_version() {
    let lake = slow_lake(vec![denied("data/bad-1")]).await;
    let mut transaction = with_data(&lake.lakehouse, "bad", 3).await;
    let answer = commit(&mut transaction).await;
    assert!(matches!(&answer, Err(Error::PermissionDenied(why)) if why.contains("data/bad-1")), "{answer:?}");
    assert!(matches!(transaction.files(), Files::Unreachable(_)));
    assert_eq!(lake.lakehouse.latest().await.unwrap().number, 0);
    assert!(!lake.files.paths().iter().any(|path| root_version(path) == Some(1)));
}

/// A member of a group neither fails nor waits because of another member's upload. Otherwise one slow or refused file
/// would delay or fail the whole group.
#[tokio::test(start_paused = true)]
async fn members_neither_wait_for_nor_fail_with_files_of_others() {
    for fault in [
        denied("data/odd-0"),
        Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path("data/odd-0"), Action::Delay(Duration::from_secs(20))),
    ] {
        let fails = fault.action == Action::Deny;
        for first in [true, false] {
            let lake = slow_lake(vec![fault.clone()]).await;
            let mut transactions = Vec::new();
            for number in 0..5 {
                let is_odd = (number == 0) == first && (number == 4) != first;
                let name = if is_odd { "odd".to_string() } else { format!("n{number}") };
                transactions.push(with_data(&lake.lakehouse, &name, 2).await);
            }
            let start = Instant::now();
            let answers: Vec<(Result<u64>, Duration)> = join_all(transactions.into_iter().map(|mut one| async move {
                let answer = commit(&mut one).await;
                (answer, start.elapsed())
            }))
            .await;
            let odd = if first { 0 } else { 4 };
            for (number, (answer, took)) in answers.iter().enumerate() {
                if number == odd {
                    assert_eq!(answer.is_err(), fails, "{answer:?}");
                } else {
                    answer.as_ref().unwrap();
                    // Members wait for the files of the leader only.
                    assert!(fails || first || took.as_secs() < 20, "{number} waited {took:?}");
                }
            }
        }
    }
}

/// A transaction that waits for a leader has written its files, even if there was no leader when it began to commit.
/// Otherwise it could lead the next group, whose members would then wait for its files.
#[tokio::test(start_paused = true)]
async fn a_transaction_with_running_uploads_does_not_delay_a_group() {
    let slow = Trigger::on(Verb::PutIfAbsent, 0).path("data/odd-0");
    let lake = slow_lake(vec![Fault::new(slow, Action::Delay(Duration::from_secs(20)))]).await;
    let mut odd = with_data(&lake.lakehouse, "odd", 1).await;
    // While it reads the versions of these transactions, another transaction becomes the leader.
    let other = open(lake.files.clone(), &TestEnvironment::seeded(2)).await;
    for name in ["w", "x", "y", "z"] {
        commit(&mut with_data(&other, name, 0).await).await.unwrap();
    }
    let mut first = with_data(&lake.lakehouse, "first", 0).await;
    let mut last = with_data(&lake.lakehouse, "last", 0).await;
    let start = Instant::now();
    let timed = async |transaction: &mut Transaction| {
        commit(transaction).await.unwrap();
        start.elapsed()
    };
    let (odd, first, last) = join3(timed(&mut odd), timed(&mut first), timed(&mut last)).await;
    assert!(odd.as_secs() >= 19, "{odd:?}");
    assert!(first.as_secs() < 2 && last.as_secs() < 2, "{first:?} and {last:?}");
}

/// A saved state is written after all files that it references, so that another process can resume it immediately.
#[tokio::test(start_paused = true)]
async fn a_save_waits_for_its_files() {
    let late =
        Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path("data/saved-0"), Action::Delay(Duration::from_secs(5)));
    let lake = slow_lake(vec![late]).await;
    let mut transaction = with_data(&lake.lakehouse, "saved", 2).await;
    let start = Instant::now();
    transaction.save().await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
    let log = lake.faulty.log();
    let state = log.iter().position(|one| one.verb == Verb::PutIfAbsent && one.path.starts_with("_txn/")).unwrap();
    let sync = log.iter().rposition(|one| one.verb == Verb::Sync).unwrap();
    assert!(sync < state, "{log:?}");

    let lake = slow_lake(vec![denied("data/bad-0")]).await;
    let mut transaction = with_data(&lake.lakehouse, "bad", 1).await;
    assert!(matches!(transaction.save().await, Err(Error::PermissionDenied(_))));
    assert!(!lake.files.paths().iter().any(|path| path.starts_with("_txn/")), "{:?}", lake.files.paths());
}

/// A rollback cancels uploads. Otherwise they would continue, and their files would never be deleted.
#[tokio::test(start_paused = true)]
async fn a_rollback_cancels_uploads() {
    let lake = slow_lake(Vec::new()).await;
    let mut transaction = with_data(&lake.lakehouse, "given-up", 40).await;
    let pending = transaction.pending().clone();
    tokio::time::sleep(Duration::from_millis(40)).await;
    transaction.rollback().await.unwrap();
    for number in 0..40 {
        pending.delete(&format!("data/given-up-{number}")).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!lake.files.paths().iter().any(|path| path.starts_with("data/")), "{:?}", lake.files.paths());
    let sent = lake.faulty.log().iter().filter(|one| one.verb == Verb::PutIfAbsent).count();
    assert!(sent < 40, "{sent} files were sent after the rollback");
    let reopened = open(lake.files.clone(), &TestEnvironment::seeded(2)).await;
    assert_eq!(reopened.known().number, 0);
}

#[tokio::test(start_paused = true)]
async fn a_commit_stops_waiting_for_files_at_its_deadline() {
    let lost = || Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path("data/"), Action::FailBefore);
    let lake = slow_lake((0..500).map(|_| lost()).collect()).await;
    let mut transaction = with_data(&lake.lakehouse, "late", 1).await;
    let start = Instant::now();
    let limits = crate::transaction::CommitLimits { timeout_millis: 0, ..Default::default() };
    let answer = transaction.commit(limits).await;
    assert!(matches!(answer, Err(Error::Storage { retryable: true, .. })), "{answer:?}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let storage: &dyn Storage = lake.files.as_ref();
    assert_eq!(storage.list("data/").await.unwrap().len(), 0);
}

/// A commit with a recent observation of the boundary does not read it after it has created its root.
#[tokio::test(start_paused = true)]
async fn a_quick_commit_sends_no_request_after_its_root() {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(environment.clone());
    create(files.clone(), &environment).await;
    let counting = Arc::new(CountingStorage::new(files));
    let lakehouse = open(counting.clone(), &environment).await;
    commit(&mut with_data(&lakehouse, "first", 0).await).await.unwrap();
    let before = counting.counters();
    for number in 0..10 {
        environment.advance(Duration::from_millis(140));
        commit(&mut with_data(&lakehouse, &format!("n{number}"), 0).await).await.unwrap();
    }
    let sent = counting.counters().since(&before);
    assert_eq!((sent.list, sent.head), (0, 10), "{sent:?}");

    // A transaction that was open for a long time reads the boundary while it writes its files.
    let mut transaction = with_data(&lakehouse, "long", 0).await;
    environment.advance(Duration::from_secs(20));
    let before = counting.counters();
    commit(&mut transaction).await.unwrap();
    let sent = counting.counters().since(&before);
    assert_eq!((sent.list, sent.head), (1, 1), "{sent:?}");
}

//! Transactions of one caller that are committed by one call.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::environment::SystemEnvironment;
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::fixture::{MemoryFiles, add_namespace, assert_whole, begin, commit, create, names, text};
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::path::root_path;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::storage::latency::{Latency, LatencyStorage};
use crate::transaction::{CommitLimits, Files, Isolation, Outcome, Transaction, commit_together};

struct Lake {
    files: Arc<MemoryFiles>,
    faulty: Arc<FaultyStorage>,
    lakehouse: Arc<Lakehouse>,
}

/// A handle whose requests take their time, on tokio's paused clock.
async fn slow_lake(faults: Vec<Fault>) -> Lake {
    let files = MemoryFiles::shared();
    create(files.clone(), &TestEnvironment::seeded(1)).await;
    let faulty = Arc::new(FaultyStorage::new(files.clone(), faults));
    let slow = Arc::new(LatencyStorage::new(faulty.clone(), Latency::S3_STANDARD));
    let lakehouse = Lakehouse::open(slow, SystemEnvironment::shared(), None).await.unwrap();
    Lake { files, faulty, lakehouse }
}

impl Lake {
    fn barriers(&self) -> usize {
        self.faulty.log().iter().filter(|operation| operation.verb == Verb::Sync).count()
    }
}

async fn with_data(lakehouse: &Arc<Lakehouse>, name: &str) -> Transaction {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    for number in 0..2 {
        transaction.pending().put(&format!("data/{name}-{number}"), text(name)).await.unwrap();
    }
    transaction.create(Namespace, name, "", text(name)).await.unwrap();
    transaction
}

async fn all(lakehouse: &Arc<Lakehouse>, names: &[&str]) -> Vec<Transaction> {
    let mut company = Vec::new();
    for name in names {
        company.push(with_data(lakehouse, name).await);
    }
    company
}

async fn together(company: &mut [Transaction], limits: CommitLimits) -> Vec<Result<u64>> {
    let mut company: Vec<&mut Transaction> = company.iter_mut().collect();
    let outcomes = commit_together(&mut company, limits).await.into_iter();
    let version = |outcome| match outcome {
        Outcome::Committed(version) => version,
        Outcome::Clashes(clashes) => panic!("{clashes:?}"),
    };
    outcomes.map(|outcome| outcome.map(version)).collect()
}

async fn committed(company: &mut [Transaction]) -> Vec<u64> {
    together(company, CommitLimits::default()).await.into_iter().map(Result::unwrap).collect()
}

fn denied(path: &str) -> Fault {
    Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(path), Action::Deny)
}

/// Sixteen clients of a server waited for the disk sixteen times in one version: the leader made it, and each of the others
/// had its files made to last by itself before it came.
#[tokio::test(start_paused = true)]
async fn a_company_is_one_version_and_waits_as_long_as_one_alone() {
    let lake = slow_lake(Vec::new()).await;
    let mut company = all(&lake.lakehouse, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    let (before, start) = (lake.barriers(), Instant::now());
    assert_eq!(committed(&mut company).await, [1; 8]);
    let rounds = start.elapsed().as_secs_f64() / Latency::S3_STANDARD.write.as_secs_f64();
    assert!(rounds < 2.4, "{rounds}");
    assert_eq!(lake.barriers() - before, 1, "one for all");
    let latest = lake.lakehouse.latest().await.unwrap();
    assert_eq!((latest.metadata.committed.len(), names(&latest).await.len()), (8, 8));
    assert_whole(&latest).await;
}

/// Of those who want the same thing the first has it, and the others are told as if they had come later.
#[tokio::test(start_paused = true)]
async fn who_is_in_the_way_of_a_companion_loses_alone() {
    let lake = slow_lake(Vec::new()).await;
    let mut company = all(&lake.lakehouse, &["a", "same", "b", "same"]).await;
    let mut answers = together(&mut company, CommitLimits::default()).await;
    let lost = answers.pop().unwrap();
    let versions: Vec<u64> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(versions, [1, 1, 1]);
    let Err(Error::CommitConflict { keys, winners, .. }) = lost else { panic!("{lost:?}") };
    assert_eq!((keys.as_slice(), winners[0].version), (["namespace same".to_string()].as_slice(), 1));
    assert!(matches!(company[3].files(), Files::Unreachable(_)));
}

/// A file of one failed, and all of the company were told so.
#[tokio::test(start_paused = true)]
async fn files_of_a_companion_are_nobody_elses_concern() {
    // Its data, or its definition.
    for bad in ["data/bad-1", "namespace-bad-"] {
        let lake = slow_lake(vec![denied(bad)]).await;
        let mut company = all(&lake.lakehouse, &["a", "bad", "c"]).await;
        let answers =
            together(&mut company, CommitLimits { timeout_millis: 5_000, ..Default::default() }).await;
        let landed: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        let is_definition = bad == "namespace-bad-";
        // What failed once is tried again where it is written anew.
        assert_eq!(landed, [true, is_definition, true], "{answers:?}");
        let latest = lake.lakehouse.latest().await.unwrap();
        assert_eq!(names(&latest).await.len(), 2 + usize::from(is_definition));
        assert_whole(&latest).await;
    }
}

/// While somebody else makes a root a company writes its files, all in one wait, and is in the next one.
#[tokio::test(start_paused = true)]
async fn a_company_that_comes_while_another_leads_is_in_the_next_root() {
    let lake = slow_lake(Vec::new()).await;
    let mut leader = with_data(&lake.lakehouse, "leader").await;
    let mut company = all(&lake.lakehouse, &["a", "b", "c"]).await;
    let before = lake.barriers();
    let beside = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        committed(&mut company).await
    };
    let (led, versions) = futures::join!(commit(&mut leader), beside);
    assert_eq!((led.unwrap(), versions), (1, vec![2; 3]));
    // The leader's, the company's, and before the second root.
    assert_eq!(lake.barriers() - before, 3);
}

/// The root of another was there first: each looks at it, and who still holds is in the next one.
#[tokio::test(start_paused = true)]
async fn a_company_that_lost_a_race_goes_on_one_by_one() {
    let lake = slow_lake(Vec::new()).await;
    let mut company = all(&lake.lakehouse, &["a", "taken", "c"]).await;
    let other = Lakehouse::open(lake.files.clone(), SystemEnvironment::shared(), None).await.unwrap();
    add_namespace(&other, "taken").await.unwrap();
    let answers = together(&mut company, CommitLimits::default()).await;
    let landed: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(landed, [true, false, true], "{answers:?}");
    assert_eq!(names(&lake.lakehouse.latest().await.unwrap()).await.len(), 3);
}

/// The reply to the root was lost: each finds itself in the version, and nobody is committed twice.
#[tokio::test(start_paused = true)]
async fn a_company_whose_root_got_no_answer_finds_itself() {
    let lost = Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(1)), Action::FailAfter);
    let lake = slow_lake(vec![lost]).await;
    let mut company = all(&lake.lakehouse, &["a", "b", "c"]).await;
    assert_eq!(committed(&mut company).await, [1; 3]);
    let latest = lake.lakehouse.latest().await.unwrap();
    assert_eq!((latest.number, latest.metadata.committed.len()), (1, 3));
}

/// One that is over, one that changes nothing, one with an id that was committed before.
#[tokio::test(start_paused = true)]
async fn each_of_a_company_is_answered_as_it_would_be_alone() {
    let lake = slow_lake(Vec::new()).await;
    let mut over = with_data(&lake.lakehouse, "over").await;
    over.rollback().await.unwrap();
    let nothing = begin(&lake.lakehouse, Isolation::Snapshot).await;
    let mut done = with_data(&lake.lakehouse, "done").await;
    assert_eq!(commit(&mut done).await.unwrap(), 1);
    let mut company = vec![over, nothing, done, with_data(&lake.lakehouse, "new").await];
    let answers = together(&mut company, CommitLimits::default()).await;
    assert!(matches!(answers[0], Err(Error::TransactionClosed(_))), "{answers:?}");
    let versions: Vec<u64> = answers.into_iter().skip(1).map(Result::unwrap).collect();
    assert_eq!(versions, [0, 1, 2]);
}

/// Who may try once does so, alone or not.
#[tokio::test(start_paused = true)]
async fn a_company_keeps_to_its_limits() {
    let lake = slow_lake(Vec::new()).await;
    let mut company = all(&lake.lakehouse, &["a", "b"]).await;
    let other = Lakehouse::open(lake.files.clone(), SystemEnvironment::shared(), None).await.unwrap();
    let beside = async {
        // Between its look for the newest version and its root.
        tokio::time::sleep(Duration::from_millis(30)).await;
        add_namespace(&other, "other").await.unwrap();
    };
    let limits = CommitLimits { max_attempts: 1, ..Default::default() };
    let (answers, ()) = futures::join!(together(&mut company, limits), beside);
    for answer in answers {
        assert!(
            matches!(&answer, Err(Error::CommitConflict { message, .. }) if message.contains("1 attempts")),
            "{answer:?}"
        );
    }
    assert_eq!(names(&other.latest().await.unwrap()).await, ["namespace other"]);
}

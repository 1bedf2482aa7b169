//! Group commit: all members commit, a conflict affects one member only, and all answers are correct.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::file_names::root_path;
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::counting::CountingStorage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::storage::latency::{Latency, LatencyStorage};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, assert_whole, begin, commit, create, creating, names, new_lakehouse, open, text,
};
use crate::transaction::{CommitLimits, Isolation, Outcome, Transaction, TransactionOptions};

/// A handle on a slow store, on tokio's paused clock, so that transactions that start together form groups.
async fn slow_lake() -> (Arc<MemoryFiles>, Arc<Lakehouse>, Arc<TestEnvironment>) {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    create(files.clone(), &environment).await;
    let slow = Arc::new(LatencyStorage::new(files.clone(), Latency::S3_STANDARD));
    let lakehouse = open(slow, &environment).await;
    (files, lakehouse, environment)
}

async fn commit_all(transactions: Vec<Transaction>) -> Vec<Result<u64>> {
    join_all(transactions.into_iter().map(|mut transaction| async move { commit(&mut transaction).await })).await
}

#[tokio::test(start_paused = true)]
async fn waiting_transactions_share_a_root() {
    let (files, lakehouse, environment) = slow_lake().await;
    let mut transactions = Vec::new();
    for i in 0..100 {
        transactions.push(creating(&lakehouse, &format!("n{i:02}")).await);
    }
    let start = tokio::time::Instant::now();
    let versions = commit_all(transactions).await;
    let took = start.elapsed();
    // The first one leads alone: definition and root, 60 ms each. The others meanwhile write their definitions, and
    // then share the next root, which takes one request and one confirmation.
    assert!(took.as_millis() <= 60 + 60 + 60 + 60 + 10, "{took:?}");
    let versions: Vec<u64> = versions.into_iter().map(Result::unwrap).collect();
    assert_eq!(versions[0], 1);
    assert!(versions[1..].iter().all(|version| *version == 2), "{versions:?}");
    let latest = open(files, &environment).await.latest().await.unwrap();
    assert_eq!(latest.metadata.committed.len(), 99);
    assert_eq!(latest.recorded_changes().unwrap().len(), 99);
    assert_eq!(names(&latest).await.len(), 100);
    assert_whole(&latest).await;
}

#[tokio::test(start_paused = true)]
async fn mode_23_a_conflict_fails_one_member_only() {
    let (_, lakehouse, _) = slow_lake().await;
    let mut transactions = vec![creating(&lakehouse, "first").await];
    for namespace in ["a", "same", "b", "same", "c", "same"] {
        transactions.push(creating(&lakehouse, namespace).await);
    }
    let outcomes = commit_all(transactions).await;
    let landed: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(landed, [true, true, true, true, false, true, false]);
    for lost in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        let Error::CommitConflict { keys, winners, .. } = lost else { panic!("{lost}") };
        assert_eq!(keys, &["namespace same"]);
        assert_eq!(winners[0].version, 2);
    }
    assert_eq!(names(&lakehouse.latest().await.unwrap()).await.len(), 5);
}

/// Write skew between two members of one group: each of them reads what the other one writes.
#[tokio::test(start_paused = true)]
async fn write_skew_within_a_group_is_possible_only_under_snapshot() {
    for (isolation, both_land) in [(Isolation::Snapshot, true), (Isolation::Serializable, false)] {
        let (_, lakehouse, _) = slow_lake().await;
        add_namespace(&lakehouse, "x").await.unwrap();
        add_namespace(&lakehouse, "y").await.unwrap();
        let mut group = vec![creating(&lakehouse, "leader").await];
        for (reads, drops) in [("x", "y"), ("y", "x")] {
            let mut transaction = begin(&lakehouse, isolation).await;
            assert!(transaction.exists(Namespace, reads, "").await.unwrap());
            transaction.drop_object(Namespace, drops, "").await.unwrap();
            group.push(transaction);
        }
        let outcomes = commit_all(group).await;
        assert!(outcomes[0].is_ok() && outcomes[1].is_ok());
        assert_eq!(outcomes[2].is_ok(), both_land, "{isolation:?}: {:?}", outcomes[2]);
    }
}

/// Members of a group are checked against each other: a table is not created in a namespace that an earlier member
/// drops.
#[tokio::test(start_paused = true)]
async fn a_group_keeps_the_lakehouse_consistent() {
    let (_, lakehouse, _) = slow_lake().await;
    add_namespace(&lakehouse, "doomed").await.unwrap();
    let leader = creating(&lakehouse, "leader").await;
    let mut drops = begin(&lakehouse, Isolation::Snapshot).await;
    drops.drop_object(Namespace, "doomed", "").await.unwrap();
    let mut creates = begin(&lakehouse, Isolation::Snapshot).await;
    creates.create(Table, "doomed", "t", text("t")).await.unwrap();
    let outcomes = commit_all(vec![leader, drops, creates]).await;
    assert!(outcomes[0].is_ok() && outcomes[1].is_ok());
    assert!(matches!(outcomes[2], Err(Error::CommitConflict { .. })), "{:?}", outcomes[2]);
}

#[tokio::test(start_paused = true)]
async fn one_id_twice_in_a_group_is_one_commit() {
    let (_, lakehouse, _) = slow_lake().await;
    let mut group = vec![creating(&lakehouse, "leader").await];
    for namespace in ["once", "twice"] {
        let options = TransactionOptions { id: Some("job-1".into()), ..TransactionOptions::default() };
        let mut transaction = lakehouse.begin(lakehouse.known(), options).unwrap();
        transaction.create(Namespace, namespace, "", text("")).await.unwrap();
        group.push(transaction);
    }
    let versions: Vec<u64> = commit_all(group).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(versions[1], versions[2]);
    let latest = lakehouse.latest().await.unwrap();
    let namespaces: Vec<String> =
        names(&latest).await.into_iter().filter(|name| name.starts_with("namespace")).collect();
    assert_eq!(namespaces, ["namespace leader", "namespace once"]);
}

#[tokio::test(start_paused = true)]
async fn the_definition_changes_once_in_a_group() {
    let (_, lakehouse, _) = slow_lake().await;
    let mut group = vec![creating(&lakehouse, "leader").await];
    let known = lakehouse.known();
    for _ in 0..2 {
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        transaction.set_lakehouse_definition(known.definition.bytes().clone()).unwrap();
        group.push(transaction);
    }
    group.push(creating(&lakehouse, "beside").await);
    let outcomes = commit_all(group).await;
    assert!(outcomes[3].is_ok() && outcomes[1].is_ok() != outcomes[2].is_ok(), "{outcomes:?}");
    let lost = outcomes.into_iter().find_map(Result::err);
    assert!(matches!(lost, Some(Error::CommitConflict { .. })), "{lost:?}");
}

/// If the reply to the creation of the root is lost, every member still gets the correct answer.
#[tokio::test(start_paused = true)]
async fn mode_23_a_lost_answer_is_settled_for_every_member() {
    for action in [Action::FailBefore, Action::FailAfter, Action::AlreadyExistsAfter, Action::Late] {
        let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
        create(files.clone(), &environment).await;
        let slow: Arc<dyn Storage> = Arc::new(LatencyStorage::new(files.clone(), Latency::S3_EXPRESS));
        // The second root contains the nine transactions that waited.
        let trigger = Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(2));
        let faulty = Arc::new(FaultyStorage::new(slow, [Fault::new(trigger, action)]));
        let lakehouse = open(faulty.clone(), &environment).await;
        let mut group = Vec::new();
        for i in 0..10 {
            group.push(creating(&lakehouse, &format!("n{i}")).await);
        }
        let versions: Vec<u64> = commit_all(group).await.into_iter().map(Result::unwrap).collect();
        assert!(faulty.unfired().is_empty(), "{action:?}");
        assert_eq!(versions, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2], "{action:?}");
        let latest = open(files, &environment).await.latest().await.unwrap();
        assert_eq!(latest.number, 2);
        assert_eq!(names(&latest).await.len(), 10);
    }
}

/// A leader may be cancelled at any point of its commit; the members then commit without it.
#[tokio::test(start_paused = true)]
async fn mode_41_the_members_of_a_cancelled_leader_commit() {
    for millis in (1..200).step_by(7) {
        let (_, lakehouse, _) = slow_lake().await;
        let mut leader = creating(&lakehouse, "leader").await;
        let mut group: Vec<BoxFuture<'static, Result<u64>>> = Vec::new();
        for i in 0..5 {
            let mut transaction = creating(&lakehouse, &format!("n{i}")).await;
            group.push(Box::pin(async move { commit(&mut transaction).await }));
        }
        let leads = async {
            let limit = Duration::from_millis(millis);
            let _ = tokio::time::timeout(limit, leader.commit(CommitLimits::default())).await;
        };
        let ((), outcomes) = futures::join!(leads, join_all(group));
        let versions: Vec<u64> = outcomes.into_iter().map(Result::unwrap).collect();
        let latest = lakehouse.latest().await.unwrap();
        assert!(versions.iter().all(|version| (1..=latest.number).contains(version)));
        let present = names(&latest).await;
        let present: BTreeSet<&str> = present.iter().map(String::as_str).collect();
        for i in 0..5 {
            assert!(present.contains(format!("namespace n{i}").as_str()), "cancelled after {millis} ms");
        }
        assert_whole(&latest).await;
    }
}

/// A transaction whose answer was lost can be committed again: it finds itself in the log.
#[tokio::test]
async fn a_transaction_finds_itself_in_the_log() {
    let (_, _, lakehouse) = new_lakehouse().await;
    let mut transaction = creating(&lakehouse, "n").await;
    let mut twin = begin(&lakehouse, Isolation::Snapshot).await;
    twin.info = transaction.info.clone();
    twin.changes = transaction.changes.clone();
    assert_eq!(commit(&mut transaction).await.unwrap(), 1);
    assert_eq!(twin.commit(CommitLimits::default()).await.unwrap(), Outcome::Committed(1));
    assert_eq!(lakehouse.latest().await.unwrap().number, 1);
}

/// The requests of a single commit: definition, root, hint. The boundary was read when the transaction began.
#[tokio::test]
async fn a_lone_commit_sends_three_requests() {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(environment.clone());
    create(files.clone(), &environment).await;
    let counting = Arc::new(CountingStorage::new(files));
    let lakehouse = open(counting.clone(), &environment).await;
    let mut transaction = creating(&lakehouse, "n").await;
    let before = counting.counters();
    commit(&mut transaction).await.unwrap();
    let cost = counting.counters().since(&before);
    assert_eq!((cost.put_if_absent, cost.put_hint, cost.list, cost.requests()), (2, 1, 0, 3));
}

/// A member is compared with the root that was created while it waited. Otherwise it would overwrite that root's change
/// of the same object.
#[tokio::test(start_paused = true)]
async fn a_waiting_transaction_is_validated_against_the_root_in_flight() {
    for (own, is_refused) in [("a", true), ("b", false)] {
        let (files, environment, lakehouse) = new_lakehouse().await;
        add_namespace(&lakehouse, "a").await.unwrap();
        let base = add_namespace(&lakehouse, "b").await.unwrap();
        let slow = Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(base + 1));
        let delay = Fault::new(slow, Action::Delay(Duration::from_millis(50)));
        let faulty = Arc::new(FaultyStorage::new(files, [delay]));
        let shared = open(faulty.clone(), &environment).await;
        let mut leader = begin(&shared, Isolation::Snapshot).await;
        leader.replace(Namespace, "a", "", text("of the leader")).await.unwrap();
        let mut waiting = begin(&shared, Isolation::Snapshot).await;
        waiting.replace(Namespace, own, "", text("of the one who waited")).await.unwrap();
        let (led, waited) = futures::future::join(commit(&mut leader), commit(&mut waiting)).await;
        assert_eq!(faulty.unfired(), []);
        assert_eq!(led.unwrap(), base + 1);
        match waited {
            Err(Error::CommitConflict { .. }) => assert!(is_refused),
            waited => assert!(!is_refused && waited.unwrap() == base + 2),
        }
        let mut look = begin(&lakehouse, Isolation::Snapshot).await;
        assert_eq!(look.read(Namespace, "a", "").await.unwrap().unwrap(), "of the leader");
    }
}

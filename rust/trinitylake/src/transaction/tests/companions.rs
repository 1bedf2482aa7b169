//! A transaction and its companions are in one root, or in none.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, assert_whole, begin, commit, creating, new_lakehouse, open, text,
};
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::{CommitLimits, Isolation, Outcome, Transaction, TransactionOptions};

struct Owned(Transaction);

impl AsMut<Transaction> for Owned {
    fn as_mut(&mut self) -> &mut Transaction {
        &mut self.0
    }
}

const LIMITS: CommitLimits = CommitLimits { max_attempts: 3, timeout_millis: 1_000, coordination: None };

async fn start() -> (Arc<MemoryFiles>, Arc<Lakehouse>) {
    let (files, _, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "old").await.unwrap();
    (files, lakehouse)
}

#[tokio::test]
async fn companions_are_in_the_log_of_the_version() {
    let (_, lakehouse) = start().await;
    let mut leader = creating(&lakehouse, "n").await;
    let mut companions = Vec::new();
    for _ in 0..2 {
        companions.push(Owned(begin(&lakehouse, Isolation::Snapshot).await));
    }
    assert_eq!(leader.commit_with(&mut companions, None, false, LIMITS).await.unwrap(), Outcome::Committed(2));
    let latest = lakehouse.latest().await.unwrap();
    let ids: Vec<_> = latest.metadata.committed.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, [leader.id(), companions[0].0.id(), companions[1].0.id()]);
    for Owned(companion) in &companions {
        assert_eq!(companion.committed_version(), Some(2));
        let outcome = outcome_of(&lakehouse, companion.id()).await.unwrap();
        assert_eq!(outcome, TransactionOutcome::Committed(Some(2)));
    }
}

#[tokio::test]
async fn a_transaction_with_writes_is_no_companion() {
    let (_, lakehouse) = start().await;
    let companion = creating(&lakehouse, "other").await;
    let mut leader = creating(&lakehouse, "n").await;
    let result = leader.commit_with(&mut [Owned(companion)], None, false, LIMITS).await;
    assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
}

/// A companion with a chosen id commits once, also if its leader takes its place in the log.
#[tokio::test]
async fn a_companion_with_a_chosen_id_commits_once() {
    let (_, lakehouse) = start().await;
    let (mut first, mut second) = (chosen(&lakehouse), chosen(&lakehouse));
    let mut leader = creating(&lakehouse, "n").await;
    assert_eq!(leader.commit_with(&mut first, None, true, LIMITS).await.unwrap(), Outcome::Committed(2));
    assert_eq!(leader.id(), "mine");
    for replaces_first in [false, true] {
        let mut leader = creating(&lakehouse, "m").await;
        let result = leader.commit_with(&mut second, None, replaces_first, LIMITS).await;
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
    }
    assert_eq!(lakehouse.latest().await.unwrap().number, 2);
    let [Owned(mut second)] = second;
    assert_eq!(commit(&mut second).await.unwrap(), 2, "it finds the first commit");
    let [Owned(first)] = first;
    assert_eq!(first.committed_version(), Some(2));
    let outcome = outcome_of(&lakehouse, "mine").await.unwrap();
    assert_eq!(outcome, TransactionOutcome::Committed(Some(2)));
}

/// Two processes that began one id committed it in two versions. The base of the second transaction contained the id,
/// but it was looked up only in the older base of the leader, which then lost a race, so the second one committed alone.
#[tokio::test]
async fn a_companion_that_began_after_its_leader_finds_its_id_in_its_own_base() {
    let (_, lakehouse) = start().await;
    let mut leader = creating(&lakehouse, "n").await;
    let [Owned(mut first)] = chosen(&lakehouse);
    assert_eq!(commit(&mut first).await.unwrap(), 2);
    let mut second = chosen(&lakehouse);
    let result = leader.commit_with(&mut second, None, false, LIMITS).await;
    assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
    let [Owned(mut second)] = second;
    assert_eq!(commit(&mut second).await.unwrap(), 2, "it finds the first commit");
    assert_eq!(lakehouse.latest().await.unwrap().number, 2);
}

fn chosen(lakehouse: &Arc<Lakehouse>) -> [Owned; 1] {
    let options = TransactionOptions { id: Some("mine".into()), ..TransactionOptions::default() };
    [Owned(lakehouse.begin(lakehouse.known(), options).unwrap())]
}

/// A group that is repeated after a conflict looks for the chosen ids of all companions again. Otherwise rows would be
/// stored twice if another process has committed one of these ids before the repeated transaction begins.
#[tokio::test]
async fn a_repeated_group_looks_for_the_id_of_a_companion_again() {
    let (files, lakehouse) = start().await;
    let other = open(files, &TestEnvironment::seeded(2)).await;
    let mut companion = chosen(&lakehouse);
    let mut leader = creating(&lakehouse, "taken").await;
    add_namespace(&other, "taken").await.unwrap();
    let result = leader.commit_with(&mut companion, None, true, LIMITS).await;
    assert!(matches!(result, Err(Error::CommitConflict { .. })), "{result:?}");
    let [Owned(mut rival)] = chosen(&other);
    assert_eq!(commit(&mut rival).await.unwrap(), 3);
    for replaces_first in [false, true] {
        let mut repeated = creating(&lakehouse, "free").await;
        let result = repeated.commit_with(&mut companion, None, replaces_first, LIMITS).await;
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
    }
    let [Owned(mut companion)] = companion;
    assert_eq!(commit(&mut companion).await.unwrap(), 3, "alone it finds the first commit");
    assert_eq!(lakehouse.latest().await.unwrap().number, 3);
}

/// Companions are committed only by a version that contains them. If another process has committed the chosen id of the
/// leader, they stay open; otherwise appends are acknowledged that no version contains.
#[tokio::test]
async fn companions_are_open_after_another_process_committed_the_id_of_the_leader() {
    let (files, lakehouse) = start().await;
    let other = open(files, &TestEnvironment::seeded(2)).await;
    let [first] = chosen(&lakehouse);
    let second = Owned(begin(&lakehouse, Isolation::Snapshot).await);
    let (mut leader, mut group) = (creating(&lakehouse, "n").await, [first, second]);
    let [Owned(mut rival)] = chosen(&other);
    assert_eq!(commit(&mut rival).await.unwrap(), 2);
    assert_eq!(leader.commit_with(&mut group, None, true, LIMITS).await.unwrap(), Outcome::Committed(2));
    let [Owned(first), Owned(mut second)] = group;
    assert_eq!((first.committed_version(), second.committed_version()), (Some(2), None));
    second.create(Namespace, "alone", "", text("alone")).await.unwrap();
    assert_eq!(commit(&mut second).await.unwrap(), 3);
}

/// The leader and the companion after a commit on a store with one fault.
async fn commit_on(files: Arc<dyn Storage>) -> (Result<Outcome>, Transaction, Transaction) {
    let broken = Lakehouse::open(files, TestEnvironment::seeded(2), None).await.unwrap();
    let begin = || broken.begin(broken.known(), TransactionOptions::default()).unwrap();
    let (mut leader, companion) = (begin(), begin());
    leader.create(Namespace, "n", "", text("n")).await.unwrap();
    let mut companions = [Owned(companion)];
    let result = leader.commit_with(&mut companions, None, false, LIMITS).await;
    let [Owned(companion)] = companions;
    (result, leader, companion)
}

/// After any fault at any operation of the commit, the log contains both transactions or neither, as the error says. A
/// companion that was certainly not committed is open, and a rollback settles an unknown outcome.
#[tokio::test]
async fn a_fault_at_any_operation_leaves_all_or_none() {
    let actions = [
        Action::FailBefore,
        Action::FailAfter,
        Action::DieBefore,
        Action::DieAfter,
        Action::Late,
        Action::Deny,
        Action::AlreadyExistsAfter,
    ];
    let (start, _) = start().await;
    let recording = Arc::new(FaultyStorage::new(start.copy(), []));
    Lakehouse::open(recording.clone(), TestEnvironment::seeded(2), None).await.unwrap();
    let opening = recording.log().len();
    commit_on(recording.clone()).await.0.unwrap();
    let operations = recording.log().split_off(2 * opening);
    let (mut unknown, mut certain) = (0, 0);
    for operation in &operations {
        for action in actions {
            if action == Action::AlreadyExistsAfter && operation.verb != Verb::PutIfAbsent {
                continue;
            }
            let what = format!("{action:?} at {operation:?}");
            let files = start.copy();
            let fault = Fault::new(Trigger::at(operation.index - opening as u64), action);
            let faulty = Arc::new(FaultyStorage::new(files.clone(), [fault]));
            let (result, leader, mut companion) = commit_on(faulty.clone()).await;
            assert_eq!(faulty.unfired(), [], "{what}");
            faulty.revive();
            faulty.deliver_late().await;
            let lakehouse = open(files, &TestEnvironment::seeded(9)).await;
            let latest = lakehouse.latest().await.unwrap();
            assert_whole(&latest).await;
            let is_in = latest.metadata.commits(leader.id());
            assert_eq!(latest.metadata.commits(companion.id()), is_in, "{what}");
            match result {
                Ok(_) => {
                    assert!(is_in, "{what}");
                    assert_eq!(companion.committed_version(), leader.committed_version(), "{what}");
                }
                Err(Error::CommitStateUnknown(_)) => {
                    unknown += 1;
                    assert!(companion.is_unknown(), "{what}");
                    assert_eq!(companion.rollback().await.is_err(), is_in, "{what}");
                }
                Err(_) => {
                    certain += 1;
                    assert!(!is_in && !companion.is_unknown(), "{what}");
                    companion.create(Namespace, "alone", "", text("alone")).await.unwrap();
                    assert_eq!(commit(&mut companion).await.unwrap(), 2, "{what}");
                }
            }
        }
    }
    assert!(unknown > 0 && certain > 0, "{unknown} unknown, {certain} certain");
}

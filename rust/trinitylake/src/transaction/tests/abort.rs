//! Aborts that race with commits: the first one counts for all processes, and no file that a version references is
//! deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::expiry::expire;
use crate::file_names::{root_path, root_version};
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::counting::CountingStorage;
use crate::storage::faulty::{Action, FaultyStorage, Operation, Verb};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, begin, commit, create, in_queue, leave_intent, names, new_lakehouse, open, text,
};
use crate::transaction::saved::list::saved;
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::{Coordination, Files, Isolation, Outcome, Proof, Transaction, TransactionOptions};

const ROLLED_BACK: Files = Files::Unreachable(Proof::RolledBack);

async fn lake() -> (Arc<MemoryFiles>, Arc<Lakehouse>, Arc<TestEnvironment>) {
    let (files, environment, lakehouse) = new_lakehouse().await;
    (files, lakehouse, environment)
}

/// A transaction that creates a namespace of that name, with a chosen id if one is given.
async fn creating(lakehouse: &Arc<Lakehouse>, namespace: &str, id: Option<&str>) -> Transaction {
    let options = TransactionOptions { id: id.map(str::to_string), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap();
    transaction.create(Namespace, namespace, "", text(namespace)).await.unwrap();
    transaction
}

async fn has(lakehouse: &Arc<Lakehouse>, namespace: &str) -> bool {
    lakehouse.latest().await.unwrap().locate(Namespace, namespace, "").await.unwrap().is_some()
}

fn assert_committed(error: &Error, version: u64) {
    let refusal = format!("was committed as version {version}");
    assert!(matches!(error, Error::CommitConflict { message, .. } if message.contains(&refusal)), "{error}");
}

/// A store that, while it is slow, accepts roots and executes these requests only when the test delivers them.
struct Slow {
    storage: Arc<FaultyStorage>,
    is_slow: Arc<AtomicBool>,
}

impl Slow {
    fn new(files: Arc<dyn Storage>) -> Slow {
        let is_slow = Arc::new(AtomicBool::new(true));
        let asked = is_slow.clone();
        let policy = move |operation: &Operation| {
            let is_root = operation.verb == Verb::PutIfAbsent && root_version(&operation.path).is_some();
            (is_root && asked.load(Ordering::SeqCst)).then_some(Action::Late)
        };
        Slow { storage: Arc::new(FaultyStorage::with_policy(files, Box::new(policy))), is_slow }
    }

    fn recover(&self) {
        self.is_slow.store(false, Ordering::SeqCst);
    }
}

/// A resumed transaction cannot be rolled back after another process has committed it. Otherwise a worker that resumed
/// the state that a commit begins with could delete data files of the committed transaction.
#[tokio::test]
async fn a_committed_transaction_is_not_rolled_back_by_another_process() {
    let (files, lakehouse, environment) = lake().await;
    let mut first = creating(&lakehouse, "a", Some("job")).await;
    first.save().await.unwrap();
    // The commit begins with a save. The other process resumes that state.
    first.record_chosen_id().await.unwrap();
    let other = open(files, &environment).await;
    let mut rolls_back = Transaction::resume(&other, "job").await.unwrap();
    let mut commits = Transaction::resume(&other, "job").await.unwrap();
    let mut changes = Transaction::resume(&other, "job").await.unwrap();
    changes.create(Namespace, "more", "", text("more")).await.unwrap();
    let version = commit(&mut first).await.unwrap();

    assert_committed(&rolls_back.rollback().await.unwrap_err(), version);
    assert_eq!(rolls_back.files(), Files::Kept);
    assert_eq!(commit(&mut commits).await.unwrap(), version, "a resumed copy of the same state");
    let refusal = commit(&mut changes).await.unwrap_err();
    assert!(
        matches!(&refusal, Error::CommitConflict { message, .. } if message.contains("by another process")),
        "{refusal}"
    );
    assert_eq!(changes.files(), Files::Kept);
    assert_committed(&changes.rollback().await.unwrap_err(), version);
    // A process that resumes the transaction later cannot roll it back either.
    let mut late = Transaction::resume(&other, "job").await.unwrap();
    assert_committed(&late.rollback().await.unwrap_err(), version);
    assert_eq!(
        (late.files(), outcome_of(&other, "job").await.unwrap()),
        (Files::Kept, TransactionOutcome::Committed(Some(version)))
    );
    assert!(has(&other, "a").await);
}

#[tokio::test]
async fn a_rolled_back_transaction_is_not_committed_by_another_process() {
    let (files, lakehouse, environment) = lake().await;
    let mut first = creating(&lakehouse, "a", Some("job")).await;
    first.save().await.unwrap();
    let other = open(files, &environment).await;
    let mut again = Transaction::resume(&other, "job").await.unwrap();
    let mut saves = Transaction::resume(&other, "job").await.unwrap();
    assert_eq!(Transaction::resume(&other, "job").await.unwrap().rollback().await.unwrap(), ROLLED_BACK);

    let refusal = commit(&mut first).await.unwrap_err();
    assert!(matches!(&refusal, Error::CommitConflict { message, .. } if message.contains("rolled back")), "{refusal}");
    assert_eq!(first.files(), ROLLED_BACK, "no version refers to its files");
    let refusal = saves.save().await.unwrap_err();
    assert!(matches!(&refusal, Error::CommitConflict { message, .. } if message.contains("rolled back")), "{refusal}");
    assert_eq!(again.rollback().await.unwrap(), ROLLED_BACK, "a second rollback does nothing");
    assert_eq!(lakehouse.latest().await.unwrap().number, 1);
    assert_eq!(outcome_of(&lakehouse, "job").await.unwrap(), TransactionOutcome::RolledBack);
    assert_eq!(saved(&lakehouse).await.unwrap(), []);
    assert!(matches!(Transaction::resume(&lakehouse, "job").await, Err(Error::ObjectNotFound(_))));
    // A job that runs again with the same id does not commit either.
    let refusal = commit(&mut creating(&lakehouse, "b", Some("job")).await).await.unwrap_err();
    assert!(matches!(refusal, Error::CommitConflict { .. }), "{refusal}");
    assert_eq!(names(&lakehouse.latest().await.unwrap()).await, ["transaction job"]);
}

/// A root that the store creates late does not commit a transaction that was rolled back. Otherwise a commit that timed
/// out could still commit after an operator has rolled it back.
#[tokio::test]
async fn a_late_root_loses_to_the_rollback() {
    for is_saved in [true, false] {
        let (files, lakehouse, environment) = lake().await;
        let slow = Slow::new(files.clone());
        let here = open(slow.storage.clone(), &environment).await;
        let mut transaction = creating(&here, "a", is_saved.then_some("job")).await;
        if is_saved {
            transaction.save().await.unwrap();
        }
        let error = commit(&mut transaction).await.unwrap_err();
        assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
        assert_eq!(transaction.files(), Files::Kept);
        assert!(matches!(commit(&mut transaction).await, Err(Error::TransactionClosed(_))));
        slow.recover();
        let id = transaction.id().to_string();
        let aborted = match is_saved {
            true => Transaction::resume(&lakehouse, "job").await.unwrap().rollback().await,
            false => transaction.rollback().await,
        };
        assert_eq!(aborted.unwrap(), ROLLED_BACK);
        slow.storage.deliver_late().await;
        assert!(!has(&lakehouse, "a").await);
        assert_eq!(outcome_of(&lakehouse, &id).await.unwrap(), TransactionOutcome::RolledBack);
        assert_eq!(transaction.rollback().await.unwrap(), ROLLED_BACK);
        assert_eq!(lakehouse.latest().await.unwrap().number, 1);
    }
}

#[tokio::test]
async fn a_root_created_before_the_rollback_is_committed() {
    for is_saved in [true, false] {
        let (files, lakehouse, environment) = lake().await;
        let slow = Slow::new(files.clone());
        let here = open(slow.storage.clone(), &environment).await;
        let mut transaction = creating(&here, "a", is_saved.then_some("job")).await;
        if is_saved {
            transaction.save().await.unwrap();
        }
        commit(&mut transaction).await.unwrap_err();
        slow.storage.deliver_late().await;
        add_namespace(&lakehouse, "beside").await.unwrap();
        slow.recover();
        assert_committed(&transaction.rollback().await.unwrap_err(), 1);
        assert_eq!((transaction.files(), lakehouse.latest().await.unwrap().number), (Files::Kept, 2));
        if is_saved {
            let mut resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
            assert_committed(&resumed.rollback().await.unwrap_err(), 1);
        }
    }
}

async fn add_in_queue(lakehouse: &Arc<Lakehouse>, namespace: &str) {
    let outcome = creating(lakehouse, namespace, None).await.commit(in_queue()).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
}

/// No leader commits an intent whose transaction was rolled back, for instance by an operator after its process died.
#[tokio::test]
async fn a_rolled_back_intent_is_not_committed() {
    for is_rolled_back in [true, false] {
        let (files, owner, environment) = lake().await;
        let mut waiting = creating(&owner, "waiting", Some("job")).await;
        waiting.save().await.unwrap();
        waiting.record_chosen_id().await.unwrap();
        leave_intent(&owner, &mut waiting, 20).await;
        let other = open(files, &environment).await;
        if is_rolled_back {
            let mut operator = Transaction::resume(&other, "job").await.unwrap();
            assert_eq!(operator.rollback().await.unwrap(), ROLLED_BACK);
        }
        // The first commit lists the queue, which is not empty; the second one leads.
        add_in_queue(&other, "a").await;
        add_in_queue(&other, "b").await;
        assert_eq!(has(&other, "waiting").await, !is_rolled_back);
    }
}

/// The owner of an intent can roll it back, for instance because its commit reached its limits while the intent waited.
#[tokio::test]
async fn the_owner_of_an_intent_can_roll_it_back() {
    let (files, owner, environment) = lake().await;
    let other = open(files, &environment).await;
    let mut waiting = creating(&owner, "waiting", None).await;
    waiting.state.begin_commit().unwrap();
    let submission = waiting.submit(Some(Coordination::Queue), 1).unwrap();
    assert_eq!(submission.last_version, None, "there was no lost race yet");
    // Adds the requirement that a transaction has after a lost race.
    let key = waiting.record_key().unwrap();
    waiting.footprint_mut().require(crate::transaction::footprint::Requirement::Absent(key));
    leave_intent(&owner, &mut waiting, 20).await;
    assert_eq!(waiting.rollback().await.unwrap(), ROLLED_BACK);
    add_in_queue(&other, "a").await;
    add_in_queue(&other, "b").await;
    assert!(!has(&other, "waiting").await);
    assert_eq!(outcome_of(&other, waiting.id()).await.unwrap(), TransactionOutcome::RolledBack);
}

/// A root contains either a transaction or its rollback: the one that comes first in the group.
#[tokio::test]
async fn no_root_contains_a_transaction_and_its_rollback() {
    let (_, lakehouse, _) = lake().await;
    let transaction = creating(&lakehouse, "a", None).await;
    let latest = lakehouse.latest().await.unwrap();
    let (rollback, own) = (transaction.abort_submission_for_test(&latest), transaction.submission());
    let admitted = async |group: &[_]| {
        crate::transaction::commit::group_admission::admit(lakehouse.publisher(), &latest, group).await.unwrap()
    };
    assert_eq!(admitted(&[own.clone(), rollback.clone()]).await, [true, false]);
    assert_eq!(admitted(&[rollback, own]).await, [true, false]);
}

/// A transaction that was neither sent nor saved is rolled back without a request, and its files may be deleted.
#[tokio::test]
async fn rolling_back_an_unsent_transaction_sends_no_request() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    create(files.clone(), &environment).await;
    let counting = Arc::new(CountingStorage::new(files));
    let lakehouse = open(counting.clone(), &environment).await;
    let mut transaction = creating(&lakehouse, "a", Some("job")).await;
    assert_eq!(transaction.files(), Files::Kept, "it is still open");
    let before = counting.counters();
    assert_eq!(transaction.rollback().await.unwrap(), Files::Unreachable(Proof::NothingSent));
    assert_eq!(counting.counters().since(&before).requests(), 0);
    assert_eq!(outcome_of(&lakehouse, "job").await.unwrap(), TransactionOutcome::NotCommitted);
    assert_eq!(commit(&mut creating(&lakehouse, "a", Some("job")).await).await.unwrap(), 1, "the id is free");
}

/// The record of a rollback is removed when no process can commit the transaction any more.
#[tokio::test]
async fn the_record_of_a_rollback_expires_with_its_version() {
    let (_, lakehouse, _) = lake().await;
    let mut slow = creating(&lakehouse, "slow", Some("job")).await;
    slow.save().await.unwrap();
    let mut transaction = Transaction::resume(&lakehouse, "job").await.unwrap();
    add_namespace(&lakehouse, "a").await.unwrap();
    transaction.rollback().await.unwrap();
    add_namespace(&lakehouse, "b").await.unwrap();
    add_namespace(&lakehouse, "c").await.unwrap();
    expire(&lakehouse, Some(2), false).await.unwrap();
    assert_eq!(
        outcome_of(&lakehouse, "job").await.unwrap(),
        TransactionOutcome::RolledBack,
        "the version of its record is retained"
    );
    expire(&lakehouse, Some(3), false).await.unwrap();
    assert_eq!(outcome_of(&lakehouse, "job").await.unwrap(), TransactionOutcome::Unknown);
    let error = commit(&mut slow).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    // The id may be used again, for a different transaction.
    commit(&mut creating(&lakehouse, "new", Some("job")).await).await.unwrap();
    assert!(!has(&lakehouse, "slow").await);
}

/// A rollback fails if versions that may contain the transaction have expired. The record has then expired as well, so
/// a rollback that relies on it deletes the files of a committed transaction.
#[tokio::test]
async fn a_transaction_of_unknown_outcome_is_not_rolled_back_after_an_expiry() {
    let (_, lakehouse, _) = lake().await;
    let mut first = creating(&lakehouse, "a", Some("job")).await;
    first.save().await.unwrap();
    let mut late = Transaction::resume(&lakehouse, "job").await.unwrap();
    commit(&mut first).await.unwrap();
    add_namespace(&lakehouse, "b").await.unwrap();
    let latest = add_namespace(&lakehouse, "c").await.unwrap();
    expire(&lakehouse, Some(latest), false).await.unwrap();
    // Pretend that this process made the last save, because a rollback after a save by another process fails earlier.
    late.saved.sequence += 1;
    let error = late.rollback().await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    assert_eq!(late.files(), Files::Kept);
}

/// A lost race and a refusal of the store prove that nothing was committed; a missing answer does not.
#[tokio::test]
async fn files_of_a_failed_commit_may_be_deleted_if_the_outcome_is_certain() {
    let (_, lakehouse, _) = lake().await;
    let (mut first, mut second) = (creating(&lakehouse, "a", None).await, creating(&lakehouse, "a", None).await);
    commit(&mut first).await.unwrap();
    commit(&mut second).await.unwrap_err();
    assert_eq!((first.files(), second.files()), (Files::Kept, Files::Unreachable(Proof::Overtaken)));

    for (action, expected) in [
        (Action::Deny, Files::Unreachable(Proof::Refused)),
        (Action::BreakBefore, Files::Kept),
        (Action::BreakAfter, Files::Kept),
    ] {
        let (files, _, environment) = lake().await;
        let mut is_silent = false;
        let policy = move |operation: &Operation| {
            is_silent |= operation.verb == Verb::PutIfAbsent && operation.path == root_path(1);
            is_silent.then_some(action)
        };
        let storage = Arc::new(FaultyStorage::with_policy(files, Box::new(policy)));
        let lakehouse = open(storage, &environment).await;
        let mut transaction = creating(&lakehouse, "a", None).await;
        let error = commit(&mut transaction).await.unwrap_err();
        assert_eq!(matches!(error, Error::CommitStateUnknown(_)), expected == Files::Kept, "{action:?}: {error}");
        assert_eq!(transaction.files(), expected, "{action:?}");
        assert!(matches!(commit(&mut transaction).await, Err(Error::TransactionClosed(_))));
    }
}

/// The owner of a committed transaction cannot roll it back, at either isolation level.
#[tokio::test]
async fn a_committed_transaction_cannot_be_rolled_back_by_its_owner() {
    let (_, lakehouse, _) = lake().await;
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut transaction = begin(&lakehouse, isolation).await;
        transaction.create(Namespace, isolation.word(), "", text("")).await.unwrap();
        let version = commit(&mut transaction).await.unwrap();
        assert_committed(&transaction.rollback().await.unwrap_err(), version);
    }
}

//! Outcomes after a request that could commit: "committed", "not committed" and "unknown" are correct.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, select};

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::expiry::expire;
use crate::file_names::root_path;
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Operation, Trigger, Verb};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, add_table, begin, commit, create, creating, in_queue, leave_intent, names,
    new_lakehouse, open, text,
};
use crate::transaction::{CommitLimits, Files, Isolation, Outcome, Transaction, TransactionOptions};
use crate::version::publisher::{Race, Unpublished};

fn on_root(version: u64, nth: u64, action: Action) -> Fault {
    Fault::new(Trigger::on(Verb::PutIfAbsent, nth).path(&root_path(version)), action)
}

/// A refusal is an outcome only if no earlier request is in flight. Otherwise the files of the commit would be deleted
/// after a denied second request, although the first request may still create the root.
#[tokio::test]
async fn a_certain_error_after_an_uncertain_one_is_uncertain() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    create(files.clone(), &environment).await;
    let denials = (0..1000).map(|_| on_root(1, 0, Action::Deny));
    let faults = [on_root(1, 0, Action::Late)].into_iter().chain(denials);
    let storage = Arc::new(FaultyStorage::new(files.clone(), faults));
    let lakehouse = open(storage.clone(), &environment).await;
    let mut transaction = creating(&lakehouse, "a").await;
    let error = commit(&mut transaction).await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    assert_eq!(transaction.files(), Files::Kept);
    storage.deliver_late().await;
    assert_eq!(names(&open(files, &environment).await.known()).await, ["namespace a"]);
}

/// If the version of a created root has expired, a root of another writer with the same number does not prove that the
/// commit failed. Otherwise the first writer would get a retryable error, try again, and commit twice.
#[tokio::test]
async fn a_root_with_an_expired_number_does_not_settle_an_outcome() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let base = add_namespace(&lakehouse, "a").await.unwrap();
    let aside = files.copy();
    let stale = open(aside.clone(), &TestEnvironment::seeded(7)).await;
    assert_eq!(add_namespace(&stale, "stale").await.unwrap(), base + 1);

    let slow = open(files.clone(), &environment).await;
    let mut transaction = begin(&slow, Isolation::Snapshot).await;
    transaction.replace(Namespace, "a", "", text("once")).await.unwrap();
    transaction.write_files().await.unwrap();
    let (latest, submission) = (slow.known(), transaction.submission());
    let (nodes, config) = (slow.nodes(), latest.config);
    let root = crate::tree::apply_changes::apply_changes(
        nodes,
        environment.as_ref(),
        &config,
        &latest.root,
        submission.messages.clone(),
        0,
    );
    let root = root.await.unwrap().root;
    let metadata = slow.publisher().next_metadata(&latest, vec![submission.info.clone()]);
    let prepared = slow.publisher().prepare(&latest, metadata, &root, latest.definition.clone()).unwrap();
    let race = slow.publisher().claim(prepared, 0).await;
    let Ok(Race::Won(created)) = race else { panic!() };

    let rival = open(files.clone(), &environment).await;
    let mut over = begin(&rival, Isolation::Snapshot).await;
    over.replace(Namespace, "a", "", text("and over")).await.unwrap();
    let latest = commit(&mut over).await.unwrap();
    expire(&rival, Some(latest), false).await.unwrap();
    files.overwrite(&root_path(base + 1), aside.get(&root_path(base + 1)).await.unwrap());
    let answer = slow.publisher().confirm(created).await;
    assert!(matches!(answer, Err(Unpublished::InDoubt { .. })), "{answer:?}");
    assert!(files.has(&root_path(base + 1)), "a root of another writer was deleted");
}

/// A void root commits none of its transactions, even if another root has committed one of them. Otherwise a suspended
/// writer would find the saved transaction of its group in the tree, and report the other transaction of the group as
/// committed, although no version contains it.
#[tokio::test]
async fn a_transaction_committed_by_another_root_does_not_prove_its_companions() {
    let there = answer_for_an_expired_number(true).await;
    assert!(there.contains(&"namespace of the job".to_string()), "{there:?}");
    assert!(!there.contains(&"namespace companion".to_string()), "{there:?}");
}

/// A void root is not reported as the commit of its only transaction, although another root committed that transaction.
#[tokio::test]
async fn a_transaction_committed_by_another_root_does_not_prove_the_own_root() {
    assert!(answer_for_an_expired_number(false).await.contains(&"namespace of the job".to_string()));
}

/// Commits a transaction, expires its version, and creates a late root with the same number and transaction, and
/// possibly a companion. Checks that the outcome of the late root is unknown. Returns the names of the objects that
/// exist.
async fn answer_for_an_expired_number(has_companion: bool) -> Vec<String> {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::dated(environment.clone());
    let lakehouse = create(files.clone(), &environment).await;
    let base = add_namespace(&lakehouse, "a").await.unwrap();
    let options = TransactionOptions { id: Some("job".into()), ..TransactionOptions::default() };
    let mut job = lakehouse.begin(lakehouse.known(), options).unwrap();
    job.create(Namespace, "of the job", "", text("of the job")).await.unwrap();
    job.save().await.unwrap();

    let slow = open(files.clone(), &environment).await;
    let mut resumed = Transaction::resume(&slow, "job").await.unwrap();
    let mut companion = creating(&slow, "companion").await;
    let mut group = Vec::new();
    for transaction in [&mut resumed, &mut companion].into_iter().take(1 + usize::from(has_companion)) {
        transaction.write_files().await.unwrap();
        group.push(transaction.submission());
    }
    let latest = slow.known();
    let messages = group.iter().flat_map(|submission| submission.messages.clone()).collect();
    let root = crate::tree::apply_changes::apply_changes(
        slow.nodes(),
        environment.as_ref(),
        &latest.config,
        &latest.root,
        messages,
        0,
    );
    let root = root.await.unwrap().root;
    let infos = group.iter().map(|submission| submission.info.clone()).collect();
    let metadata = slow.publisher().next_metadata(&latest, infos);
    let prepared = slow.publisher().prepare(&latest, metadata, &root, latest.definition.clone()).unwrap();

    let rival = open(files.clone(), &environment).await;
    let mut in_time = Transaction::resume(&rival, "job").await.unwrap();
    assert_eq!(commit(&mut in_time).await.unwrap(), base + 1);
    let latest = add_namespace(&rival, "later").await.unwrap();
    expire(&rival, Some(latest), false).await.unwrap();
    environment.advance(Duration::from_secs(60));

    let Ok(Race::Won(created)) = slow.publisher().claim(prepared, u64::MAX).await else { panic!() };
    let answer = slow.publisher().confirm(created).await;
    assert!(matches!(answer, Err(Unpublished::InDoubt { .. })), "{answer:?}");
    names(&open(files, &environment).await.known()).await
}

/// A member that was not admitted has a certain outcome, even if the outcome of its group is unknown.
#[tokio::test(start_paused = true)]
async fn a_member_that_was_not_admitted_is_not_in_doubt() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let base = add_namespace(&lakehouse, "a").await.unwrap();
    let (first, second) = (root_path(base + 1), root_path(base + 2));
    let mut has_begun = false;
    let policy = move |operation: &Operation| {
        has_begun |= operation.path == second && operation.verb == Verb::PutIfAbsent;
        if operation.path == second && has_begun && operation.verb != Verb::Head {
            return Some(Action::FailBefore);
        }
        let is_first = operation.path == first && operation.verb == Verb::PutIfAbsent;
        is_first.then_some(Action::Delay(Duration::from_millis(50)))
    };
    let storage = Arc::new(FaultyStorage::with_policy(files, Box::new(policy)));
    let shared = open(storage, &environment).await;
    let mut leader = begin(&shared, Isolation::Snapshot).await;
    leader.replace(Namespace, "a", "", text("of the leader")).await.unwrap();
    let mut group = vec![leader, creating(&shared, "b").await];
    let mut loser = begin(&shared, Isolation::Snapshot).await;
    loser.replace(Namespace, "a", "", text("of the loser")).await.unwrap();
    group.push(loser);
    let outcomes = join_all(group.iter_mut().map(commit)).await;
    assert_eq!(outcomes[0].as_ref().unwrap(), &(base + 1));
    assert!(matches!(outcomes[1], Err(Error::CommitStateUnknown(_))), "{:?}", outcomes[1]);
    let Err(Error::CommitConflict { keys, .. }) = &outcomes[2] else { panic!("{:?}", outcomes[2]) };
    assert_eq!(keys, &["namespace a"]);
    assert_eq!((group[1].files(), matches!(group[2].files(), Files::Unreachable(_))), (Files::Kept, true));
}

/// The owner of a saved and rebased transaction recognises that another process has committed it from the queue.
/// Otherwise it would assume that the other process has resumed the transaction, and report an unknown outcome.
#[tokio::test]
async fn a_rebased_transaction_committed_from_the_queue_is_reported_as_committed() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "ns").await.unwrap();
    add_table(&lakehouse, "ns", "t").await.unwrap();
    let options = TransactionOptions { id: Some("job".into()), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.known(), options).unwrap();
    transaction.replace(Table, "ns", "t", text("ours")).await.unwrap();
    transaction.save().await.unwrap();
    let mut rival = begin(&lakehouse, Isolation::Snapshot).await;
    rival.replace(Table, "ns", "t", text("theirs")).await.unwrap();
    commit(&mut rival).await.unwrap();
    let Outcome::Conflicts(conflicts) = transaction.commit(CommitLimits::default()).await.unwrap() else { panic!() };
    transaction.rebase(&conflicts.tables[0], text("theirs and ours")).unwrap();

    leave_intent(&lakehouse, &mut transaction, 20).await;
    transaction.state.sending(Some(20));
    let other = open(files, &environment).await;
    for namespace in ["a", "b"] {
        creating(&other, namespace).await.commit(in_queue()).await.unwrap();
    }
    let version = other.latest().await.unwrap();
    assert!(version.metadata.commits("job"));
    assert_eq!(commit(&mut transaction).await.unwrap(), version.number);
}

/// After a conflict is resolved, the transaction reads the newer version. Otherwise its next writes would not be
/// compared with the versions in between, and would overwrite the update of another transaction.
#[tokio::test]
async fn a_statement_after_a_conflict_reads_the_newer_version() {
    let (_, _, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "ns").await.unwrap();
    for table in ["x", "y"] {
        add_table(&lakehouse, "ns", table).await.unwrap();
    }
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.replace(Table, "ns", "x", text("x of ours")).await.unwrap();
    let mut rival = begin(&lakehouse, Isolation::Snapshot).await;
    for table in ["x", "y"] {
        rival.replace(Table, "ns", table, text("theirs")).await.unwrap();
    }
    commit(&mut rival).await.unwrap();
    let Outcome::Conflicts(conflicts) = transaction.commit(CommitLimits::default()).await.unwrap() else { panic!() };
    let refused = transaction.replace(Table, "ns", "y", text("lost")).await;
    assert!(matches!(refused, Err(Error::TransactionClosed(_))), "{refused:?}");
    assert!(matches!(transaction.save().await, Err(Error::TransactionClosed(_))));
    transaction.rebase(&conflicts.tables[0], text("theirs, ours")).unwrap();
    let y = transaction.read(Table, "ns", "y").await.unwrap().unwrap();
    assert_eq!(y, "theirs");
    transaction.replace(Table, "ns", "y", text("theirs, ours")).await.unwrap();
    // The conflict with a third transaction is found again.
    let mut third = begin(&lakehouse, Isolation::Snapshot).await;
    third.replace(Table, "ns", "y", text("third")).await.unwrap();
    commit(&mut third).await.unwrap();
    let Outcome::Conflicts(conflicts) = transaction.commit(CommitLimits::default()).await.unwrap() else { panic!() };
    assert_eq!(conflicts.tables[0].name, "y");
}

/// A group always gets a leader, even if a leader is cancelled just after a member has become the next leader.
#[tokio::test(start_paused = true)]
async fn a_member_that_leaves_while_it_waits_passes_on_the_leadership() {
    for patience_millis in [5, 20, 50, 51, 52, 60] {
        let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
        create(files.clone(), &environment).await;
        let delay = on_root(1, 0, Action::Delay(Duration::from_millis(50)));
        let shared = open(Arc::new(FaultyStorage::new(files, [delay])), &environment).await;
        let (mut leader, mut leaves, mut stays) =
            (creating(&shared, "a").await, creating(&shared, "b").await, creating(&shared, "c").await);
        let leaving = async {
            let patience = Box::pin(tokio::time::sleep(Duration::from_millis(patience_millis)));
            select(Box::pin(commit(&mut leaves)), patience).await;
        };
        let all = async { futures::join!(commit(&mut leader), leaving, commit(&mut stays)) };
        let (led, (), stayed) = tokio::time::timeout(Duration::from_secs(60), all).await.expect("it hangs");
        assert_eq!((led.unwrap(), stayed.is_ok()), (1, true));
        assert_eq!(add_namespace(&shared, "d").await.unwrap(), shared.known().number);
    }
}

/// A transaction that waits for the root of another one keeps its own time limit, even if the store is slow.
#[tokio::test]
async fn a_waiting_member_ends_at_its_own_deadline() {
    use crate::environment::SystemEnvironment;
    let files = MemoryFiles::shared();
    create(files.clone(), &TestEnvironment::seeded(1)).await;
    let delay = on_root(1, 0, Action::Delay(Duration::from_secs(3)));
    let storage = Arc::new(FaultyStorage::new(files, [delay]));
    let shared = Lakehouse::open(storage, SystemEnvironment::shared(), None).await.unwrap();
    let (mut leader, mut waits) = (creating(&shared, "a").await, creating(&shared, "b").await);
    let limits = CommitLimits { timeout_millis: 100, ..CommitLimits::default() };
    let started = shared.environment().elapsed_millis();
    let waited = async {
        let answer = waits.commit(limits).await;
        (answer, shared.environment().elapsed_millis() - started)
    };
    let (led, (answer, waited_millis)) = futures::join!(commit(&mut leader), waited);
    assert_eq!(led.unwrap(), 1);
    // The waiting transaction was in no root, so its outcome is certain.
    assert!(matches!(answer, Err(Error::CommitConflict { .. })), "{answer:?}");
    assert!((100..2000).contains(&waited_millis), "{waited_millis}");
    assert!(matches!(waits.files(), Files::Unreachable(_)));
}

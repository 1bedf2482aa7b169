//! Saved transactions: resumed in another process, committed once.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::testing::{START_MILLIS, TestEnvironment};
use crate::error::Error;
use crate::expiry::expire;
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, create, names, open, text,
};
use crate::transaction::saved::list::saved;
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::{CommitLimits, Files, Isolation, Outcome, Proof, Transaction, TransactionOptions};

async fn lake() -> (Arc<MemoryFiles>, Arc<Lakehouse>, Arc<TestEnvironment>) {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::dated(environment.clone());
    let lakehouse = create(files.clone(), &environment).await;
    add_namespace(&lakehouse, "ns").await.unwrap();
    add_table(&lakehouse, "ns", "old").await.unwrap();
    (files, lakehouse, environment)
}

async fn job(lakehouse: &Arc<Lakehouse>, isolation: Isolation) -> Transaction {
    let options = TransactionOptions {
        id: Some("job".into()),
        isolation,
        message: "load".into(),
        author: "etl".into(),
        ..TransactionOptions::default()
    };
    lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap()
}

#[tokio::test]
async fn a_saved_transaction_is_resumed_in_another_process() {
    let (files, lakehouse, environment) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Serializable).await;
    transaction.create(Table, "ns", "new", text("new")).await.unwrap();
    transaction.rename(Table, ("ns", "old"), ("ns", "moved")).await.unwrap();
    transaction.attachment = text("whatever");
    transaction.checks = vec!["SELECT 1".into()];
    assert_eq!(transaction.save().await.unwrap(), 1);
    drop(transaction);
    add_namespace(&lakehouse, "meanwhile").await.unwrap();

    let elsewhere = open(files.clone(), &environment).await;
    let listed = saved(&elsewhere).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id.as_str(), listed[0].message.as_str(), listed[0].base_version), ("job", "load", 2));
    let mut resumed = Transaction::resume(&elsewhere, "job").await.unwrap();
    assert_eq!(resumed.read(Table, "ns", "new").await.unwrap(), Some(text("new")));
    assert!(!resumed.exists(Table, "ns", "old").await.unwrap());
    assert_eq!((resumed.attachment.clone(), resumed.checks.clone()), (text("whatever"), vec!["SELECT 1".into()]));
    resumed.create(Table, "ns", "more", text("more")).await.unwrap();
    let version = commit(&mut resumed).await.unwrap();

    let latest = lakehouse.latest().await.unwrap();
    assert_eq!(latest.number, version);
    let transaction = &latest.metadata.committed[0];
    assert_eq!((transaction.message.as_str(), transaction.began_at_version), ("load", 2));
    let tables: Vec<String> = names(&latest).await.into_iter().filter(|name| name.starts_with("table")).collect();
    assert_eq!(tables, ["table ns.more", "table ns.moved", "table ns.new"]);
    assert_eq!(outcome_of(&elsewhere, "job").await.unwrap(), TransactionOutcome::Committed(Some(version)));
    assert!(saved(&elsewhere).await.unwrap().is_empty());
    assert_whole(&latest).await;
}

/// `running_root` is a tree as the transaction sees it, which any reader of the format can read.
#[tokio::test]
async fn the_running_root_is_a_readable_tree() {
    let (_, lakehouse, _) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "inside", "", text("")).await.unwrap();
    transaction.save().await.unwrap();
    let files = lakehouse.storage().list("_txn/job/").await.unwrap();
    let record = lakehouse.storage().get(&files[0].path).await.unwrap();
    let record =
        <crate::lakehouse_definition::proto::DistributedTransactionDef as prost::Message>::decode(record).unwrap();
    let root = lakehouse.nodes().load(&record.running_root, None).await.unwrap();
    let key = lakehouse.known().config.names.namespace_key("inside").unwrap();
    assert!(crate::tree::search::get(lakehouse.nodes(), &root, &key).await.unwrap().is_some());
}

/// If two workers resume the same transaction, only one of them commits. Otherwise its rows would be loaded twice.
#[tokio::test]
async fn one_of_two_processes_that_resume_a_transaction_gets_an_error() {
    let (files, lakehouse, environment) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    transaction.save().await.unwrap();

    let mut one = Transaction::resume(&lakehouse, "job").await.unwrap();
    let mut two = Transaction::resume(&open(files, &environment).await, "job").await.unwrap();
    one.create(Namespace, "one", "", text("")).await.unwrap();
    two.create(Namespace, "two", "", text("")).await.unwrap();
    assert_eq!(one.save().await.unwrap(), 2);
    let answer = two.save().await.unwrap_err();
    assert!(matches!(&answer, Error::CommitConflict { message, .. } if message.contains("saved by another process")));
    let answer = commit(&mut two).await.unwrap_err();
    assert!(matches!(answer, Error::CommitConflict { .. }), "{answer}");
    commit(&mut one).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    assert_eq!(names(&latest).await.iter().filter(|name| name.contains("two")).count(), 0);
    // The process that saved it first cannot continue either.
    let answer = commit(&mut transaction).await.unwrap_err();
    assert!(
        matches!(&answer, Error::CommitConflict { message, .. } if message.contains("committed by another process"))
    );
}

#[tokio::test]
async fn committing_twice_applies_the_changes_once() {
    let (_, lakehouse, _) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    transaction.save().await.unwrap();
    let version = commit(&mut Transaction::resume(&lakehouse, "job").await.unwrap()).await.unwrap();
    let mut again = Transaction::resume(&lakehouse, "job").await.unwrap();
    assert_eq!(again.commit(CommitLimits::default()).await.unwrap(), Outcome::Committed(version));
    assert_eq!(again.committed_version(), Some(version));
    assert!(again.create(Namespace, "b", "", text("")).await.is_err());
    assert_eq!(lakehouse.latest().await.unwrap().number, version);
}

#[tokio::test]
async fn conflicts_are_found_across_a_save() {
    for (isolation, lands) in [(Isolation::Snapshot, true), (Isolation::Serializable, false)] {
        let (_, lakehouse, _) = lake().await;
        let mut transaction = job(&lakehouse, isolation).await;
        assert!(!transaction.exists(Namespace, "absent", "").await.unwrap());
        transaction.create(Namespace, "a", "", text("")).await.unwrap();
        transaction.save().await.unwrap();
        add_namespace(&lakehouse, "absent").await.unwrap();
        let mut resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
        assert_eq!(commit(&mut resumed).await.is_ok(), lands, "{isolation:?}");
    }
    // Requirements are checked after a save as well: here the namespace of the created table was dropped.
    let (_, lakehouse, _) = lake().await;
    add_namespace(&lakehouse, "doomed").await.unwrap();
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Table, "doomed", "t", text("")).await.unwrap();
    transaction.save().await.unwrap();
    let mut drops = begin(&lakehouse, Isolation::Snapshot).await;
    drops.drop_object(Namespace, "doomed", "").await.unwrap();
    commit(&mut drops).await.unwrap();
    let mut resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
    assert!(matches!(commit(&mut resumed).await, Err(Error::CommitConflict { .. })));
}

#[tokio::test]
async fn a_table_conflict_can_be_resolved_after_a_resume() {
    let (_, lakehouse, _) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.replace(Table, "ns", "old", text("ours")).await.unwrap();
    transaction.save().await.unwrap();
    let mut rival = begin(&lakehouse, Isolation::Snapshot).await;
    rival.replace(Table, "ns", "old", text("theirs")).await.unwrap();
    commit(&mut rival).await.unwrap();
    let mut resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
    let Outcome::Conflicts(conflicts) = resumed.commit(CommitLimits::default()).await.unwrap() else { panic!() };
    resumed.rebase(&conflicts.tables[0], text("theirs and ours")).unwrap();
    commit(&mut resumed).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    let location = latest.locate(Table, "ns", "old").await.unwrap().unwrap();
    assert_eq!(latest.read_definition(&location).await.unwrap(), text("theirs and ours"));
}

#[tokio::test]
async fn a_rollback_counts_for_all_processes() {
    let (_, lakehouse, _) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    transaction.save().await.unwrap();
    let mut other = Transaction::resume(&lakehouse, "job").await.unwrap();
    assert_eq!(transaction.rollback().await.unwrap(), Files::Unreachable(Proof::RolledBack));
    assert!(saved(&lakehouse).await.unwrap().is_empty());
    assert!(matches!(Transaction::resume(&lakehouse, "job").await, Err(Error::ObjectNotFound(_))));
    assert!(matches!(commit(&mut other).await, Err(Error::CommitConflict { .. })));
    assert_eq!(outcome_of(&lakehouse, "job").await.unwrap(), TransactionOutcome::RolledBack);
}

#[tokio::test]
async fn a_saved_transaction_expires() {
    let (_, lakehouse, environment) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    transaction.save().await.unwrap();
    environment.advance(Duration::from_secs(25 * 3600));
    assert!(saved(&lakehouse).await.unwrap().is_empty());
    assert!(matches!(Transaction::resume(&lakehouse, "job").await, Err(Error::TransactionExpired(_))));

    // The base version may also expire, by an expiry that does not know saved transactions.
    let (_, lakehouse, _) = self::lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    transaction.save().await.unwrap();
    add_namespace(&lakehouse, "x").await.unwrap();
    add_namespace(&lakehouse, "y").await.unwrap();
    crate::version::expiry_boundary::publish(lakehouse.storage().as_ref(), 4).await.unwrap();
    assert!(saved(&lakehouse).await.unwrap().is_empty());
    let fresh = open(lakehouse.storage().clone(), &TestEnvironment::seeded(2)).await;
    assert!(matches!(Transaction::resume(&fresh, "job").await, Err(Error::TransactionExpired(_))));
    assert!(matches!(Transaction::resume(&lakehouse, "nobody").await, Err(Error::ObjectNotFound(_))));
}

/// The age of a saved transaction is measured by the store's clock. Otherwise a host with a clock eight days ahead
/// would expire the base of a transaction that was saved a minute ago, and a host with a clock eight days behind would
/// retain the bases of expired transactions.
#[tokio::test]
async fn the_age_of_a_saved_transaction_is_measured_by_the_store() {
    const EIGHT_DAYS_MILLIS: u64 = 8 * 24 * 3600 * 1000;
    for host_millis in [START_MILLIS + EIGHT_DAYS_MILLIS, START_MILLIS - EIGHT_DAYS_MILLIS] {
        let (files, lakehouse, environment) = lake().await;
        let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
        transaction.create(Namespace, "a", "", text("")).await.unwrap();
        transaction.save().await.unwrap();
        add_namespace(&lakehouse, "x").await.unwrap();

        let host = TestEnvironment::seeded(3);
        host.set_now_millis(host_millis);
        let elsewhere = open(files.clone(), &host).await;
        assert_eq!(saved(&elsewhere).await.unwrap().len(), 1);
        assert_eq!(expire(&elsewhere, Some(3), false).await.unwrap(), [0, 1]);
        Transaction::resume(&elsewhere, "job").await.unwrap();
        // The store's clock advances by a day; the clock of this host does not matter.
        environment.advance(Duration::from_secs(25 * 3600));
        assert!(saved(&elsewhere).await.unwrap().is_empty());
        assert_eq!(expire(&elsewhere, Some(3), false).await.unwrap(), [2]);
        let resumed = Transaction::resume(&elsewhere, "job").await;
        assert!(matches!(resumed, Err(Error::TransactionExpired(_))), "{resumed:?}");
        assert!(files.paths().iter().all(|path| !path.starts_with("_probe/")), "a probe file was left");
    }
}

/// A saved transaction retains its base and all later versions. Otherwise a load that waits for its audit could not be
/// committed after an expiry.
#[tokio::test]
async fn expiry_retains_the_base_of_a_saved_transaction() {
    for before in [Some(6), None] {
        let environment = TestEnvironment::seeded(1);
        // The settings retain only the latest version.
        let definition = LakehouseDefinition::encode(proto::LakehouseDef {
            maximum_version_age_millis: 1,
            minimum_versions_to_keep: 1,
            ..Default::default()
        });
        let lakehouse = Lakehouse::create(MemoryFiles::shared(), environment.clone(), definition, None).await.unwrap();
        add_namespace(&lakehouse, "ns").await.unwrap();
        add_table(&lakehouse, "ns", "old").await.unwrap();
        let mut transaction = job(&lakehouse, Isolation::Serializable).await;
        transaction.create(Table, "ns", "new", text("new")).await.unwrap();
        transaction.save().await.unwrap();
        for namespace in ["w", "x", "y", "z"] {
            add_namespace(&lakehouse, namespace).await.unwrap();
        }
        environment.advance(Duration::from_secs(60));
        assert_eq!(expire(&lakehouse, before, true).await.unwrap(), [0, 1], "{before:?}");
        assert_eq!(expire(&lakehouse, before, false).await.unwrap(), [0, 1], "{before:?}");
        assert_eq!(saved(&lakehouse).await.unwrap().len(), 1);
        let mut resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
        assert_eq!(commit(&mut resumed).await.unwrap(), 7);
        // No transaction needs these versions any more.
        assert_eq!(expire(&lakehouse, before, false).await.unwrap()[..4], [2, 3, 4, 5]);
    }
}

#[tokio::test]
async fn expiry_ignores_transactions_that_have_ended() {
    let over: [fn(&mut Transaction) -> futures::future::BoxFuture<'_, ()>; 2] = [
        |transaction| {
            Box::pin(async { assert_eq!(transaction.rollback().await.unwrap(), Files::Unreachable(Proof::RolledBack)) })
        },
        |transaction| Box::pin(async { assert_eq!(commit(transaction).await.unwrap(), 4) }),
    ];
    for end in over {
        let (_, lakehouse, _) = lake().await;
        let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
        transaction.create(Namespace, "a", "", text("")).await.unwrap();
        transaction.save().await.unwrap();
        add_namespace(&lakehouse, "x").await.unwrap();
        end(&mut transaction).await;
        assert_eq!(expire(&lakehouse, Some(3), false).await.unwrap(), [0, 1, 2]);
    }
    let (_, lakehouse, environment) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    transaction.save().await.unwrap();
    add_namespace(&lakehouse, "x").await.unwrap();
    environment.advance(Duration::from_secs(25 * 3600));
    assert_eq!(expire(&lakehouse, Some(3), false).await.unwrap(), [0, 1, 2]);
}

#[tokio::test]
async fn the_outcome_of_any_transaction_can_be_queried() {
    let (_, lakehouse, _) = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let id = transaction.id().to_string();
    transaction.create(Namespace, "a", "", text("")).await.unwrap();
    assert_eq!(outcome_of(&lakehouse, &id).await.unwrap(), TransactionOutcome::NotCommitted);
    let version = commit(&mut transaction).await.unwrap();
    assert_eq!(outcome_of(&lakehouse, &id).await.unwrap(), TransactionOutcome::Committed(Some(version)));
    add_namespace(&lakehouse, "b").await.unwrap();
    expire(&lakehouse, Some(version + 1), false).await.unwrap();
    assert_eq!(outcome_of(&lakehouse, &id).await.unwrap(), TransactionOutcome::Unknown);
}

/// A saved state is not deleted while a process may resume it: its number would be unused again, and the next save of a
/// slow process would succeed.
#[tokio::test]
async fn a_process_that_resumed_before_a_rollback_cannot_commit_after_it() {
    let (_, lakehouse, _) = lake().await;
    let mut transaction = job(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Table, "ns", "a", text("a")).await.unwrap();
    transaction.save().await.unwrap();
    let mut slow = Transaction::resume(&lakehouse, "job").await.unwrap();
    transaction.create(Table, "ns", "b", text("b")).await.unwrap();
    transaction.save().await.unwrap();
    assert_eq!(transaction.rollback().await.unwrap(), Files::Unreachable(Proof::RolledBack));
    let before = lakehouse.latest().await.unwrap().number;
    let error = commit(&mut slow).await.unwrap_err();
    assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
    assert!(matches!(Transaction::resume(&lakehouse, "job").await, Err(Error::ObjectNotFound(_))));
    assert_eq!(lakehouse.latest().await.unwrap().number, before);
}

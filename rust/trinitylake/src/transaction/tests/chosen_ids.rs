//! A chosen id commits once, also after a rollback, until its version has expired.

use std::sync::Arc;

use futures::future::join_all;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::key::ObjectKind::{Namespace, TransactionRecord};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::counting::CountingStorage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, assert_whole, commit, contents, create, names, new_lakehouse, open, text,
};
use crate::transaction::saved::list::saved;
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::saved::transaction_record::records;
use crate::transaction::{Transaction, TransactionOptions};

async fn lake() -> Arc<Lakehouse> {
    create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await
}

async fn job(lakehouse: &Arc<Lakehouse>, id: &str) -> Transaction {
    let options = TransactionOptions { id: Some(id.into()), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap();
    let namespace = format!("of-{id}");
    if !transaction.exists(Namespace, &namespace, "").await.unwrap() {
        transaction.create(Namespace, &namespace, "", text(id)).await.unwrap();
    }
    transaction
}

async fn run(lakehouse: &Arc<Lakehouse>, id: &str) -> Result<u64> {
    commit(&mut job(lakehouse, id).await).await
}

/// The ids with a record in the latest tree.
async fn recorded(lakehouse: &Arc<Lakehouse>) -> Vec<String> {
    let latest = lakehouse.latest().await.unwrap();
    let decode = |key: &String| latest.config.names.decode(key).unwrap().name;
    records(&latest).await.unwrap().keys().map(decode).collect()
}

fn assert_undone(error: &Error, version: u64, by: u64) {
    let Error::CommitConflict { message, winners, .. } = error else { panic!("{error}") };
    let text_part = format!("committed in version {version} and undone by the rollback in version {by}");
    assert!(message.contains(&text_part), "{message}");
    assert_eq!((winners[0].version, winners[0].message.as_str()), (by, "bad load"));
}

/// A committed id commits no second time, even after a rollback of the lakehouse. Otherwise a job that received no
/// answer would repeat a load that an operator has rolled back.
#[tokio::test]
async fn an_undone_id_does_not_commit_again() {
    let lakehouse = lake().await;
    let before = add_namespace(&lakehouse, "a").await.unwrap();
    let version = run(&lakehouse, "nightly").await.unwrap();
    let back = lakehouse.rollback(before, "bad load", "").await.unwrap();
    assert_eq!(
        outcome_of(&lakehouse, "nightly").await.unwrap(),
        TransactionOutcome::Undone { version, by: back.number }
    );
    // A transaction that began before the rollback does not commit either.
    let options = TransactionOptions { id: Some("nightly".into()), ..TransactionOptions::default() };
    let mut late = lakehouse.begin(lakehouse.version(before).await.unwrap(), options).unwrap();
    late.create(Namespace, "late", "", text("late")).await.unwrap();
    assert_undone(&commit(&mut late).await.unwrap_err(), version, back.number);
    assert_undone(&run(&lakehouse, "nightly").await.unwrap_err(), version, back.number);
    let latest = lakehouse.latest().await.unwrap();
    assert_eq!(latest.number, back.number);
    assert_eq!(names(&latest).await, ["namespace a", "transaction nightly"]);
    run(&lakehouse, "nightly-2").await.unwrap();
}

/// Few requests find the version of a committed id. Otherwise a job would read the whole log: 202 requests for 200
/// versions.
#[tokio::test]
async fn an_id_is_found_without_reading_the_log() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let mut versions = Vec::new();
    for i in 0..200 {
        match i {
            3 | 100 | 199 => versions.push((i, run(&lakehouse, &format!("job-{i}")).await.unwrap())),
            // Two rollbacks; one of them undoes the jobs in the middle.
            40 => drop(lakehouse.rollback(39, "", "").await.unwrap()),
            120 => drop(lakehouse.rollback(90, "bad load", "").await.unwrap()),
            _ => drop(add_namespace(&lakehouse, &format!("n{i}")).await.unwrap()),
        }
    }
    for (i, version) in versions {
        let counting = Arc::new(CountingStorage::new(files.clone()));
        let cold = open(counting.clone(), &environment).await;
        let before = counting.counters();
        let found = outcome_of(&cold, &format!("job-{i}")).await.unwrap();
        match found {
            TransactionOutcome::Undone { version: found, by } => {
                assert_eq!((i, found, by), (100, version, 121))
            }
            found => assert_eq!(found, TransactionOutcome::Committed(Some(version))),
        }
        let requests = counting.counters().since(&before).requests();
        assert!(requests <= 20, "{requests} requests for job-{i}");
    }
}

#[tokio::test]
async fn an_undone_saved_transaction_is_not_open() {
    let lakehouse = lake().await;
    let before = add_namespace(&lakehouse, "a").await.unwrap();
    job(&lakehouse, "audit").await.save().await.unwrap();
    let version = commit(&mut Transaction::resume(&lakehouse, "audit").await.unwrap()).await.unwrap();
    let back = lakehouse.rollback(before, "bad load", "").await.unwrap();
    assert_eq!(saved(&lakehouse).await.unwrap(), []);
    assert_undone(&Transaction::resume(&lakehouse, "audit").await.unwrap_err(), version, back.number);
    assert_eq!(outcome_of(&lakehouse, "audit").await.unwrap(), TransactionOutcome::Undone { version, by: back.number });
}

#[tokio::test]
async fn an_undone_rollback_has_no_effect() {
    let lakehouse = lake().await;
    let before = add_namespace(&lakehouse, "a").await.unwrap();
    let first = run(&lakehouse, "first").await.unwrap();
    let second = run(&lakehouse, "second").await.unwrap();
    let gone = lakehouse.rollback(before, "bad load", "").await.unwrap().number;
    let between = run(&lakehouse, "between").await.unwrap();
    let returned = lakehouse.rollback(first, "half of it was good", "").await.unwrap().number;
    assert_eq!(outcome_of(&lakehouse, "first").await.unwrap(), TransactionOutcome::Committed(Some(first)));
    assert_eq!(run(&lakehouse, "first").await.unwrap(), first);
    for (id, version) in [("second", second), ("between", between)] {
        assert_eq!(outcome_of(&lakehouse, id).await.unwrap(), TransactionOutcome::Undone { version, by: returned });
    }
    assert!(gone < returned);
    assert_eq!(recorded(&lakehouse).await, ["between", "first", "second"]);
    assert_eq!(names(&lakehouse.known()).await[..2], ["namespace a", "namespace of-first"]);
}

#[tokio::test]
async fn a_rollback_keeps_many_ids_and_a_valid_tree() {
    let lakehouse = lake().await;
    let before = add_namespace(&lakehouse, "a").await.unwrap();
    let ids: Vec<String> = (0..2500).map(|number| format!("job-{number:04}")).collect();
    let done = join_all(ids.iter().map(|id| run(&lakehouse, id))).await;
    assert!(done.iter().all(|version| version.is_ok()));
    let back = lakehouse.rollback(before, "", "").await.unwrap();
    assert_eq!(recorded(&lakehouse).await, ids);
    assert_eq!(contents(&back).await.len(), ids.len() + 1);
    assert_whole(&back).await;
    assert!(matches!(run(&lakehouse, "job-0123").await, Err(Error::CommitConflict { .. })));
    // Rolled forward again: the objects exist again, and the ids are unchanged.
    let forward = lakehouse.rollback(back.number - 1, "", "").await.unwrap();
    assert_eq!(contents(&forward).await.len(), 2 * ids.len() + 1);
    assert_whole(&forward).await;
}

#[tokio::test]
async fn expiry_removes_only_the_ids_of_expired_versions() {
    let lakehouse = lake().await;
    for id in ["a", "b", "c", "d"] {
        run(&lakehouse, id).await.unwrap();
    }
    assert_eq!(expire(&lakehouse, Some(3), true).await.unwrap(), [0, 1, 2]);
    assert_eq!(recorded(&lakehouse).await, ["a", "b", "c", "d"], "a dry run forgets nothing");
    assert_eq!(expire(&lakehouse, Some(3), false).await.unwrap(), [0, 1, 2]);
    assert_eq!(recorded(&lakehouse).await, ["c", "d"]);
    let latest = lakehouse.known();
    assert_eq!((latest.number, latest.metadata.committed.len()), (5, 1));
    let objects = names(&latest).await.into_iter().filter(|name| name.starts_with("namespace"));
    assert_eq!(objects.count(), 4, "an object was removed");
    assert_whole(&latest).await;
    assert_eq!(run(&lakehouse, "c").await.unwrap(), 3, "its version is retained");
    assert_eq!(outcome_of(&lakehouse, "a").await.unwrap(), TransactionOutcome::Unknown);

    // An id that is used again after its expiry has a new record, which is not removed with the old one.
    let options = TransactionOptions { id: Some("a".into()), ..TransactionOptions::default() };
    let mut again = lakehouse.begin(latest, options).unwrap();
    again.create(Namespace, "again", "", text("again")).await.unwrap();
    let version = commit(&mut again).await.unwrap();
    expire(&lakehouse, Some(4), false).await.unwrap();
    assert_eq!(recorded(&lakehouse).await, ["a", "d"]);
    assert_eq!(outcome_of(&lakehouse, "a").await.unwrap(), TransactionOutcome::Committed(Some(version)));
    let latest = lakehouse.latest().await.unwrap().number;
    expire(&lakehouse, Some(5), false).await.unwrap();
    assert_eq!(recorded(&lakehouse).await, ["a"]);
    expire(&lakehouse, Some(version), false).await.unwrap();
    assert_eq!(lakehouse.latest().await.unwrap().number, latest + 1, "without expired ids there is no new version");
}

/// A record that an expiry removes during a query is not damage. Otherwise a process that is suspended between its
/// reads of the latest version and of the record would report a damaged lakehouse.
#[tokio::test]
async fn a_record_removed_by_a_concurrent_expiry_is_not_damage() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for id in ["a", "b"] {
        run(&lakehouse, id).await.unwrap();
    }
    let intruder = Intruder::at_record(&files);
    let slow = open(intruder.clone(), &environment).await;
    intruder.add(move || async move {
        expire(&lakehouse, Some(2), false).await.unwrap();
        assert_eq!(recorded(&lakehouse).await, ["b"]);
    });
    assert_eq!(outcome_of(&slow, "a").await.unwrap(), TransactionOutcome::Unknown);
    assert_eq!(intruder.waiting(), 0);
    let latest = slow.latest().await.unwrap();
    let key = latest.config.names.transaction_key("b").unwrap();
    files.delete(&latest.get(&key).await.unwrap().unwrap()).await.unwrap();
    let error = outcome_of(&slow, "b").await.unwrap_err();
    assert!(matches!(error, Error::CorruptFile { .. }), "{error}");
}

#[tokio::test]
async fn an_id_kept_by_a_rollback_expires_with_its_version() {
    let lakehouse = lake().await;
    run(&lakehouse, "undone").await.unwrap();
    let back = lakehouse.rollback(0, "bad load", "").await.unwrap();
    add_namespace(&lakehouse, "a").await.unwrap();
    expire(&lakehouse, Some(back.number - 1), false).await.unwrap();
    assert_eq!(recorded(&lakehouse).await, ["undone"], "its version is retained");
    expire(&lakehouse, Some(back.number), false).await.unwrap();
    assert_eq!(recorded(&lakehouse).await, [] as [&str; 0]);
    run(&lakehouse, "undone").await.unwrap();
}

/// A rollback to a tree from before an expiry does not restore removed records.
#[tokio::test]
async fn a_rollback_does_not_restore_removed_ids() {
    let lakehouse = lake().await;
    run(&lakehouse, "old").await.unwrap();
    let kept = add_namespace(&lakehouse, "a").await.unwrap();
    expire(&lakehouse, Some(kept), false).await.unwrap();
    let back = lakehouse.rollback(kept, "", "").await.unwrap();
    assert_eq!(recorded(&lakehouse).await, [] as [&str; 0]);
    let kind = |key: &String| back.config.names.decode(key).unwrap().kind;
    assert!(contents(&back).await.keys().all(|key| kind(key) != TransactionRecord));
}

/// An expiry also removes records that an interrupted expiry has left after publishing its boundary.
#[tokio::test]
async fn the_next_expiry_removes_the_ids_of_an_interrupted_one() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for id in ["a", "b", "c", "d"] {
        run(&lakehouse, id).await.unwrap();
    }
    let mortal =
        Arc::new(FaultyStorage::new(files.clone(), [Fault::new(Trigger::on(Verb::Delete, 0), Action::DieBefore)]));
    expire(&open(mortal.clone(), &environment).await, Some(2), false).await.unwrap_err();
    assert!(mortal.is_dead());
    assert_eq!(recorded(&lakehouse).await, ["a", "b", "c", "d"]);
    assert_eq!(expire(&lakehouse, Some(3), false).await.unwrap(), [0, 1, 2]);
    assert_eq!(recorded(&lakehouse).await, ["c", "d"]);
}

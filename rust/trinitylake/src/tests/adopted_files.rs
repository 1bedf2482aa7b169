//! Existing files that no version references, such as the files of a table that is registered again: a transaction may
//! adopt them unless a collection may delete them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow_array::StringArray;
use bytes::Bytes;

use super::gc::{HOUR, Paths, collect_after, data, lake, setting, write};
use crate::bulk_registration::register_since;
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::file_names::GC_MARKER_PREFIX;
use crate::gc::distributed::DistributedGc;
use crate::gc::{Options, Report};
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::faulty::{Action, FaultyStorage, Operation, Verb};
use crate::tests::fixture::{Intruder, MemoryFiles, begin, commit, open};
use crate::transaction::{Isolation, Transaction};

fn collecting(files: &MemoryFiles) -> Vec<String> {
    files.paths().into_iter().filter(|path| path.starts_with(GC_MARKER_PREFIX)).collect()
}

/// Registers a table with an existing file.
async fn register(lakehouse: &Arc<Lakehouse>, number: u64) -> Result<Transaction> {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    transaction.adopt(vec![data(number)], false).await?;
    transaction.create(ObjectKind::Table, "n", "again", Bytes::from(data(number))).await?;
    Ok(transaction)
}

fn assert_expired<T: std::fmt::Debug>(outcome: Result<T>, said: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, Error::TransactionExpired(message) if message.contains(said)), "{error}");
}

/// A lakehouse in which a table was unregistered, and a collection deleted the unreferenced files of older versions.
/// The files of the table are three hours old, and no retained version references them.
async fn unregistered(files: &Arc<MemoryFiles>, environment: &Arc<TestEnvironment>) -> Arc<Lakehouse> {
    let lakehouse = lake(files, environment).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let path = write(&lakehouse, 1).await;
    transaction.create(ObjectKind::Table, "n", "x", Bytes::from(path)).await.unwrap();
    let holding = commit(&mut transaction).await.unwrap();
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.drop_object(ObjectKind::Table, "n", "x").await.unwrap();
    commit(&mut transaction).await.unwrap();
    write(&lakehouse, 2).await;
    environment.advance(3 * HOUR);
    let collected = collect_after(&lakehouse, HOUR).await.unwrap();
    assert!(collected.version.is_some() && files.has(&data(1)), "an older version still has the table");
    expire(&lakehouse, Some(holding + 1), false).await.unwrap();
    lakehouse
}

/// Old files can be adopted. Otherwise a table could not be registered again after a vacuum, because its files are old.
#[tokio::test]
async fn a_table_is_registered_again_after_a_collection() {
    let (files, environment) = setting();
    let lakehouse = unregistered(&files, &environment).await;
    assert_eq!(collecting(&files), Vec::<String>::new());
    commit(&mut register(&lakehouse, 1).await.unwrap()).await.unwrap();
    expire(&lakehouse, Some(lakehouse.known().number), false).await.unwrap();
    environment.advance(HOUR);
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert!(files.has(&data(1)));
    assert_expired(register(&lakehouse, 2).await, "is missing");
}

/// A registration fails if a collection deletes its files between the check and the commit. It also has to fail if the
/// collection has a longer grace period than an earlier one, so that its fence does not exclude the files by their age.
#[tokio::test]
async fn a_collection_between_the_check_and_the_commit_fails_a_registration() {
    for grace in [Duration::ZERO, 2 * HOUR] {
        let (files, environment) = setting();
        let lakehouse = unregistered(&files, &environment).await;
        let other = open(files.clone(), &environment).await;
        let mut transaction = register(&other, 1).await.unwrap();
        let report = collect_after(&lakehouse, grace).await.unwrap();
        assert!(report.version.is_some() && !files.has(&data(1)), "{report:?}");
        assert_expired(commit(&mut transaction).await, "is missing");
    }
}

/// A bulk registration fails if a collection deletes its files before the commit.
#[tokio::test]
async fn a_collection_fails_a_bulk_registration() {
    for grace in [Duration::ZERO, 2 * HOUR] {
        let (files, environment) = setting();
        let lakehouse = unregistered(&files, &environment).await;
        let other = open(files.clone(), &environment).await;
        let since = other.latest().await.unwrap();
        let looked = begin(&other, Isolation::Snapshot).await.adopt(vec![data(1)], false).await;
        looked.unwrap();
        let names = since.config.names;
        let objects = || {
            let key = names.key(ObjectKind::Table, "n", "again").unwrap();
            (StringArray::from(vec![key]), StringArray::from(vec!["definition"]))
        };
        collect_after(&lakehouse, grace).await.unwrap();
        assert!(!files.has(&data(1)));
        assert_expired(register_since(&other, &since, objects(), false, "", "").await, "register again");
    }
}

/// A file is checked again after the running collections were listed: a collection may delete the file and end after
/// the first check and before the listing.
#[tokio::test]
async fn adoption_checks_a_file_again_after_listing_collections() {
    let (files, environment) = setting();
    let lakehouse = unregistered(&files, &environment).await;
    let intruder = Intruder::at_collecting(&files);
    let other = open(intruder.clone(), &environment).await;
    intruder.add(move || async move {
        assert!(collect_after(&lakehouse, Duration::ZERO).await.unwrap().version.is_some());
    });
    assert_expired(register(&other, 1).await, "is missing");
    assert_eq!(intruder.waiting(), 0);
}

/// A collection through a store that does not execute the deletions of data files.
async fn broken_off(files: &Arc<MemoryFiles>, environment: &Arc<TestEnvironment>, grace: Duration) -> Result<Report> {
    let is_data = |operation: &Operation| operation.verb == Verb::Delete && operation.path.starts_with("n/");
    let policy = move |operation: &Operation| is_data(operation).then_some(Action::FailBefore);
    let storage = Arc::new(FaultyStorage::with_policy(files.clone(), Box::new(policy)));
    collect_after(&open(storage, environment).await, grace).await
}

/// Files that an interrupted collection may still delete are not adopted. Otherwise a table could be registered with
/// files that the store deletes later.
#[tokio::test]
async fn files_of_an_interrupted_collection_are_not_registered() {
    let (files, environment) = setting();
    let lakehouse = unregistered(&files, &environment).await;
    broken_off(&files, &environment, Duration::ZERO).await.unwrap_err();
    assert_eq!(collecting(&files).len(), 1);
    assert!(files.has(&data(1)));
    assert_expired(register(&lakehouse, 1).await, GC_MARKER_PREFIX);
    environment.advance(HOUR);
    let young = write(&lakehouse, 3).await;
    begin(&lakehouse, Isolation::Snapshot).await.adopt(vec![young], false).await.unwrap();

    // The marker stays after a collection with a longer grace period than the interrupted one, and after a collection
    // that finds a file of unknown kind.
    collect_after(&lakehouse, 2 * HOUR).await.unwrap();
    assert_eq!(collecting(&files).len(), 1);
    files.put_unique("reports/january.pdf", "x".into()).await.unwrap();
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert_eq!(collecting(&files).len(), 1);
    files.delete("reports/january.pdf").await.unwrap();
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert_eq!(collecting(&files), Vec::<String>::new());
}

/// A collection creates its marker before its fence. Otherwise a registration would find no running collection although
/// one is about to publish its fence.
#[tokio::test]
async fn a_collection_creates_its_marker_before_its_fence() {
    let (files, environment) = setting();
    let lakehouse = unregistered(&files, &environment).await;
    let intruder = Intruder::new(&files);
    let collector = open(intruder.clone(), &environment).await;
    let has_looked = Arc::new(AtomicBool::new(false));
    let (seen, looking) = (files.clone(), has_looked.clone());
    intruder.add(move || async move {
        assert_expired(register(&lakehouse, 1).await, GC_MARKER_PREFIX);
        looking.store(collecting(&seen).len() == 1, Ordering::SeqCst);
    });
    collect_after(&collector, Duration::ZERO).await.unwrap();
    assert!(has_looked.load(Ordering::SeqCst));
    assert!(!files.has(&data(1)));
}

/// A distributed collection has a marker as well, from its fence until its end.
#[tokio::test]
async fn a_distributed_collection_has_a_marker_until_its_end() {
    let (files, environment) = setting();
    let lakehouse = unregistered(&files, &environment).await;
    let options = Options { grace_millis: Some(0), ..Options::default() };
    let mut shared = DistributedGc::begin(&lakehouse, options).await.unwrap();
    assert_eq!(collecting(&files), Vec::<String>::new());
    shared.fence(&Paths, false).await.unwrap();
    assert_expired(register(&lakehouse, 1).await, GC_MARKER_PREFIX);
    shared.fence(&Paths, false).await.unwrap();
    assert_eq!(collecting(&files).len(), 1);
    shared.end(true).await;
    assert_eq!(collecting(&files), Vec::<String>::new());
    commit(&mut register(&lakehouse, 1).await.unwrap()).await.unwrap();
}

//! Garbage collection step by step. The simulation covers concurrent processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join;

use crate::environment::Environment;
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::file_names::{root_path, root_version};
use crate::gc::disk_usage::{Held, usage};
use crate::gc::distributed::{DistributedGc, Sort, delete, links};
use crate::gc::file_kind::Kind;
use crate::gc::file_references::{Contents, FileForm, Form, Link};
use crate::gc::{Options, Report, no_progress, vacuum};
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
use crate::storage::Storage;
use crate::storage::faulty::{Action, FaultyStorage, Operation, Verb};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, create, open, text,
};
use crate::transaction::{Isolation, Transaction, TransactionOptions};
use crate::version::expiry_boundary::publish;

pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// Contents of test definitions: each is the path of a data file.
#[derive(Debug)]
pub(super) struct Paths;

impl Contents for Paths {
    fn of_table(&self, bytes: Bytes, _: &str) -> Result<Vec<Link>> {
        let path = String::from_utf8(bytes.to_vec()).unwrap();
        Ok(vec![Link::File { path, form: FileForm::Iceberg(Form::Content) }])
    }

    fn of_file(&self, _: FileForm, _: &Bytes, _: &str) -> Result<Vec<Link>> {
        Ok(Vec::new())
    }
}

pub(super) fn data(number: u64) -> String {
    format!("n/t-01234567/data/00000-{}.parquet", uuid::Uuid::from_u128(number.into()))
}

pub(super) async fn write(lakehouse: &Arc<Lakehouse>, number: u64) -> String {
    lakehouse.storage().put_unique(&data(number), text("rows")).await.unwrap();
    data(number)
}

pub(super) async fn collect_after(lakehouse: &Arc<Lakehouse>, grace: Duration) -> Result<Report> {
    let options = Options { grace_millis: Some(grace.as_millis() as u64), ..Options::default() };
    vacuum(lakehouse, &Paths, options, &no_progress()).await
}

pub(super) fn setting() -> (Arc<MemoryFiles>, Arc<TestEnvironment>) {
    let environment = TestEnvironment::seeded(1);
    (MemoryFiles::dated(environment.clone()), environment)
}

/// A lakehouse with a namespace, a table and its data file, all of them an hour old.
pub(super) async fn lake(files: &Arc<MemoryFiles>, environment: &Arc<TestEnvironment>) -> Arc<Lakehouse> {
    let lakehouse = create(files.clone(), environment).await;
    add_namespace(&lakehouse, "n").await.unwrap();
    let path = write(&lakehouse, 0).await;
    add_table(&lakehouse, "n", &path[..1]).await.unwrap();
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.replace(ObjectKind::Table, "n", "n", Bytes::from(path)).await.unwrap();
    commit(&mut transaction).await.unwrap();
    expire(&lakehouse, Some(lakehouse.known().number), false).await.unwrap();
    environment.advance(HOUR);
    lakehouse
}

pub(super) async fn lake_with_old_files() -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<Lakehouse>) {
    let (files, environment) = setting();
    let lakehouse = lake(&files, &environment).await;
    (files, environment, lakehouse)
}

#[tokio::test]
async fn referenced_and_young_files_are_retained() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    write(&lakehouse, 1).await;
    environment.advance(HOUR / 2);
    write(&lakehouse, 2).await;
    let report = collect_after(&lakehouse, HOUR / 4).await.unwrap();
    assert!(files.has(&data(0)) && !files.has(&data(1)) && files.has(&data(2)), "{report:?}");
    let version = open(files.clone(), &environment).await.known();
    assert_eq!(Some(version.number), report.version);
    assert_eq!(version.metadata.gc_before_millis, Some(report.before_millis));
    assert_whole(&version).await;
    add_namespace(&lakehouse, "later").await.unwrap();
    let later = lakehouse.latest().await.unwrap();
    assert_eq!(later.metadata.gc_before_millis, Some(report.before_millis), "later versions have it, too");
    assert_eq!(
        collect_after(&lakehouse, HOUR / 4).await.unwrap().version,
        None,
        "a collection without garbage creates no version"
    );
}

/// A collection, like an expiry, deletes roots only after all older observations of the boundary have become too old.
/// Otherwise a reader would use an expired version as the latest one.
#[tokio::test]
async fn a_collection_waits_like_an_expiry_before_it_deletes_roots() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    add_namespace(&lakehouse, "more").await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    environment.advance(HOUR);
    publish(files.as_ref(), latest.number).await.unwrap();
    let published_millis = environment.elapsed_millis();
    collect_after(&lakehouse, HOUR / 4).await.unwrap();
    assert!(!files.has(&root_path(latest.number - 1)) && files.has(&latest.root_path));
    assert!(environment.elapsed_millis() - published_millis >= 1000, "the collection did not wait");
}

/// A commit fails if a collection has deleted its files. Otherwise a writer that was suspended between writing its
/// files and its commit would publish references to deleted files.
#[tokio::test]
async fn a_transaction_with_files_older_than_the_fence_has_expired() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let other = open(files.clone(), &environment).await;
    let mut slow = begin(&other, Isolation::Snapshot).await;
    let path = write(&other, 1).await;
    slow.create(ObjectKind::Table, "n", "slow", path.into()).await.unwrap();
    environment.advance(HOUR);
    let mut quick = begin(&other, Isolation::Snapshot).await;
    let path = write(&other, 2).await;
    quick.create(ObjectKind::Table, "n", "quick", path.into()).await.unwrap();
    environment.advance(HOUR / 2);
    collect_after(&lakehouse, HOUR).await.unwrap();
    assert!(!files.has(&data(1)) && files.has(&data(2)));
    let error = commit(&mut slow).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    commit(&mut quick).await.unwrap();
}

/// If a collection deleted an old file of a transaction, the error says that it has expired, and not that the lakehouse
/// is damaged.
#[tokio::test]
async fn a_missing_file_of_an_old_transaction_means_that_it_has_expired() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let other = open(files.clone(), &environment).await;
    let slow = begin(&other, Isolation::Snapshot).await;
    let base = slow.base().number;
    write(&other, 1).await;
    slow.check_retained().await.unwrap();
    environment.advance(HOUR);
    let quick = begin(&other, Isolation::Snapshot).await;
    environment.advance(HOUR / 2);
    collect_after(&lakehouse, HOUR).await.unwrap();
    quick.check_retained().await.unwrap();
    let error = slow.check_retained().await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");

    expire(&lakehouse, Some(base + 1), false).await.unwrap();
    let error = quick.check_retained().await.unwrap_err();
    assert!(matches!(error, Error::VersionExpired(_)), "{error}");
}

/// A rollback that loses a race to a collection writes its record again: the collection may have deleted the record as
/// unreferenced. Otherwise the rollback would commit a key whose file is missing.
#[tokio::test]
async fn the_record_of_a_rollback_is_written_again_after_a_collection() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let intruder = Intruder::new(&files);
    let is_slow = Arc::new(AtomicBool::new(true));
    let asked = is_slow.clone();
    let policy = move |operation: &Operation| {
        let is_root = operation.verb == Verb::PutIfAbsent && root_version(&operation.path).is_some();
        (is_root && asked.load(Ordering::SeqCst)).then_some(Action::FailBefore)
    };
    let storage = Arc::new(FaultyStorage::with_policy(intruder.clone(), Box::new(policy)));
    let here = open(storage, &environment).await;
    let mut transaction = begin(&here, Isolation::Snapshot).await;
    transaction.create(ObjectKind::Namespace, "doubtful", "", text("x")).await.unwrap();
    let error = commit(&mut transaction).await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");

    is_slow.store(false, Ordering::SeqCst);
    let (other, clock) = (lakehouse.clone(), environment.clone());
    intruder.add(move || async move {
        clock.advance(Duration::from_secs(40));
        assert!(collect_after(&other, Duration::from_secs(20)).await.unwrap().version.is_some());
    });
    transaction.rollback().await.unwrap();
    assert_eq!(intruder.waiting(), 0, "no collection ran in between");
    let latest = lakehouse.latest().await.unwrap();
    let key = latest.config.names.transaction_key(transaction.id()).unwrap();
    let record = latest.get(&key).await.unwrap().expect("a record");
    assert!(files.has(&record), "{record} is gone");
}

/// If a collection has deleted a file of one member, the other members of its group commit. Otherwise the whole group
/// would fail, because a disk cannot sync the deleted file.
#[tokio::test]
async fn only_the_transaction_whose_files_were_collected_has_expired() {
    for slow_is_first in [true, false] {
        let (files, environment) = setting();
        let lakehouse = lake(&files, &environment).await;
        let other = open(files.clone(), &environment).await;
        let mut slow = begin(&other, Isolation::Snapshot).await;
        slow.pending().put(&data(1), text("rows")).await.unwrap();
        slow.create(ObjectKind::Table, "n", "slow", data(1).into()).await.unwrap();
        environment.advance(HOUR);
        let mut quick = begin(&other, Isolation::Snapshot).await;
        quick.pending().put(&data(2), text("rows")).await.unwrap();
        quick.create(ObjectKind::Table, "n", "quick", data(2).into()).await.unwrap();
        environment.advance(HOUR / 2);
        collect_after(&lakehouse, HOUR).await.unwrap();
        assert!(!files.has(&data(1)) && files.has(&data(2)));
        let (slow, quick) = if slow_is_first {
            join(commit(&mut slow), commit(&mut quick)).await
        } else {
            let (quick, slow) = join(commit(&mut quick), commit(&mut slow)).await;
            (slow, quick)
        };
        assert!(matches!(slow, Err(Error::TransactionExpired(_))), "{slow_is_first}: {slow:?}");
        quick.unwrap();
    }
}

/// The age of a transaction is correct if the clock of the writer's machine is three days ahead or behind.
#[tokio::test]
async fn gc_ignores_the_clocks_of_writers() {
    for days in [-3i64, 3] {
        let (files, environment) = setting();
        let lakehouse = lake(&files, &environment).await;
        let wrong = TestEnvironment::seeded(2);
        wrong.set_now_millis(environment.now_millis().saturating_add_signed(days * 24 * 3_600_000));
        let other = open(files.clone(), &wrong).await;
        let mut slow = begin(&other, Isolation::Snapshot).await;
        let path = write(&other, 1).await;
        slow.create(ObjectKind::Table, "n", "slow", path.into()).await.unwrap();
        environment.advance(HOUR);
        wrong.advance(HOUR);
        collect_after(&lakehouse, HOUR / 2).await.unwrap();
        let error = commit(&mut slow).await.unwrap_err();
        assert!(matches!(error, Error::TransactionExpired(_)), "{days}: {error}");
    }
}

/// The time of a suspension counts for the age of a transaction: the dates of the store show it or, on a disk, the wall
/// clock after its correction. Otherwise a virtual machine whose clocks stopped for an hour would commit a table whose
/// file a collection has deleted.
#[tokio::test]
async fn a_suspended_machine_does_not_consider_its_files_young() {
    for is_remote in [true, false] {
        let clock = TestEnvironment::seeded(1);
        let dated = || MemoryFiles::dated(clock.clone());
        let files = if is_remote { MemoryFiles::remote(clock.clone()) } else { dated() };
        let lakehouse = lake(&files, &clock).await;
        let stopped = TestEnvironment::seeded(2);
        let other = open(files.clone(), &stopped).await;
        let mut slow = begin(&other, Isolation::Snapshot).await;
        let path = write(&other, 1).await;
        slow.create(ObjectKind::Table, "n", "slow", path.into()).await.unwrap();
        clock.advance(HOUR);
        collect_after(&lakehouse, HOUR / 2).await.unwrap();
        assert!(!files.has(&data(1)));
        if !is_remote {
            stopped.set_now_millis(clock.now_millis());
        }
        let error = commit(&mut slow).await.unwrap_err();
        assert!(matches!(error, Error::TransactionExpired(_)), "{is_remote}: {error}");
    }
}

/// On a disk, the clock of a machine was set back for two days while a transaction wrote a file, and then corrected. A
/// collection deleted the file as older than its time, and the commit was acknowledged, because by the clocks no time
/// had passed since the transaction began.
#[tokio::test]
async fn a_file_written_while_the_clock_was_set_back_is_not_young() {
    for saves_first in [false, true] {
        let clock = TestEnvironment::seeded(1);
        let files = MemoryFiles::dated(clock.clone());
        let lakehouse = lake(&files, &clock).await;
        let mut slow = begin(&lakehouse, Isolation::Snapshot).await;
        if saves_first {
            slow.save().await.unwrap();
        }
        let set_back = 2 * 24 * 3_600_000;
        clock.set_now_millis(clock.now_millis() - set_back);
        let path = write(&lakehouse, 1).await;
        slow.create(ObjectKind::Table, "n", "slow", path.into()).await.unwrap();
        clock.set_now_millis(clock.now_millis() + set_back);
        collect_after(&lakehouse, HOUR).await.unwrap();
        assert!(!files.has(&data(1)));
        let error = commit(&mut slow).await.unwrap_err();
        assert!(matches!(error, Error::TransactionExpired(_)), "{saves_first}: {error}");
    }
}

/// A commit fails if an answer has no date. Otherwise, if a proxy answers without a date, the writer would not notice a
/// suspension, and could commit a table whose file is missing.
#[tokio::test]
async fn an_answer_without_a_date_does_not_prove_an_age() {
    let clock = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(clock.clone());
    let lakehouse = lake(&files, &clock).await;
    let stopped = TestEnvironment::seeded(2);
    let other = open(files.clone(), &stopped).await;
    let mut slow = begin(&other, Isolation::Snapshot).await;
    let path = write(&other, 1).await;
    slow.create(ObjectKind::Table, "n", "slow", path.into()).await.unwrap();
    clock.advance(HOUR);
    collect_after(&lakehouse, HOUR / 2).await.unwrap();
    assert!(!files.has(&data(1)));
    let latest = lakehouse.latest().await.unwrap().number;
    files.set_dated(false);
    let error = commit(&mut slow).await.unwrap_err();
    assert!(matches!(error, Error::Storage { retryable: true, .. }), "{error}");
    assert!(error.to_string().contains("has no date"), "{error}");
    files.set_dated(true);
    assert_eq!(lakehouse.latest().await.unwrap().number, latest, "nothing was committed");
}

/// Files that an engine wrote before the transaction began may be older than the transaction.
#[tokio::test]
async fn the_age_of_adopted_files_is_checked() {
    let (_, environment, lakehouse) = lake_with_old_files().await;
    let path = write(&lakehouse, 1).await;
    environment.advance(HOUR);
    let mut begun_before = begin(&lakehouse, Isolation::Snapshot).await;
    begun_before.adopt(vec![path.clone()], false).await.unwrap();
    begun_before.create(ObjectKind::Table, "n", "x", path.clone().into()).await.unwrap();
    collect_after(&lakehouse, HOUR / 2).await.unwrap();
    let error = commit(&mut begun_before).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    let mut begun_after = begin(&lakehouse, Isolation::Snapshot).await;
    let error = begun_after.adopt(vec![path.clone()], false).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    let young = write(&lakehouse, 2).await;
    begun_after.adopt(vec![young.clone()], false).await.unwrap();
    begun_after.create(ObjectKind::Table, "n", "x", young.into()).await.unwrap();
    commit(&mut begun_after).await.unwrap();
}

#[tokio::test]
async fn the_files_of_an_open_saved_transaction_are_retained() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let options = TransactionOptions { id: Some("etl".into()), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap();
    let path = write(&lakehouse, 1).await;
    transaction.create(ObjectKind::Table, "n", "x", path.into()).await.unwrap();
    environment.advance(HOUR);
    transaction.save().await.unwrap();
    write(&lakehouse, 2).await;
    environment.advance(HOUR);
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert!(files.has(&data(1)));
    let mut resumed = Transaction::resume(&lakehouse, "etl").await.unwrap();
    environment.advance(HOUR);
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    commit(&mut resumed).await.unwrap();
    assert!(files.has(&data(1)));
}

/// The age of a resumed transaction counts from its beginning, and not from the time of its resumption.
#[tokio::test]
async fn a_transaction_that_was_saved_too_late_has_expired() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let other = open(files.clone(), &environment).await;
    let options = TransactionOptions { id: Some("etl".into()), ..TransactionOptions::default() };
    let mut transaction = other.begin(other.latest().await.unwrap(), options).unwrap();
    let path = write(&other, 1).await;
    transaction.create(ObjectKind::Table, "n", "x", path.into()).await.unwrap();
    environment.advance(HOUR);
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert!(!files.has(&data(1)));
    transaction.save().await.unwrap();
    let error = Transaction::resume(&lakehouse, "etl").await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
}

/// A rollback to an expired version is refused, even if the handle has cached the version: its files are deleted.
#[tokio::test]
async fn a_rollback_to_a_collected_version_is_refused() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let kept = lakehouse.known().number;
    add_namespace(&lakehouse, "later").await.unwrap();
    let other = open(files.clone(), &environment).await;
    other.version(kept).await.unwrap();
    expire(&lakehouse, Some(kept + 1), false).await.unwrap();
    environment.advance(HOUR);
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    let error = other.rollback(kept, "", "").await.unwrap_err();
    assert!(matches!(error, Error::VersionExpired(_)), "{error}");
}

/// If the store's clock is set back during a collection, the collection ends, because new files would look old.
#[tokio::test]
async fn a_clock_that_is_set_back_ends_the_collection() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    write(&lakehouse, 1).await;
    environment.advance(HOUR);
    let options = Options { grace_millis: Some(0), ..Options::default() };
    let meddled = SetsBack { environment: environment.clone() };
    let error = vacuum(&lakehouse, &meddled, options, &no_progress()).await.unwrap_err();
    assert!(matches!(error, Error::StorageRefused(_)), "{error}");
    assert!(files.has(&data(1)));
}

/// Sets the clock back while the mark reads the table.
#[derive(Debug)]
struct SetsBack {
    environment: Arc<TestEnvironment>,
}

impl Contents for SetsBack {
    fn of_table(&self, bytes: Bytes, path: &str) -> Result<Vec<Link>> {
        self.environment.advance(HOUR);
        self.environment.set_now_millis(self.environment.now_millis() - 2 * 3_600_000);
        Paths.of_table(bytes, path)
    }

    fn of_file(&self, form: FileForm, bytes: &Bytes, path: &str) -> Result<Vec<Link>> {
        Paths.of_file(form, bytes, path)
    }
}

#[tokio::test]
async fn a_missing_referenced_file_ends_the_collection() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    write(&lakehouse, 1).await;
    environment.advance(HOUR);
    let version = lakehouse.latest().await.unwrap();
    let location = version.locate(ObjectKind::Table, "n", "n").await.unwrap().unwrap();
    files.delete(&location).await.unwrap();
    let error = collect_after(&lakehouse, Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::CorruptFile { .. }), "{error}");
    assert!(files.has(&data(1)), "nothing is deleted after an incomplete mark");
}

/// Versions that are committed during a mark are marked as well. Otherwise their files would be deleted as garbage.
#[tokio::test]
async fn versions_committed_during_the_mark_are_marked() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let other = open(files.clone(), &environment).await;
    let mut transaction = begin(&other, Isolation::Snapshot).await;
    let path = write(&other, 1).await;
    transaction.create(ObjectKind::Table, "n", "x", path.into()).await.unwrap();
    environment.advance(HOUR);
    let meddling = Commits(std::sync::Mutex::new(Some(transaction)));
    let options = Options { grace_millis: Some(0), ..Options::default() };
    write(&lakehouse, 2).await;
    environment.advance(HOUR);
    vacuum(&lakehouse, &meddling, options, &no_progress()).await.unwrap();
    assert!(files.has(&data(1)) && !files.has(&data(2)));
}

/// Commits a transaction while the mark reads the first table.
#[derive(Debug)]
struct Commits(std::sync::Mutex<Option<Transaction>>);

impl Contents for Commits {
    fn of_table(&self, bytes: Bytes, path: &str) -> Result<Vec<Link>> {
        if let Some(mut transaction) = self.0.lock().unwrap().take() {
            futures::executor::block_on(commit(&mut transaction)).unwrap();
        }
        Paths.of_table(bytes, path)
    }

    fn of_file(&self, form: FileForm, bytes: &Bytes, path: &str) -> Result<Vec<Link>> {
        Paths.of_file(form, bytes, path)
    }
}

#[tokio::test]
async fn a_tagged_version_retains_its_files() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let named = lakehouse.latest().await.unwrap();
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    use prost::Message as _;
    let mut definition = proto::LakehouseDef::decode(named.definition.bytes().clone()).unwrap();
    definition.exported_snapshots.insert("q3".into(), named.root_path.clone());
    let definition = LakehouseDefinition::encode(definition);
    transaction.set_lakehouse_definition(definition.bytes().clone()).unwrap();
    transaction.drop_object(ObjectKind::Table, "n", "n").await.unwrap();
    commit(&mut transaction).await.unwrap();
    add_namespace(&lakehouse, "later").await.unwrap();
    expire(&lakehouse, Some(lakehouse.known().number), false).await.unwrap();
    environment.advance(HOUR);
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert!(files.has(&data(0)));
    let fresh = open(files.clone(), &environment).await;
    assert_whole(fresh.tag("q3").await.unwrap().as_ref()).await;
}

/// If an expired version has a tag, the error of a collection asks to drop the tag. Otherwise, after a process that
/// tagged such a version has died, every collection would report a damaged lakehouse.
#[tokio::test]
async fn a_tag_on_an_expired_version_is_not_damage() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let late = lakehouse.latest().await.unwrap();
    add_namespace(&lakehouse, "later").await.unwrap();
    expire(&lakehouse, Some(late.number + 1), false).await.unwrap();
    let name = async |roots: &[&str]| {
        use prost::Message as _;
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        let mut definition = proto::LakehouseDef::decode(late.definition.bytes().clone()).unwrap();
        definition.exported_snapshots = roots.iter().map(|root| ("late".into(), root.to_string())).collect();
        let definition = LakehouseDefinition::encode(definition);
        transaction.set_lakehouse_definition(definition.bytes().clone()).unwrap();
        commit(&mut transaction).await.unwrap();
    };
    name(&[&late.root_path]).await;
    write(&lakehouse, 1).await;
    environment.advance(HOUR);
    let error = collect_after(&lakehouse, Duration::ZERO).await.unwrap_err();
    assert!(matches!(&error, Error::VersionExpired(message) if message.contains("drop the tag")), "{error}");
    assert!(files.has(&data(1)), "nothing is deleted after an incomplete mark");
    name(&[]).await;
    collect_after(&lakehouse, Duration::ZERO).await.unwrap();
    assert!(!files.has(&data(1)));
    files.delete(&lakehouse.latest().await.unwrap().root_path).await.unwrap();
    let error = vacuum(&lakehouse, &Paths, Options::default(), &no_progress()).await.unwrap_err();
    assert!(!matches!(error, Error::VersionExpired(_)), "{error}");
}

/// A report counts each file in the first layer that references it, so that it shows which files an expiry would free.
/// Otherwise files that only older versions reference would be reported as garbage or as files of the latest version.
#[tokio::test]
async fn files_are_counted_once_in_the_first_layer() {
    let (_, environment, lakehouse) = lake_with_old_files().await;
    write(&lakehouse, 1).await;
    environment.advance(48 * HOUR);
    let before = lakehouse.latest().await.unwrap().number;
    let path = write(&lakehouse, 2).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.replace(ObjectKind::Table, "n", "n", Bytes::from(path)).await.unwrap();
    commit(&mut transaction).await.unwrap();
    write(&lakehouse, 3).await;
    for (expiring_before, old) in [(0, Held::History), (before, Held::History), (before + 1, Held::Expiring)] {
        let found = usage(&lakehouse, &Paths, expiring_before, 100, &no_progress()).await.unwrap();
        let folder = &found.by_folder["n/t-01234567"];
        assert_eq!(folder.name, Some(("n".to_string(), "n".to_string())));
        let data: Vec<(Held, u64)> = folder
            .by_kind
            .iter()
            .map(|((held, kind), count)| (*held, count.files * u64::from(*kind == Kind::Data)))
            .collect();
        let expected = [(Held::Latest, 1), (old, 1), (Held::Garbage, 1), (Held::Young, 1)];
        assert_eq!(data, expected, "versions below {expiring_before} expire");
        assert_eq!(folder.small.files, 1, "only files of the latest version count");
        assert_eq!(found.unknown.files + found.foreign.files, 0);
    }
    let found = usage(&lakehouse, &Paths, 0, 1, &no_progress()).await.unwrap();
    assert_eq!(found.by_folder["n/t-01234567"].small.files, 0);
    let report = collect_after(&lakehouse, HOUR).await.unwrap();
    assert_eq!(report.deleted[&Kind::Data].files, 1, "a vacuum agrees on what is garbage");
}

/// A file that is committed after the machines of a distributed collection have classified it is not deleted.
#[tokio::test]
async fn a_distributed_collection_retains_files_committed_after_its_mark() {
    let (files, environment, lakehouse) = lake_with_old_files().await;
    let with_file = async |number: u64, name: &str| {
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        let path = write(&lakehouse, number).await;
        transaction.create(ObjectKind::Table, "n", name, Bytes::from(path)).await.unwrap();
        transaction
    };
    let mut slow = with_file(1, "slow").await;
    let mut too_slow = with_file(2, "too_slow").await;
    environment.advance(HOUR);
    let options = Options { grace_millis: Some(1000), ..Options::default() };
    let mut shared = DistributedGc::begin(&lakehouse, options).await.unwrap();
    commit(&mut slow).await.unwrap();

    let (version, fresh) = shared.fence(&Paths, true).await.unwrap();
    let storage = lakehouse.storage().as_ref();
    assert_eq!(delete(storage, vec![data(1), data(2)], &fresh).await.unwrap(), 1);
    assert!(files.has(&data(1)) && !files.has(&data(2)));
    let fence = lakehouse.latest().await.unwrap();
    assert_eq!((fence.number, fence.metadata.gc_before_millis), (version, Some(shared.before_millis)));
    let error = commit(&mut too_slow).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");

    commit(&mut with_file(3, "later").await).await.unwrap();
    let (again, fresh) = shared.fence(&Paths, false).await.unwrap();
    assert_eq!(again, version, "the fence is published once");
    assert_eq!(delete(storage, vec![data(3)], &fresh).await.unwrap(), 0);
    assert!(files.has(&data(3)));
    assert_whole(&lakehouse.latest().await.unwrap()).await;
}

/// References a file of an earlier type.
#[derive(Debug)]
struct Backwards;

impl Contents for Backwards {
    fn of_table(&self, bytes: Bytes, path: &str) -> Result<Vec<Link>> {
        Paths.of_table(bytes, path)
    }

    fn of_file(&self, _: FileForm, _: &Bytes, _: &str) -> Result<Vec<Link>> {
        Ok(vec![Link::File { path: "n/metadata.json".into(), form: FileForm::Metadata }])
    }
}

/// A reference to a file of an earlier type is an error: types are read in order, so the file would be skipped.
#[tokio::test]
async fn a_reference_to_an_earlier_kind_ends_a_distributed_collection() {
    let (_, _, lakehouse) = lake_with_old_files().await;
    let named = vec![(Sort::ManifestList, write(&lakehouse, 1).await)];
    let error = links(lakehouse.storage().as_ref(), &Backwards, named).await.unwrap_err();
    assert!(matches!(&error, Error::CorruptFile { path, .. } if path == "n/metadata.json"), "{error}");
}

//! Expiry of versions, and processes that have not observed it.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::Environment;
use crate::environment::testing::{START_MILLIS, TestEnvironment};
use crate::error::Error;
use crate::expiry::expire;
use crate::file_names::{LATEST_HINT_PATH, boundary_path, root_path, root_version};
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
use crate::storage::Storage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, assert_whole, begin, commit, create, names, new_lakehouse, open, text,
};
use crate::transaction::{Files, Isolation};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn grow(lakehouse: &Arc<Lakehouse>, commits: u64) {
    let from = lakehouse.latest().await.unwrap().number;
    for i in from..from + commits {
        add_namespace(lakehouse, &format!("n{i}")).await.unwrap();
    }
}

fn roots(files: &MemoryFiles) -> Vec<u64> {
    let mut roots: Vec<u64> = files.paths().iter().filter_map(|path| root_version(path)).collect();
    roots.sort_unstable();
    roots
}

#[tokio::test]
async fn only_expired_versions_are_deleted() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    grow(&lakehouse, 10).await;
    assert_eq!(expire(&lakehouse, Some(4), true).await.unwrap(), [0, 1, 2, 3]);
    assert_eq!(roots(&files).len(), 11, "a dry run deletes nothing");
    assert_eq!(expire(&lakehouse, Some(4), false).await.unwrap(), [0, 1, 2, 3]);
    assert_eq!(roots(&files), (4..=10).collect::<Vec<_>>());
    assert_eq!(expire(&lakehouse, Some(7), false).await.unwrap(), [4, 5, 6]);
    assert_eq!(expire(&lakehouse, Some(5), false).await.unwrap(), Vec::<u64>::new(), "the boundary never falls");
    assert!(files.has(&boundary_path(7)) && !files.has(&boundary_path(4)));

    let fresh = open(files, &environment).await;
    for expired in 0..7 {
        assert!(matches!(fresh.version(expired).await, Err(Error::VersionExpired(_))), "version {expired}");
    }
    for kept in 7..=10 {
        let version = fresh.version(kept).await.unwrap();
        assert_eq!(names(&version).await.len() as u64, kept);
        assert_whole(&version).await;
    }
    let log: Vec<u64> = fresh.log(1000, None).await.unwrap().iter().map(|version| version.number).collect();
    assert_eq!(log, [10, 9, 8, 7]);
    let error = fresh.version_at(START_MILLIS as i64).await.unwrap_err();
    assert!(matches!(error, Error::VersionExpired(_)), "{error}");
}

#[tokio::test]
async fn the_latest_version_never_expires() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    grow(&lakehouse, 3).await;
    assert!(matches!(expire(&lakehouse, Some(4), false).await, Err(Error::InvalidArgument(_))));
    assert_eq!(expire(&lakehouse, Some(3), false).await.unwrap(), [0, 1, 2]);
    assert_eq!(open(files, &environment).await.known().number, 3);
}

async fn lake_with(
    files: Arc<MemoryFiles>,
    environment: &Arc<TestEnvironment>,
    settings: proto::LakehouseDef,
) -> Arc<Lakehouse> {
    let definition = LakehouseDefinition::encode(settings);
    Lakehouse::create(files, environment.clone(), definition, None).await.unwrap()
}

#[tokio::test]
async fn retention_keeps_young_versions_and_the_newest_ones() {
    let environment = TestEnvironment::seeded(1);
    let settings = proto::LakehouseDef { minimum_versions_to_keep: 4, ..Default::default() };
    let lakehouse = lake_with(MemoryFiles::dated(environment.clone()), &environment, settings).await;
    for i in 0..9 {
        environment.advance(DAY);
        add_namespace(&lakehouse, &format!("n{i}")).await.unwrap();
    }
    // Versions 0 to 9 are 9 to 0 days old; seven days are retained by default.
    assert_eq!(expire(&lakehouse, None, false).await.unwrap(), [0, 1]);
    environment.advance(30 * DAY);
    assert_eq!(expire(&lakehouse, None, false).await.unwrap(), [2, 3, 4, 5]);
    assert!(expire(&lakehouse, None, false).await.unwrap().is_empty());
}

/// Expiry measures the age of versions by the store's clock only. Otherwise a host whose clock is eight days ahead
/// would delete versions that are minutes old, and a host whose clock is eight days behind would never delete a
/// version.
#[tokio::test]
async fn expiry_ignores_the_clocks_of_hosts() {
    const EIGHT_DAYS_MILLIS: u64 = 8 * DAY.as_millis() as u64;
    let clocks = [START_MILLIS, START_MILLIS + EIGHT_DAYS_MILLIS, START_MILLIS - EIGHT_DAYS_MILLIS];
    for (of_writer, of_sweeper) in clocks.iter().flat_map(|writer| clocks.map(|sweeper| (*writer, sweeper))) {
        let (store, writer, sweeper) =
            (TestEnvironment::seeded(1), TestEnvironment::seeded(2), TestEnvironment::seeded(3));
        writer.set_now_millis(of_writer);
        sweeper.set_now_millis(of_sweeper);
        let files = MemoryFiles::dated(store.clone());
        let lakehouse = lake_with(files.clone(), &writer, proto::LakehouseDef::default()).await;
        grow(&lakehouse, 9).await;
        store.advance(Duration::from_secs(60));
        let sweeping = open(files.clone(), &sweeper).await;
        assert!(expire(&sweeping, None, false).await.unwrap().is_empty(), "the versions are a minute old");
        store.advance(7 * DAY);
        assert_eq!(expire(&sweeping, None, true).await.unwrap(), (0..=6).collect::<Vec<_>>());
        assert_eq!(expire(&sweeping, None, false).await.unwrap(), (0..=6).collect::<Vec<_>>());
        assert!(files.paths().iter().all(|path| !path.starts_with("_probe/")), "a probe file was left");
    }
}

#[tokio::test]
async fn an_override_keeps_its_version_and_those_after_it() {
    let environment = TestEnvironment::seeded(1);
    let settings = proto::LakehouseDef {
        maximum_version_age_millis_overrides: [(3, 100 * DAY.as_millis() as u64), (1, 1000)].into(),
        ..Default::default()
    };
    let lakehouse = lake_with(MemoryFiles::dated(environment.clone()), &environment, settings).await;
    grow(&lakehouse, 9).await;
    environment.advance(30 * DAY);
    assert_eq!(expire(&lakehouse, None, false).await.unwrap(), [0, 1, 2]);
    environment.advance(100 * DAY);
    assert_eq!(expire(&lakehouse, None, false).await.unwrap(), [3, 4, 5, 6]);
}

#[tokio::test]
async fn the_root_of_a_tagged_version_is_retained() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let settings =
        proto::LakehouseDef { exported_snapshots: [("s".into(), root_path(2))].into(), ..Default::default() };
    let lakehouse = lake_with(files.clone(), &environment, settings).await;
    grow(&lakehouse, 5).await;
    assert_eq!(expire(&lakehouse, Some(4), false).await.unwrap(), [0, 1, 3]);
    assert_eq!(roots(&files), [2, 4, 5]);
    // A stale hint must not make the retained root the latest version.
    files.overwrite(LATEST_HINT_PATH, "2");
    assert_eq!(open(files, &environment).await.known().number, 5);
}

/// A missing file of a tagged version is damage, although the version is below the boundary. Otherwise a fault that
/// deletes files of tagged versions would look like an expiry.
#[tokio::test]
async fn a_missing_file_is_damage_only_if_its_version_is_retained() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let settings =
        proto::LakehouseDef { exported_snapshots: [("s".into(), root_path(2))].into(), ..Default::default() };
    let lakehouse = lake_with(files.clone(), &environment, settings).await;
    grow(&lakehouse, 5).await;
    let mut missed = Vec::new();
    for number in [1, 2, 5] {
        let version = lakehouse.version(number).await.unwrap();
        missed.push((version.locate(ObjectKind::Namespace, "n0", "").await.unwrap().unwrap(), version));
    }
    expire(&lakehouse, Some(4), false).await.unwrap();
    files.delete(&missed[0].0).await.unwrap();
    for (location, version) in missed {
        let error = version.read_definition(&location).await.unwrap_err();
        match version.number {
            1 => assert!(matches!(error, Error::VersionExpired(_)), "{error}"),
            number => assert!(matches!(error, Error::CorruptFile { .. }), "version {number}: {error}"),
        }
    }
}

/// An expiry also deletes roots below the boundary that an interrupted expiry has left. Otherwise such roots would stay
/// forever, because the next expiry begins at the boundary.
#[tokio::test]
async fn mode_22_the_next_expiry_completes_an_interrupted_one() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    grow(&lakehouse, 10).await;
    let fault = Fault::new(Trigger::on(Verb::Delete, 2), Action::DieBefore);
    let faulty = Arc::new(FaultyStorage::new(files.clone(), [fault]));
    let dying = open(faulty.clone(), &environment).await;
    expire(&dying, Some(6), false).await.unwrap_err();
    assert_eq!(faulty.unfired(), []);
    assert!(roots(&files).iter().any(|root| *root < 6), "the crash came too late");
    expire(&lakehouse, Some(7), false).await.unwrap();
    assert_eq!(roots(&files), [7, 8, 9, 10]);
}

/// A suspended writer does not report a commit with an expired version number. Otherwise a writer that was suspended
/// before it created version 2 could create it after others have committed version 10 and expired all lower versions,
/// and would report success for a commit that no reader sees.
#[tokio::test]
async fn mode_4_stalled_writer_that_creates_an_expired_root_is_void() {
    let (files, _, awake) = new_lakehouse().await;
    grow(&awake, 1).await;
    // The clock of this handle does not advance, so its last observation seems recent.
    let asleep = open(files.clone(), &TestEnvironment::seeded(2)).await;
    asleep.latest().await.unwrap();
    let mut stalled = begin(&asleep, Isolation::Snapshot).await;
    stalled.create(ObjectKind::Namespace, "late", "", text("late")).await.unwrap();
    grow(&awake, 9).await;
    expire(&awake, Some(10), false).await.unwrap();

    let error = commit(&mut stalled).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    assert_eq!(roots(&files), [10], "the void root is still there");
    assert!(!names(&awake.latest().await.unwrap()).await.contains(&"namespace late".to_string()));

    // The suspended process resumes.
    assert_eq!(asleep.latest().await.unwrap().number, 10);
    assert_eq!(add_namespace(&asleep, "late").await.unwrap(), 11);
}

/// Both answers of a search, for the next root and for the root after it, have to be recent. Otherwise a machine that
/// is suspended between the two answers could use a void root: while it is suspended, these versions are committed and
/// expire, and a late writer creates the next root again.
#[tokio::test]
async fn a_root_that_is_read_after_a_suspension_is_not_the_next_version() {
    let store_clock = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(store_clock.clone());
    let awake = create(files.clone(), &store_clock).await;
    let intruder = Intruder::at_reading_root(&files);
    let asleep = open(intruder.clone(), &TestEnvironment::seeded(2)).await;
    assert_eq!(asleep.latest().await.unwrap().number, 0);
    let writer = awake.clone();
    intruder.add({
        let (files, store_clock) = (files.clone(), store_clock.clone());
        let meanwhile = async move {
            grow(&writer, 1).await;
            let late = files.get(&root_path(1)).await.unwrap();
            store_clock.advance(Duration::from_secs(60));
            grow(&writer, 4).await;
            expire(&writer, Some(5), false).await.unwrap();
            files.overwrite(&root_path(1), late);
        };
        // The work runs in its own task, so that the dates of its answers do not count for the requests of the
        // suspended machine.
        move || async move { tokio::spawn(meanwhile).await.unwrap() }
    });
    assert_eq!(asleep.latest().await.unwrap().number, awake.known().number);
    assert_eq!(intruder.waiting(), 0);
}

/// A rollback that is suspended until its version number has expired fails.
#[tokio::test]
async fn mode_4_rollback_by_a_stalled_handle_is_void() {
    let (files, _, awake) = new_lakehouse().await;
    // This handle is suspended just before it creates the root.
    let intruder = Intruder::new(&files);
    let asleep = open(intruder.clone(), &TestEnvironment::seeded(2)).await;
    asleep.latest().await.unwrap();
    intruder.add(move || async move {
        grow(&awake, 9).await;
        expire(&awake, Some(8), false).await.unwrap();
    });
    let error = asleep.rollback(0, "", "").await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    assert_eq!(roots(&files), [8, 9]);
}

/// A rollback to an expired version is refused before it writes a file, even if the handle has cached the version:
/// files that only this version references may have been deleted.
#[tokio::test]
async fn a_rollback_to_a_version_that_has_expired_is_refused() {
    let (files, _, awake) = new_lakehouse().await;
    let asleep = open(files.clone(), &TestEnvironment::seeded(2)).await;
    asleep.latest().await.unwrap();
    grow(&awake, 9).await;
    expire(&awake, Some(8), false).await.unwrap();
    let error = asleep.rollback(0, "", "").await.unwrap_err();
    // The handle checks before the first write whether the target has expired.
    assert!(matches!(error, Error::VersionExpired(_)), "{error}");
    assert_eq!(roots(&files), [8, 9]);
}

/// No root is created below the boundary. Otherwise, if others commit versions and expire all but the last one while a
/// transaction is open, the transaction would create an expired root again, and its outcome would stay unknown.
#[tokio::test]
async fn a_transaction_on_an_expired_version_creates_no_root() {
    let (files, environment, awake) = new_lakehouse().await;
    grow(&awake, 1).await;
    let root = Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(2)), Action::Delay(Duration::ZERO));
    let watched = Arc::new(FaultyStorage::new(files.clone(), [root]));
    let overtaken = open(watched.clone(), &environment).await;
    overtaken.latest().await.unwrap();
    let mut late = begin(&overtaken, Isolation::Snapshot).await;
    late.create(ObjectKind::Namespace, "late", "", text("late")).await.unwrap();
    grow(&awake, 4).await;
    expire(&awake, Some(5), false).await.unwrap();

    let error = commit(&mut late).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    assert!(matches!(late.files(), Files::Unreachable(_)), "nothing was committed");
    assert_eq!(watched.unfired().len(), 1, "a root was sent");
    assert_eq!(roots(&files), [5]);
    late.rollback().await.unwrap();
    assert_eq!(add_namespace(&overtaken, "late").await.unwrap(), 6);
}

/// A handle notices that its version has expired. Otherwise it would read tables without the rows of later
/// transactions, and create a root with an expired number.
#[tokio::test]
async fn a_handle_finds_the_latest_version_after_an_expiry() {
    let (files, environment, writer) = new_lakehouse().await;
    grow(&writer, 1).await;
    for has_just_looked in [false, true] {
        let handle = open(files.clone(), &environment).await;
        if has_just_looked {
            handle.latest().await.unwrap();
        }
        grow(&writer, 4).await;
        let latest = writer.known().number;
        expire(&writer, Some(latest), false).await.unwrap();
        assert_eq!(handle.latest().await.unwrap().number, latest);
        assert_eq!(add_namespace(&handle, &format!("n{latest}")).await.unwrap(), latest + 1);
        assert_eq!(roots(&files), [latest, latest + 1]);
        writer.latest().await.unwrap();
    }
}

/// After a slow answer that the next root does not exist, the handle reads the boundary again. Otherwise, if versions
/// were committed and expired during the request, the handle would use its old version as the latest one.
#[tokio::test(start_paused = true)]
async fn a_slow_negative_answer_does_not_hide_an_expiry() {
    let (files, environment, writer) = new_lakehouse().await;
    grow(&writer, 1).await;
    let held_up = Trigger::on(Verb::Get, 0).path(&root_path(2));
    let delay = Fault::new(held_up, Action::Delay(Duration::from_millis(2000)));
    let faulty = Arc::new(FaultyStorage::new(files, [delay]));
    let handle = open(faulty.clone(), &environment).await;
    let expiry = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        grow(&writer, 9).await;
        expire(&writer, Some(10), false).await
    };
    let (found, expired) = futures::future::join(handle.latest(), expiry).await;
    assert_eq!(faulty.unfired(), []);
    assert_eq!(expired.unwrap().len(), 10);
    assert_eq!(found.unwrap().number, 10);
}

/// If the conflict check of a transaction needs versions that have expired, the transaction has expired.
#[tokio::test]
async fn a_transaction_whose_conflict_check_needs_expired_versions_has_expired() {
    let (files, environment, awake) = new_lakehouse().await;
    let asleep = open(files.clone(), &environment).await;
    let mut stalled = begin(&asleep, Isolation::Snapshot).await;
    stalled.create(ObjectKind::Namespace, "late", "", text("late")).await.unwrap();
    grow(&awake, 9).await;
    expire(&awake, Some(8), false).await.unwrap();
    asleep.version(9).await.unwrap();
    environment.advance(Duration::from_secs(60));
    assert_eq!(asleep.latest().await.unwrap().number, 9);
    let error = commit(&mut stalled).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    assert_eq!(roots(&files), [8, 9]);
}

/// A handle on an expired version finds the latest version within seconds. Otherwise a reader that knows version 0
/// would keep using it after all versions below 10 have expired, because version 1 does not exist.
#[tokio::test]
async fn a_handle_on_an_expired_version_finds_the_latest_within_seconds() {
    let (files, environment, writer) = new_lakehouse().await;
    let reader = open(files.clone(), &environment).await;
    grow(&writer, 10).await;
    expire(&writer, Some(10), false).await.unwrap();
    let start = environment.elapsed_millis();
    while reader.latest().await.unwrap().number < 10 {
        environment.advance(Duration::from_secs(1));
        assert!(environment.elapsed_millis() - start < 15_000, "the reader still uses the expired version");
    }
}

/// A search with a stale hint finds the latest version, even if all older versions expire between its read of the
/// boundary and its read of the next root.
#[tokio::test(start_paused = true)]
async fn discovery_is_correct_during_an_expiry() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    grow(&lakehouse, 15).await;
    files.overwrite(LATEST_HINT_PATH, "5");
    let held_up = Trigger::on(Verb::Head, 0).path(&root_path(6));
    let delay = Fault::new(held_up, Action::Delay(Duration::from_millis(100)));
    let faulty = Arc::new(FaultyStorage::new(files, [delay]));
    let expiry = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        expire(&lakehouse, Some(15), false).await
    };
    let (found, expired) =
        futures::future::join(Lakehouse::open(faulty.clone(), environment.clone(), None), expiry).await;
    assert_eq!(faulty.unfired(), []);
    assert_eq!(expired.unwrap().len(), 15);
    assert_eq!(found.unwrap().known().number, 15);
}

/// A missing node is reported as damage only if its version has certainly not expired. If the store cannot answer
/// whether it has, the error is that of the store.
#[tokio::test]
async fn a_failure_to_read_the_boundary_is_reported_as_such() {
    let (files, environment, awake) = new_lakehouse().await;
    let faulty = Arc::new(FaultyStorage::new(files.clone(), []));
    let asleep = open(faulty.clone(), &environment).await.latest().await.unwrap();
    let missed = || Err::<(), _>(Error::corrupt("node", "the file is missing"));
    let error_of = async || asleep.unless_expired(missed()).await.unwrap_err();
    assert!(matches!(error_of().await, Error::CorruptFile { .. }), "its version is kept");
    grow(&awake, 3).await;
    expire(&awake, Some(2), false).await.unwrap();
    for action in [Action::BreakBefore, Action::Deny] {
        faulty.add(Fault::new(Trigger::on(Verb::List, 0).path("_expired/"), action));
        let error = error_of().await;
        assert!(matches!(error, Error::Storage { .. } | Error::PermissionDenied(_)), "{error}");
        assert_eq!(faulty.unfired(), []);
    }
    assert!(matches!(error_of().await, Error::VersionExpired(_)));
}

//! Expiry of versions, and processes that did not notice it.

use std::sync::Arc;
use std::time::Duration;

use crate::definition::{LakehouseDefinition, proto};
use crate::environment::Environment;
use crate::environment::testing::{START_MILLIS, TestEnvironment};
use crate::error::Error;
use crate::expiry::expire;
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::path::{LATEST_HINT_PATH, boundary_path, root_path, root_version};
use crate::storage::Storage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, assert_whole, begin, commit, create, names, open, text,
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
async fn expired_versions_are_gone_and_the_others_stay() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files.clone(), &environment).await;
    grow(&lakehouse, 10).await;
    assert_eq!(expire(&lakehouse, Some(4), true).await.unwrap(), [0, 1, 2, 3]);
    assert_eq!(roots(&files).len(), 11, "a dry run deletes nothing");
    assert_eq!(expire(&lakehouse, Some(4), false).await.unwrap(), [0, 1, 2, 3]);
    assert_eq!(roots(&files), (4..=10).collect::<Vec<_>>());
    assert_eq!(expire(&lakehouse, Some(7), false).await.unwrap(), [4, 5, 6]);
    assert_eq!(
        expire(&lakehouse, Some(5), false).await.unwrap(),
        Vec::<u64>::new(),
        "the boundary never falls"
    );
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
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files.clone(), &environment).await;
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
async fn retention_keeps_what_is_young_or_among_the_last() {
    let environment = TestEnvironment::seeded(1);
    let settings = proto::LakehouseDef { minimum_versions_to_keep: 4, ..Default::default() };
    let lakehouse = lake_with(MemoryFiles::dated(environment.clone()), &environment, settings).await;
    for i in 0..9 {
        environment.advance(DAY);
        add_namespace(&lakehouse, &format!("n{i}")).await.unwrap();
    }
    // Versions 0 to 9 are 9 to 0 days old; seven days are kept by default.
    assert_eq!(expire(&lakehouse, None, false).await.unwrap(), [0, 1]);
    environment.advance(30 * DAY);
    assert_eq!(expire(&lakehouse, None, false).await.unwrap(), [2, 3, 4, 5]);
    assert!(expire(&lakehouse, None, false).await.unwrap().is_empty());
}

/// The host that swept was eight days ahead, and deleted versions that were minutes old; or it had written them while
/// its clock was eight days behind. Others that were eight days behind never deleted anything.
#[tokio::test]
async fn no_clock_of_a_host_says_what_is_old() {
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
        assert!(expire(&sweeping, None, false).await.unwrap().is_empty(), "they are a minute old");
        store.advance(7 * DAY);
        assert_eq!(expire(&sweeping, None, true).await.unwrap(), (0..=6).collect::<Vec<_>>());
        assert_eq!(expire(&sweeping, None, false).await.unwrap(), (0..=6).collect::<Vec<_>>());
        assert!(files.paths().iter().all(|path| !path.starts_with("_probe/")), "nothing is left behind");
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
async fn the_root_of_an_exported_snapshot_is_kept() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let settings =
        proto::LakehouseDef { exported_snapshots: [("s".into(), root_path(2))].into(), ..Default::default() };
    let lakehouse = lake_with(files.clone(), &environment, settings).await;
    grow(&lakehouse, 5).await;
    assert_eq!(expire(&lakehouse, Some(4), false).await.unwrap(), [0, 1, 3]);
    assert_eq!(roots(&files), [2, 4, 5]);
    // A hint that old must not make the kept root the latest version.
    files.overwrite(LATEST_HINT_PATH, "2");
    assert_eq!(open(files, &environment).await.known().number, 5);
}

/// A file was missing, and the error said that the version had expired: a tagged version, which lies
/// below the boundary, that is a loss. A collection that destroys named versions looked like an expiry.
#[tokio::test]
async fn what_a_kept_version_misses_is_damage_and_what_an_expired_one_misses_is_not() {
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

/// Mode 22: the collector died between two deletions. What it left would have stayed for ever, since the
/// next one began at the boundary.
#[tokio::test]
async fn mode_22_what_an_interrupted_expiry_left_goes_with_the_next() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files.clone(), &environment).await;
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

/// A writer planned version 2, and its machine slept. Others committed up to 10 and expired what was
/// below; the name was free again. The writer woke, created version 2, got "created", and answered
/// its user that all is well. The known data loss of logs on object stores.
#[tokio::test]
async fn mode_4_stalled_writer_that_creates_an_expired_root_is_void() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let awake = create(files.clone(), &environment).await;
    grow(&awake, 1).await;
    // Its clock stands still: it believes that it has just looked.
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

    // The sleeper is awake now.
    assert_eq!(asleep.latest().await.unwrap().number, 10);
    assert_eq!(add_namespace(&asleep, "late").await.unwrap(), 11);
}

/// A virtual machine asked for the next root and whether there is one after it. It heard that there is none after it, and
/// stood still with its clocks for a minute. Others committed and made all of that expire, and a writer that had slept as
/// well created the next root again. The machine got that root as its second answer. It went by the date of
/// the first one, and a transaction began on a version that never counted.
#[tokio::test]
async fn a_root_that_is_read_after_a_standstill_is_no_next_version() {
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
        // What others hear is not what this machine hears.
        move || async move { tokio::spawn(meanwhile).await.unwrap() }
    });
    assert_eq!(asleep.latest().await.unwrap().number, awake.known().number);
    assert_eq!(intruder.waiting(), 0);
}

/// The same for a rollback, which also depends on all that was committed meanwhile.
#[tokio::test]
async fn mode_4_rollback_by_a_stalled_handle_is_void() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let awake = create(files.clone(), &environment).await;
    // It stalls right before it creates the root.
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

/// The handle remembers a version that has expired since. What only that one reached may have been collected, so a
/// rollback to it is refused, and nothing is sent.
#[tokio::test]
async fn a_rollback_to_a_version_that_has_expired_is_refused() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let awake = create(files.clone(), &environment).await;
    let asleep = open(files.clone(), &TestEnvironment::seeded(2)).await;
    asleep.latest().await.unwrap();
    grow(&awake, 9).await;
    expire(&awake, Some(8), false).await.unwrap();
    let error = asleep.rollback(0, "", "").await.unwrap_err();
    // It asks whether what it goes back to is still kept, before it writes anything.
    assert!(matches!(error, Error::VersionExpired(_)), "{error}");
    assert_eq!(roots(&files), [8, 9]);
}

/// A transaction was open while others committed four versions and expired all but the last. It created the root of
/// version 2 again, below the boundary, and whether it was committed stayed unknown.
#[tokio::test]
async fn a_transaction_that_expiry_overtook_sends_no_root() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let awake = create(files.clone(), &environment).await;
    grow(&awake, 1).await;
    let root =
        Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(2)), Action::Delay(Duration::ZERO));
    let watched = Arc::new(FaultyStorage::new(files.clone(), [root]));
    let overtaken = open(watched.clone(), &environment).await;
    overtaken.latest().await.unwrap();
    let mut late = begin(&overtaken, Isolation::Snapshot).await;
    late.create(ObjectKind::Namespace, "late", "", text("late")).await.unwrap();
    grow(&awake, 4).await;
    expire(&awake, Some(5), false).await.unwrap();

    let error = commit(&mut late).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    assert!(matches!(late.files(), Files::Unreachable(_)), "it is certain that nothing was committed");
    assert_eq!(watched.unfired().len(), 1, "a root was sent");
    assert_eq!(roots(&files), [5]);
    late.rollback().await.unwrap();
    assert_eq!(add_namespace(&overtaken, "late").await.unwrap(), 6);
}

/// A handle that was opened at version 1 stayed there after others had expired it, read tables without the rows of four
/// commits that had been acknowledged, and wrote a root whose number had expired.
#[tokio::test]
async fn a_handle_finds_the_latest_as_soon_as_an_expiry_is_over() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let writer = create(files.clone(), &environment).await;
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

/// "Is there a version 2?" — "No", said the store after two seconds, in which versions 2 to 10 had expired. What the
/// handle knew of the boundary was good for one second, and it took the answer for the latest version.
#[tokio::test(start_paused = true)]
async fn a_slow_no_says_nothing_about_what_has_expired_meanwhile() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let writer = create(files.clone(), &environment).await;
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

/// A transaction that finds some of the versions it has to be held against expired.
#[tokio::test]
async fn a_transaction_that_missed_expired_versions_has_expired() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let awake = create(files.clone(), &environment).await;
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

/// A reader knew version 1; others expired everything below 10. "Is there a version 2?" — "No." So it
/// went on with version 1 for a week, until that was old enough to be doubted.
#[tokio::test]
async fn a_handle_that_was_overtaken_by_expiry_finds_the_latest_within_seconds() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let writer = create(files.clone(), &environment).await;
    let reader = open(files.clone(), &environment).await;
    grow(&writer, 10).await;
    expire(&writer, Some(10), false).await.unwrap();
    let start = environment.elapsed_millis();
    while reader.latest().await.unwrap().number < 10 {
        environment.advance(Duration::from_secs(1));
        assert!(environment.elapsed_millis() - start < 15_000, "still at the expired version");
    }
}

/// The hint is old; between the question for the boundary and that for the next root, all of it expires.
#[tokio::test(start_paused = true)]
async fn a_quick_look_is_not_misled_by_an_expiry_that_comes_in_between() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files.clone(), &environment).await;
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

/// A node was missing, and the store failed when it was asked whether the version had expired: the error said that
/// the lakehouse is damaged, and a commit that had only come late ended as if it were. (Found by the simulation, seed
/// 5259.)
#[tokio::test]
async fn who_cannot_ask_whether_a_version_has_expired_is_told_that() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let awake = create(files.clone(), &environment).await;
    let faulty = Arc::new(FaultyStorage::new(files.clone(), []));
    let asleep = open(faulty.clone(), &environment).await.latest().await.unwrap();
    let missed = || Err::<(), _>(Error::corrupt("node", "it is not there"));
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

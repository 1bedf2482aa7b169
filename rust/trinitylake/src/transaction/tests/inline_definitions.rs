//! Definitions inside a root, whose files may not exist yet.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, ready};
use tokio::time::Instant;
use uuid::Uuid;

use crate::environment::testing::TestEnvironment;
use crate::environment::{Environment, SystemEnvironment, Task};
use crate::file_names::definition_id;
use crate::fsck::{Finding, Fsck, Kind, Scope};
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::storage::latency::{Latency, LatencyStorage};
use crate::storage::{CountingStorage, Storage};
use crate::tests::fixture::{MemoryFiles, add_namespace, add_table, begin, commit, contents, create, open, text};
use crate::transaction::{Isolation, TransactionOptions};
use crate::version::Version;

/// A remote store that denies the creation of files with `denied` in their paths.
async fn lake_without(denied: &str) -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<Lakehouse>) {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(environment.clone());
    create(files.clone(), &environment).await;
    let never = |nth| Fault::new(Trigger::on(Verb::PutIfAbsent, nth).path(denied), Action::Deny);
    let faulty = Arc::new(FaultyStorage::new(files.clone(), (0..8).map(never)));
    (files, environment.clone(), open(faulty, &environment).await)
}

async fn findings(files: &Arc<MemoryFiles>) -> Vec<Finding> {
    let mut fsck = Fsck::begin(files.clone(), Scope::All, false).await.unwrap();
    let mut findings = Vec::new();
    while let Some(step) = fsck.next().await.unwrap() {
        findings.extend(step.findings);
    }
    // The definitions of these tests are not decodable.
    findings.retain(|finding| matches!(finding.kind, Kind::Missing | Kind::Broken));
    findings
}

fn has_definition_of(files: &MemoryFiles, name: &str) -> bool {
    files.paths().iter().any(|path| definition_id(path).is_some() && path.contains(&format!("-{name}-")))
}

/// Checks that everything that a version references can be read, also by a handle that only has its root.
async fn assert_readable(version: &Version) {
    for (key, location) in contents(version).await {
        let name = version.config.names.decode(&key).unwrap();
        let last = if name.name.is_empty() { &name.namespace } else { &name.name };
        assert_eq!(version.read_definition(&location).await.unwrap(), text(last), "{name}");
    }
}

/// A commit with one small definition takes one round, because it writes the definition and the root at the same time.
#[tokio::test(start_paused = true)]
async fn a_small_definition_is_written_concurrently_with_its_root() {
    let memory = MemoryFiles::remote(TestEnvironment::seeded(1));
    create(memory.clone(), &TestEnvironment::seeded(1)).await;
    let slow = Arc::new(LatencyStorage::new(memory.clone(), Latency::S3_STANDARD));
    let counting = Arc::new(CountingStorage::new(slow));
    let lakehouse = Lakehouse::open(counting.clone(), SystemEnvironment::shared(), None).await.unwrap();
    let large = text(&"x".repeat(3000));
    for (name, definition, most_rounds) in [("a", text("a"), 1.1), ("b", large, 2.1)] {
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        let (before, start) = (counting.counters(), Instant::now());
        transaction.create(Namespace, name, "", definition).await.unwrap();
        commit(&mut transaction).await.unwrap();
        let rounds = start.elapsed().as_secs_f64() / Latency::S3_STANDARD.write.as_secs_f64();
        // On a store without dates, the read of the boundary adds a third of a round.
        assert!(rounds < most_rounds + 0.4, "{name}: {rounds} rounds");
        assert_eq!(counting.counters().since(&before).put_if_absent, 2, "{name}");
        let held = &lakehouse.known().metadata.inline_definitions;
        assert_eq!(held.len(), usize::from(name == "a"), "a large definition is not in the root");
        assert!(has_definition_of(&memory, name));
    }
}

/// A definition that is written before the root, because the transaction waits for another file anyway, is copied into
/// the root: a reader needs no request for it, and the next root does not repeat it. Its file has to exist all the same.
#[tokio::test]
async fn a_definition_that_is_written_first_is_copied_into_its_root() {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(environment.clone());
    create(files.clone(), &environment).await;
    let lakehouse = open(files.clone(), &environment).await;
    for name in ["a", "b"] {
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        transaction.pending().put(&format!("data/{name}"), text(name)).await.unwrap();
        transaction.create(Namespace, name, "", text(name)).await.unwrap();
        commit(&mut transaction).await.unwrap();
        let metadata = &lakehouse.known().metadata;
        assert!(metadata.inline_definitions.is_empty());
        let copied: Vec<_> = metadata.copied_definitions.keys().cloned().collect();
        assert!(copied.len() == 1 && copied[0].contains(&format!("-{name}-")), "{copied:?}");
        files.delete(&copied[0]).await.unwrap();
    }
    let read = open(files.clone(), &environment).await.latest().await.unwrap().read(Namespace, "b", "").await;
    assert_eq!(read.unwrap(), Some(text("b")));
    assert_eq!(findings(&files).await.iter().filter(|finding| finding.kind == Kind::Missing).count(), 2);
}

/// An environment whose clocks are tokio's, which a test pauses.
#[derive(Debug)]
struct Stopped {
    rest: Arc<TestEnvironment>,
    start: Instant,
}

impl Environment for Stopped {
    fn now_millis(&self) -> u64 {
        self.rest.now_millis() + self.elapsed_millis()
    }

    fn elapsed_millis(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn uuid(&self) -> Uuid {
        self.rest.uuid()
    }

    fn random_below(&self, bound: u64) -> u64 {
        self.rest.random_below(bound)
    }

    fn sleep(&self, duration: Duration) -> Task {
        Box::pin(tokio::time::sleep(duration))
    }

    fn background(&self, work: Task) -> Task {
        drop(tokio::spawn(work));
        Box::pin(ready(()))
    }
}

/// Average number of sequential creations per commit, if `committers` transactions commit at the same time, five times
/// each.
async fn rounds_each(committers: usize) -> f64 {
    const COMMITS: usize = 5;
    let environment = Arc::new(Stopped { rest: TestEnvironment::seeded(1), start: Instant::now() });
    let definition = LakehouseDefinition::encode(proto::LakehouseDef::default());
    let memory = MemoryFiles::remote(environment.clone());
    Lakehouse::create(memory.clone(), environment.clone(), definition, None).await.unwrap();
    let slow = Arc::new(LatencyStorage::new(memory, Latency::S3_STANDARD));
    let lakehouse = Lakehouse::open(slow, environment, None).await.unwrap();
    let start = Instant::now();
    join_all((0..committers).map(|committer| {
        let lakehouse = lakehouse.clone();
        async move {
            for number in 0..COMMITS {
                let mut transaction = lakehouse.begin(lakehouse.known(), TransactionOptions::default()).unwrap();
                let (name, definition) = (format!("n{committer}-{number}"), text(&"x".repeat(600)));
                transaction.create(Namespace, &name, "", definition).await.unwrap();
                commit(&mut transaction).await.unwrap();
            }
        }
    }))
    .await;
    start.elapsed().as_secs_f64() / Latency::S3_STANDARD.write.as_secs_f64() / COMMITS as f64
}

/// Transactions that commit again at the same time share one root. Otherwise the first one would lead alone, and the
/// others would wait for two roots, or for three if the definitions of a large group do not fit into one root.
#[tokio::test(start_paused = true)]
async fn a_group_takes_one_round_and_a_large_one_two() {
    let (small, large) = (rounds_each(60).await, rounds_each(300).await);
    assert!(small < 1.8, "{small} rounds each, for five commits of 60");
    assert!(large < 2.75, "{large} rounds each, for five commits of 300");
}

/// On a local disk, inline definitions have no advantage, so the definition file is written before the root.
#[tokio::test]
async fn a_root_on_a_local_disk_has_no_inline_definitions() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    add_namespace(&lakehouse, "a").await.unwrap();
    assert!(lakehouse.known().metadata.inline_definitions.is_empty());
}

/// A version can be read even if the files of its inline definitions were not written, because the writer died or the
/// store refused them. The next commit writes the files.
#[tokio::test]
async fn a_version_is_complete_without_the_files_of_its_inline_definitions() {
    let (files, environment, lakehouse) = lake_without("-b-").await;
    add_namespace(&lakehouse, "a").await.unwrap();
    add_namespace(&lakehouse, "b").await.unwrap();
    assert!(!has_definition_of(&files, "b"));
    let other = open(files.clone(), &environment).await;
    assert_readable(&other.latest().await.unwrap()).await;
    assert_eq!(findings(&files).await, []);
    // The writer that could not write the file continues, and its roots contain the definition until the file exists.
    add_namespace(&lakehouse, "c").await.unwrap();
    assert!(!has_definition_of(&files, "b"));
    let third = open(files.clone(), &environment).await.latest().await.unwrap();
    assert_eq!(third.metadata.inline_definitions.len(), 2, "the definition of b, and its own");
    assert_readable(&third).await;
    assert_eq!(findings(&files).await, []);
    // Another process writes the file during its own commit. From then on it is an ordinary file.
    add_namespace(&other, "d").await.unwrap();
    assert!(has_definition_of(&files, "b"));
    add_namespace(&other, "e").await.unwrap();
    assert_eq!(other.known().metadata.inline_definitions.len(), 1, "the definition of e");
    for number in 0..=other.known().number {
        assert_readable(&other.version(number).await.unwrap()).await;
    }
}

/// A version with a table whose definition file was refused, followed by versions that do not contain it.
async fn with_a_past() -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<Lakehouse>, u64) {
    let (files, environment, lakehouse) = lake_without("-t-").await;
    add_namespace(&lakehouse, "a").await.unwrap();
    let with_table = add_table(&lakehouse, "a", "t").await.unwrap();
    let mut drop = begin(&lakehouse, Isolation::Snapshot).await;
    drop.drop_object(Table, "a", "t").await.unwrap();
    commit(&mut drop).await.unwrap();
    // Pretends that the files exist, so that the next root does not contain the definition.
    lakehouse.known().definitions_are_written();
    add_namespace(&lakehouse, "x").await.unwrap();
    assert!(!has_definition_of(&files, "t"));
    assert_eq!(lakehouse.known().metadata.inline_definitions.len(), 1, "the definition of x");
    (files, environment, lakehouse, with_table)
}

/// A rollback references the definitions of its target, which the latest version does not contain.
#[tokio::test]
async fn a_rollback_has_the_inline_definitions_of_its_target() {
    let (files, environment, lakehouse, with_table) = with_a_past().await;
    let back = lakehouse.rollback(with_table, "", "").await.unwrap();
    assert!(!has_definition_of(&files, "t"));
    let reader = open(files.clone(), &environment).await;
    assert_readable(&reader.version(back.number).await.unwrap()).await;
    assert_eq!(findings(&files).await, []);
}

/// A restored object references a definition of an earlier version, which the latest version does not contain.
#[tokio::test]
async fn the_files_of_a_restored_object_are_written() {
    let (files, environment, _, with_table) = with_a_past().await;
    let lakehouse = open(files.clone(), &environment).await;
    let past = lakehouse.version(with_table).await.unwrap();
    let location = past.locate(Table, "a", "t").await.unwrap().unwrap();
    let mut restoration = begin(&lakehouse, Isolation::Snapshot).await;
    restoration.depend_on_version(&past).await.unwrap();
    assert!(restoration.put_back(Table, "a", "t", &location).await.unwrap());
    commit(&mut restoration).await.unwrap();
    let reader = open(files.clone(), &environment).await;
    assert_readable(&reader.latest().await.unwrap()).await;
    assert_eq!(findings(&files).await, []);
}

/// After a lost race the definition file exists, so the next root need not contain it.
#[tokio::test]
async fn a_definition_written_during_a_lost_race_is_not_inlined() {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(environment.clone());
    create(files.clone(), &environment).await;
    let slow = crate::tests::fixture::Intruder::new(&files);
    let lakehouse = open(slow.clone(), &environment).await;
    let other = open(files.clone(), &environment).await;
    slow.add(move || async move { assert_eq!(add_namespace(&other, "x").await.unwrap(), 1) });
    add_namespace(&lakehouse, "a").await.unwrap();
    let known = lakehouse.known();
    let own = known.locate(Namespace, "a", "").await.unwrap().unwrap();
    assert_eq!(known.number, 2);
    assert!(!known.metadata.inline_definitions.contains_key(&own));
    assert!(files.has(&own));
    assert_readable(&known).await;
}

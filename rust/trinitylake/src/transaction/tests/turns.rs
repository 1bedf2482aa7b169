//! Transactions of several processes that change one table take turns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use prost::Message as _;
use tokio::time::Instant;
use uuid::Uuid;

use crate::environment::testing::TestEnvironment;
use crate::environment::{Environment, Task};
use crate::file_names::{INTENT_PREFIX, intent_path};
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::METADATA_LOCATION;
use crate::lakehouse_definition::proto::TableDef;
use crate::storage::Storage;
use crate::storage::latency::{Latency, LatencyStorage};
use crate::tests::fixture::{MemoryFiles, begin, commit, create, text};
use crate::transaction::{CommitLimits, Coordination, Isolation, Outcome, Transaction, TransactionOptions};

const LIMITS: CommitLimits =
    CommitLimits { max_attempts: 200, timeout_millis: 600_000, coordination: Some(Coordination::Queue) };
/// Time that a process needs after a lost race to read the winner's metadata and to write its own.
const REBASE: Duration = Duration::from_millis(400);

fn table(id: u128, metadata: &str) -> Bytes {
    let format_properties = HashMap::from([(METADATA_LOCATION.to_string(), metadata.to_string())]);
    let id = Uuid::from_u128(id).to_string();
    TableDef { id, format_properties: format_properties.into_iter().collect(), ..TableDef::default() }
        .encode_to_vec()
        .into()
}

/// An environment whose clocks follow tokio's paused clock, as the latency of the store does.
#[derive(Debug)]
struct PausedClock(Instant, Arc<TestEnvironment>, u64);

impl Environment for PausedClock {
    fn now_millis(&self) -> u64 {
        self.2 + self.elapsed_millis()
    }

    fn elapsed_millis(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }

    fn uuid(&self) -> Uuid {
        self.1.uuid()
    }

    fn random_below(&self, bound: u64) -> u64 {
        self.1.random_below(bound)
    }

    fn sleep(&self, duration: Duration) -> Task {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A slow store with the tables `n.t1` and `n.t2`.
async fn store() -> (Arc<MemoryFiles>, Arc<dyn Storage>, Arc<dyn Environment>) {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::remote(environment.clone());
    let lakehouse = create(files.clone(), &environment).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "n", "", text("n")).await.unwrap();
    transaction.create(Table, "n", "t1", table(1, "first")).await.unwrap();
    transaction.create(Table, "n", "t2", table(2, "first")).await.unwrap();
    commit(&mut transaction).await.unwrap();
    let slow = Arc::new(LatencyStorage::new(files.clone(), Latency::S3_STANDARD));
    (files, slow, Arc::new(PausedClock(Instant::now(), environment, 1_000_000_000_000)))
}

async fn open(storage: &Arc<dyn Storage>, environment: &Arc<dyn Environment>) -> Arc<Lakehouse> {
    Lakehouse::open(storage.clone(), environment.clone(), None).await.unwrap()
}

/// Commits a change of a table, as the layer above does. Returns the version and the number of rebases.
async fn change(lakehouse: &Arc<Lakehouse>, name: &str) -> (u64, u32) {
    let mut transaction = lakehouse.begin(lakehouse.known(), TransactionOptions::default()).unwrap();
    stage(&mut transaction, name).await;
    let mut rebases = 0;
    loop {
        match transaction.commit(LIMITS).await.unwrap() {
            Outcome::Committed(version) => return (version, rebases),
            Outcome::Conflicts(conflicts) => {
                tokio::time::sleep(REBASE).await;
                rebases += 1;
                for conflict in &conflicts.tables {
                    transaction.rebase(conflict, definition(name, transaction.id())).unwrap();
                }
            }
        }
    }
}

fn definition(name: &str, metadata: &str) -> Bytes {
    table(if name == "t1" { 1 } else { 2 }, metadata)
}

async fn stage(transaction: &mut Transaction, name: &str) {
    let staged = definition(name, transaction.id());
    transaction.replace(Table, "n", name, staged).await.unwrap();
}

/// A process that commits without a pause does not starve a process that has to rebase. Otherwise, of two servers that
/// ingest with sequence numbers, one would not answer for 21 seconds, until the other one ends.
#[tokio::test(start_paused = true)]
async fn processes_that_change_one_table_without_a_pause_all_commit() {
    let (files, slow, environment) = store().await;
    let processes = (0..3).map(async |_| {
        let lakehouse = open(&slow, &environment).await;
        let mut done = Vec::new();
        for _ in 0..20 {
            done.push(change(&lakehouse, "t1").await);
        }
        done
    });
    let done = join_all(processes).await;
    let rebases = done.iter().flatten().map(|(_, rebases)| *rebases).max();
    assert!(rebases.unwrap() <= 4, "{done:?}");
    // Until the first process ends, no process waits for long.
    let first_end = done.iter().filter_map(|one| one.last()).map(|(version, _)| *version).min().unwrap();
    for one in &done {
        let versions: Vec<u64> =
            one.iter().map(|(version, _)| *version).filter(|version| *version <= first_end).collect();
        assert!(versions.len() >= 15, "{done:?}");
    }
    assert_eq!(files.paths().iter().filter(|path| path.starts_with(INTENT_PREFIX)).count(), 0);
}

/// The turn of a dead process is removed. Otherwise each later transaction would wait for it.
#[tokio::test(start_paused = true)]
async fn the_turn_of_a_dead_process_is_removed() {
    let (files, slow, environment) = store().await;
    let (dead, other) = (open(&slow, &environment).await, open(&slow, &environment).await);
    dead.commits().set_contended();
    let mut waiting = begin(&dead, Isolation::Snapshot).await;
    stage(&mut waiting, "t1").await;
    change(&other, "t1").await;
    assert!(matches!(waiting.commit(LIMITS).await.unwrap(), Outcome::Conflicts(_)));
    drop(waiting);
    let left = files.paths().into_iter().find(|path| path.starts_with(INTENT_PREFIX)).unwrap();
    change(&other, "t1").await; // lists the queue, which holds the turn
    assert!(other.is_contended());
    change(&other, "t2").await; // another table has no turns
    assert!(files.has(&left) && other.is_contended());
    change(&other, "t1").await;
    assert!(!files.has(&left));
}

/// A process that writes alone sends no requests for the queue, although it finds its own turn or intent there.
#[tokio::test(start_paused = true)]
async fn own_intents_are_not_those_of_others() {
    let (files, slow, environment) = store().await;
    let lakehouse = open(&slow, &environment).await;
    lakehouse.commits().set_contended();
    let mut waiting = begin(&lakehouse, Isolation::Snapshot).await;
    stage(&mut waiting, "t1").await;
    let rival = open(&slow, &environment).await;
    change(&rival, "t1").await;
    assert!(matches!(waiting.commit(LIMITS).await.unwrap(), Outcome::Conflicts(_)));
    assert!(files.paths().iter().any(|path| path.starts_with(INTENT_PREFIX)));
    change(&lakehouse, "t2").await;
    assert!(!lakehouse.is_contended());
}

/// Processes take turns even if the clock of one machine is an hour slow. Otherwise all of its turns would be older
/// than the turns of the other process, which would then wait each time.
#[tokio::test(start_paused = true)]
async fn a_process_with_a_slow_clock_takes_turns() {
    let (_, slow, environment) = store().await;
    let late: Arc<dyn Environment> =
        Arc::new(PausedClock(Instant::now(), TestEnvironment::seeded(2), 1_000_000_000_000 - 3_600_000));
    let (one, other) = (open(&slow, &environment).await, open(&slow, &late).await);
    let work = async |lakehouse: Arc<Lakehouse>| {
        let mut versions = Vec::new();
        for _ in 0..20 {
            versions.push(change(&lakehouse, "t1").await.0);
        }
        versions
    };
    let (one, other) = futures::future::join(work(one), work(other)).await;
    assert!(one[10] < other[15] && other[10] < one[15], "{one:?} {other:?}");
}

/// An intent that stays for longer than a commit may take does not count as a waiting process. Otherwise, if a dead
/// process left it for a table that no other process writes, each commit would send the requests of the queue.
#[tokio::test(start_paused = true)]
async fn an_intent_that_stays_does_not_show_that_others_wait() {
    let (files, slow, environment) = store().await;
    files.overwrite(&intent_path(1, Uuid::from_u128(9), Some(Uuid::from_u128(2))), "");
    let lakehouse = open(&slow, &environment).await;
    change(&lakehouse, "t1").await;
    assert!(lakehouse.is_contended());
    tokio::time::sleep(Duration::from_secs(121)).await;
    change(&lakehouse, "t1").await;
    assert!(!lakehouse.is_contended());
}

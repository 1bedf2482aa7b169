//! Commits per second of one process with many concurrent transactions, each with its own table.
//!
//! Remote stores are in memory, with added latency. The limit next to each figure is a rate on the same store: as many
//! tasks only create two files at the same time, like a commit. The last rows of each store have more concurrent
//! transactions than threads.
//!
//! `cargo bench -p trinitylake --features testing --bench group_commit`; `SECONDS` sets the duration of each row,
//! `DIRECTORY` the folder of the local lakehouse.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures the real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use trinitylake::environment::SystemEnvironment;
use trinitylake::key::ObjectKind;
use trinitylake::lakehouse::Lakehouse;
use trinitylake::lakehouse_definition::{LakehouseDefinition, proto};
use trinitylake::root_uri::RootUri;
use trinitylake::storage::latency::{Latency, LatencyStorage};
use trinitylake::storage::{CountingStorage, Durability, LocalStorage, ObjectStorage, Storage};
use trinitylake::transaction::{CommitLimits, Outcome, TransactionOptions};

/// Approximate size of the definition of a table with ten columns.
const DEFINITION_SIZE_BYTES: usize = 600;
/// Approximate size of a root.
const ROOT_SIZE_BYTES: usize = 19_000;

struct Row {
    transactions: usize,
    elapsed: Duration,
    latencies: Vec<Duration>,
    versions: u64,
    puts: u64,
}

async fn run(storage: Arc<dyn Storage>, committers: usize, seconds: f64) -> Row {
    let counting = Arc::new(CountingStorage::new(storage));
    let definition = LakehouseDefinition::encode(proto::LakehouseDef::default());
    let environment = SystemEnvironment::shared();
    let lakehouse = Lakehouse::create(counting.clone(), environment, definition, None).await.unwrap();
    let mut setup = lakehouse.begin(lakehouse.known(), TransactionOptions::default()).unwrap();
    setup.create(ObjectKind::Namespace, "ns", "", Bytes::new()).await.unwrap();
    for committer in 0..committers {
        let table = format!("table_{committer:05}");
        setup.create(ObjectKind::Table, "ns", &table, Bytes::from(vec![1; DEFINITION_SIZE_BYTES])).await.unwrap();
    }
    setup.commit(CommitLimits::default()).await.unwrap();
    let (first, counters) = (lakehouse.known().number, counting.counters());
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let tasks = (0..committers).map(|committer| {
        let lakehouse = lakehouse.clone();
        tokio::spawn(async move {
            let (table, mut latencies) = (format!("table_{committer:05}"), Vec::new());
            while Instant::now() < end {
                let began = Instant::now();
                let mut transaction = lakehouse.begin(lakehouse.known(), TransactionOptions::default()).unwrap();
                let definition = Bytes::from(vec![2; DEFINITION_SIZE_BYTES]);
                transaction.replace(ObjectKind::Table, "ns", &table, definition).await.unwrap();
                let outcome = transaction.commit(CommitLimits::default()).await.unwrap();
                assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
                latencies.push(began.elapsed());
            }
            latencies
        })
    });
    let mut latencies: Vec<Duration> = join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
    let elapsed = start.elapsed();
    latencies.sort_unstable();
    let latest = lakehouse.latest().await.unwrap();
    Row {
        transactions: latencies.len(),
        elapsed,
        latencies,
        versions: latest.number - first,
        puts: counting.counters().since(&counters).put_if_absent,
    }
}

/// Rate of tasks that only create two files at the same time: one as large as a definition and one as large as a root.
async fn bare(storage: Arc<dyn Storage>, committers: usize, seconds: f64) -> f64 {
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let tasks = (0..committers).map(|committer| {
        let storage = storage.clone();
        tokio::spawn(async move {
            let mut made = 0_u64;
            while Instant::now() < end {
                let files = [("definition", DEFINITION_SIZE_BYTES), ("root", ROOT_SIZE_BYTES)];
                join_all(files.map(|(what, size_bytes)| {
                    let (storage, path) = (&storage, format!("bare/{committer}-{made}-{what}"));
                    async move { storage.put_if_absent(&path, Bytes::from(vec![3; size_bytes])).await.unwrap() }
                }))
                .await;
                made += 1;
            }
            made
        })
    });
    let made: u64 = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    made as f64 / start.elapsed().as_secs_f64()
}

fn print(name: &str, committers: usize, limit: Option<f64>, row: &Row) {
    let rate = row.transactions as f64 / row.elapsed.as_secs_f64();
    let at = |share: f64| row.latencies[((row.latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let limit = limit.map_or("-".into(), |limit| format!("{limit:.0}"));
    println!(
        "{name:<22} {committers:>6} {rate:>10.0} {limit:>10} {:>9.0} {:>8.1} {:>8.1} {:>9.2}",
        row.versions as f64 / row.elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        row.puts as f64 / row.transactions as f64,
    );
}

fn main() {
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!(
        "{:<22} {:>6} {:>10} {:>10} {:>9} {:>8} {:>8} {:>9}",
        "store", "concurrent", "txn/s", "limit", "roots/s", "p50 ms", "p99 ms", "PUT/txn"
    );
    // A remote store, so that commits wait for answers over the network.
    let memory = |name: &str| Arc::new(ObjectStorage::memory(&RootUri::parse(&format!("s3://{name}/lake")).unwrap()));
    let stores = [("60 ms PUT, 20 ms GET", Latency::S3_STANDARD), ("6 ms PUT, 5 ms GET", Latency::S3_EXPRESS)];
    for (index, (name, latency)) in stores.into_iter().enumerate() {
        for committers in [1, 64, 256, 1024] {
            let storage = Arc::new(LatencyStorage::dated(memory(&format!("{index}-{committers}")), latency));
            let row = runtime.block_on(run(storage.clone(), committers, seconds));
            let limit = runtime.block_on(bare(storage, committers, seconds));
            print(name, committers, Some(limit), &row);
        }
    }
    let directory = match std::env::var("DIRECTORY") {
        Ok(directory) => tempfile::tempdir_in(directory),
        Err(_) => tempfile::tempdir_in("."),
    }
    .unwrap();
    for (name, durability) in [("local, fsync", Durability::Fsync), ("local, no fsync", Durability::None)] {
        for committers in [1, 64, 256] {
            let folder = directory.path().join(format!("{durability:?}-{committers}"));
            let root = RootUri::parse(&folder.to_string_lossy()).unwrap();
            let storage = Arc::new(LocalStorage::new(&root, durability));
            print(name, committers, None, &runtime.block_on(run(storage, committers, seconds)));
        }
    }
}

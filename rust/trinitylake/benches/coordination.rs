//! Commits per second of independent processes, each with its own table, with and without the intent queue.
//!
//! Each process is simulated by a handle of its own. The store is in memory, with added latency, so that rounds and
//! lost races are measured.
//!
//! `cargo bench -p trinitylake --features testing --bench coordination`; `SECONDS` sets the duration of each row.
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
use trinitylake::storage::{CountingStorage, ObjectStorage};
use trinitylake::transaction::{CommitLimits, Coordination, TransactionOptions};

const DEFINITION_SIZE_BYTES: usize = 600;

struct Row {
    latencies: Vec<Duration>,
    failures: usize,
    elapsed: Duration,
    versions: u64,
    requests: u64,
}

async fn run(name: &str, latency: Latency, processes: usize, coordination: Coordination, seconds: f64) -> Row {
    let memory = Arc::new(ObjectStorage::memory(&RootUri::parse(&format!("s3://{name}/lake")).unwrap()));
    let storage = Arc::new(CountingStorage::new(Arc::new(LatencyStorage::new(memory, latency))));
    let environment = SystemEnvironment::shared();
    let definition = LakehouseDefinition::encode(proto::LakehouseDef::default());
    let lakehouse = Lakehouse::create(storage.clone(), environment.clone(), definition, None).await.unwrap();
    let mut setup = lakehouse.begin(lakehouse.known(), TransactionOptions::default()).unwrap();
    setup.create(ObjectKind::Namespace, "ns", "", Bytes::new()).await.unwrap();
    for process in 0..processes {
        let table = format!("table_{process:05}");
        let definition = Bytes::from(vec![1; DEFINITION_SIZE_BYTES]);
        setup.create(ObjectKind::Table, "ns", &table, definition).await.unwrap();
    }
    setup.commit(CommitLimits::default()).await.unwrap();
    let opened = (0..processes).map(|_| Lakehouse::open(storage.clone(), environment.clone(), None));
    let handles: Vec<_> = join_all(opened).await.into_iter().map(Result::unwrap).collect();
    let (first, before) = (lakehouse.known().number, storage.counters());
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let tasks = handles.into_iter().enumerate().map(|(process, handle)| {
        tokio::spawn(async move {
            let (table, mut latencies, mut failures) = (format!("table_{process:05}"), Vec::new(), 0);
            while Instant::now() < end {
                let began = Instant::now();
                let mut transaction = handle.begin(handle.known(), TransactionOptions::default()).unwrap();
                let definition = Bytes::from(vec![2; DEFINITION_SIZE_BYTES]);
                transaction.replace(ObjectKind::Table, "ns", &table, definition).await.unwrap();
                let limits = CommitLimits { coordination: Some(coordination), ..CommitLimits::default() };
                match transaction.commit(limits).await {
                    Ok(_) => latencies.push(began.elapsed()),
                    Err(_) => failures += 1,
                }
            }
            (latencies, failures)
        })
    });
    let results: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let elapsed = start.elapsed();
    let requests = storage.counters().since(&before).requests();
    let mut latencies: Vec<Duration> = results.iter().flat_map(|(latencies, _)| latencies.clone()).collect();
    latencies.sort();
    Row {
        latencies,
        failures: results.iter().map(|(_, failures)| failures).sum(),
        elapsed,
        versions: lakehouse.latest().await.unwrap().number - first,
        requests,
    }
}

fn main() {
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!(
        "{:<22} {:>9} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "store", "processes", "queue", "txn/s", "roots/s", "p50 ms", "p99 ms", "max ms", "req/txn", "failures"
    );
    let stores = [("60 ms PUT, 20 ms GET", Latency::S3_STANDARD), ("6 ms PUT, 5 ms GET", Latency::S3_EXPRESS)];
    for (store, latency) in stores {
        for processes in [1, 2, 4, 8, 32, 100] {
            for coordination in [Coordination::None, Coordination::Queue] {
                let name = format!("{}-{processes}-{coordination:?}", latency.write.as_millis());
                let row = runtime.block_on(run(&name, latency, processes, coordination, seconds));
                let percentile = |part: f64| {
                    let position = ((row.latencies.len() as f64 * part) as usize).min(row.latencies.len() - 1);
                    row.latencies[position].as_secs_f64() * 1000.0
                };
                println!(
                    "{store:<22} {processes:>9} {:>6} {:>8.0} {:>8.1} {:>8.0} {:>8.0} {:>8.0} {:>8.1} {:>9}",
                    if coordination == Coordination::Queue { "yes" } else { "no" },
                    row.latencies.len() as f64 / row.elapsed.as_secs_f64(),
                    row.versions as f64 / row.elapsed.as_secs_f64(),
                    percentile(0.5),
                    percentile(0.99),
                    percentile(1.0),
                    row.requests as f64 / row.latencies.len() as f64,
                    row.failures,
                );
            }
        }
    }
}

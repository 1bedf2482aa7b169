//! Number of dependent rounds of a commit and of a cold open with a million objects.
//!
//! The rounds are measured with a virtual clock and a store in memory with added latency.
//!
//! `cargo bench -p trinitylake --features testing --bench remote`; `KEYS` changes the number of objects.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::StringArray;
use bytes::Bytes;
use tokio::time::Instant;
use trinitylake::arrow_columns::{encode_keys, optimize_paths};
use trinitylake::bulk_registration::register;
use trinitylake::environment::SystemEnvironment;
use trinitylake::key::{NameSizes, ObjectKind};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::lakehouse_definition::{LakehouseDefinition, proto};
use trinitylake::root_uri::RootUri;
use trinitylake::storage::latency::{Latency, LatencyStorage};
use trinitylake::storage::{Counters, CountingStorage, ObjectStorage, Storage};
use trinitylake::transaction::{CommitLimits, TransactionOptions};

const COMMITS: usize = 400;
/// Latencies for counting rounds: a write takes as long as a thousand reads, so the elapsed time contains the number of
/// rounds of writes and of reads.
const READ_ROUND: Duration = Duration::from_secs(1);
const WRITE_ROUND: Duration = Duration::from_secs(1000);
const ROUNDS: Latency = Latency { write: WRITE_ROUND, read: READ_ROUND, bytes_per_second: u64::MAX };

fn memory() -> Arc<dyn Storage> {
    Arc::new(ObjectStorage::memory(&RootUri::parse("s3://remote/lake").unwrap()))
}

fn behind(latency: Latency) -> Arc<CountingStorage> {
    Arc::new(CountingStorage::new(Arc::new(LatencyStorage::new(memory(), latency))))
}

/// Returns the rounds of writes and of reads in a time measured with the latencies [`ROUNDS`].
fn rounds(elapsed: Duration) -> (u64, u64) {
    // Timers are late by about a millisecond.
    let reads = (elapsed.as_secs_f64() / READ_ROUND.as_secs_f64()).round() as u64;
    let reads_in_a_write = WRITE_ROUND.as_secs() / READ_ROUND.as_secs();
    (reads / reads_in_a_write, reads % reads_in_a_write)
}

fn namespace(i: usize) -> String {
    format!("namespace_{i:09}")
}

async fn build(count: usize) {
    let lakehouse = Lakehouse::create(
        memory(),
        SystemEnvironment::shared(),
        LakehouseDefinition::encode(proto::LakehouseDef::default()),
        None,
    )
    .await
    .unwrap();
    let names = StringArray::from_iter_values((0..count).map(namespace));
    let keys = encode_keys(ObjectKind::Namespace, &names, None, NameSizes::default()).unwrap();
    let id = |i: usize| u128::from(i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    let files =
        StringArray::from_iter_values((0..count).map(|i| format!("namespace-{}-{:032x}.binpb", namespace(i), id(i))));
    register(&lakehouse, keys, optimize_paths(&files).unwrap(), false, "", "").await.unwrap();
}

async fn open(count: usize) {
    let storage = behind(ROUNDS);
    let start = Instant::now();
    let lakehouse = Lakehouse::open(storage.clone(), SystemEnvironment::shared(), None).await.unwrap();
    let found = lakehouse.known().locate(ObjectKind::Namespace, &namespace(count / 2 + 1), "").await.unwrap();
    assert!(found.is_some());
    let (_, reads) = rounds(start.elapsed());
    let counters = storage.counters();
    println!(
        "target 7: cold open and one look-up at {count} objects: {reads} dependent rounds (at most 4), {} requests, {} bytes \
         read (at most 150000)",
        counters.requests(),
        counters.read_bytes,
    );
    let (before, start) = (storage.counters(), Instant::now());
    lakehouse.latest().await.unwrap();
    let (_, reads) = rounds(start.elapsed());
    println!(
        "target 7: refresh of an open handle: {reads} dependent rounds (at most 1), {} requests (at most 4)",
        storage.counters().since(&before).requests()
    );
}

/// Commits that replace one random object each. Returns their latencies, ascending, and their requests.
async fn commit(count: usize, latency: Latency) -> (Vec<Duration>, Counters) {
    let storage = behind(latency);
    let lakehouse = Lakehouse::open(storage.clone(), SystemEnvironment::shared(), None).await.unwrap();
    let mut times = Vec::with_capacity(COMMITS);
    let mut row = 1;
    let before = storage.counters();
    for _ in 0..COMMITS {
        row = (row * 48_271 + 11) % count;
        let base = lakehouse.known();
        let mut transaction = lakehouse.begin(base, TransactionOptions::default()).unwrap();
        transaction
            .replace(ObjectKind::Namespace, &namespace(row), "", Bytes::from_static(b"definition"))
            .await
            .unwrap();
        let start = Instant::now();
        transaction.commit(CommitLimits::default()).await.unwrap();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    (times, storage.counters().since(&before))
}

async fn commits(count: usize) {
    let (times, counters) = commit(count, ROUNDS).await;
    let each = |number: u64| number as f64 / COMMITS as f64;
    println!(
        "target 4: a commit at {count} objects: {:.2} files created, {:.2} hints, {:.2} lists, {:.2} gets, {:.0} bytes written",
        each(counters.put_if_absent),
        each(counters.put_hint),
        each(counters.list),
        each(counters.get),
        each(counters.written_bytes),
    );
    for (share, name) in [(50, "median"), (90, "90 %"), (100, "most")] {
        let (writes, reads) = rounds(times[(COMMITS * share / 100).min(COMMITS - 1)]);
        println!("target 4: dependent rounds, {name}: {writes} of writes (at most 2), {reads} of reads (at most 1)");
    }
    for (name, latency) in [("S3, 60/20 ms", Latency::S3_STANDARD), ("S3 Express, 6/5 ms", Latency::S3_EXPRESS)] {
        let (times, _) = commit(count, latency).await;
        println!("{name}: a commit takes {:?} (median), {:?} (90 %)", times[COMMITS / 2], times[COMMITS * 9 / 10]);
    }
}

fn main() {
    let count: usize = std::env::var("KEYS").map_or(1_000_000, |keys| keys.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        build(count).await;
        open(count).await;
        commits(count).await;
    });
}

//! Targets 1 and 2 at the core: a commit on the local disk, stage by stage, beside its two files alone.
//!
//! `cargo bench -p trinitylake --bench commit`; `TMPDIR` says on which disk. Folders stay until the end.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use trinitylake::definition::{LakehouseDefinition, proto};
use trinitylake::environment::SystemEnvironment;
use trinitylake::error::Result;
use trinitylake::key::ObjectKind;
use trinitylake::lakehouse::Lakehouse;
use trinitylake::root_uri::RootUri;
use trinitylake::storage::{Durability, FileInfo, LocalStorage, PutOutcome, Storage};
use trinitylake::transaction::{CommitLimits, TransactionOptions};

/// What `NamespaceDef` takes with an id and no properties.
const DEFINITION: &[u8] = b"\x0a\x2412345678-1234-4234-8234-123456789012";
const WARM_COMMITS: u64 = 300;

/// A store that notes how long each request takes, by what it is for.
#[derive(Debug)]
struct Stopwatch {
    inner: LocalStorage,
    times: Mutex<BTreeMap<&'static str, Vec<Duration>>>,
}

impl Stopwatch {
    fn note<T>(&self, stage: &'static str, start: Instant, answer: T) -> T {
        self.times.lock().unwrap().entry(stage).or_default().push(start.elapsed());
        answer
    }
}

#[async_trait]
impl Storage for Stopwatch {
    fn root(&self) -> &str {
        self.inner.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        let start = Instant::now();
        let answer = self.inner.get(path).await;
        self.note("read a node", start, answer)
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(path, range).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        let start = Instant::now();
        let answer = self.inner.head(path).await;
        self.note("look for a newer root", start, answer)
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let start = Instant::now();
        let answer = self.inner.put_if_absent(path, bytes).await;
        let stage = if path.starts_with('_') { "create the root" } else { "create a definition or node" };
        self.note(stage, start, answer)
    }

    async fn sync(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        let start = Instant::now();
        let answer = self.inner.put_hint(path, bytes).await;
        self.note("write the hint", start, answer)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let start = Instant::now();
        let answer = self.inner.list(prefix).await;
        self.note("list the boundary", start, answer)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.inner.delete(path).await
    }
}

/// A lakehouse in a folder, and commits of one namespace to it.
struct Writer {
    runtime: Runtime,
    storage: Arc<Stopwatch>,
    lakehouse: Arc<Lakehouse>,
    commits: u64,
}

impl Writer {
    fn new(folder: &Path, durability: Durability, compression: &str) -> Writer {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let root = RootUri::parse(folder.to_str().unwrap()).unwrap();
        let storage =
            Arc::new(Stopwatch { inner: LocalStorage::new(&root, durability), times: Mutex::default() });
        let mut definition = proto::LakehouseDef::default();
        definition.properties.insert("node.compression".into(), compression.into());
        let created = Lakehouse::create(
            storage.clone(),
            SystemEnvironment::shared(),
            LakehouseDefinition::encode(definition),
            None,
        );
        let lakehouse = runtime.block_on(created).unwrap();
        let mut writer = Writer { runtime, storage, lakehouse, commits: 0 };
        (0..WARM_COMMITS).for_each(|_| writer.commit());
        writer.storage.times.lock().unwrap().clear();
        writer
    }

    fn commit(&mut self) {
        self.commits += 1;
        let name = format!("namespace_{:07}", self.commits);
        self.runtime
            .block_on(async {
                let base = self.lakehouse.latest().await?;
                let mut transaction = self.lakehouse.begin(base, TransactionOptions::default())?;
                transaction.create(ObjectKind::Namespace, &name, "", Bytes::from_static(DEFINITION)).await?;
                transaction.commit(CommitLimits::default()).await
            })
            .unwrap();
    }

    fn print_stages(&self, title: &str) {
        println!("{title}: requests of one commit, microseconds");
        for (stage, times) in self.storage.times.lock().unwrap().iter() {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let at = |share: usize| sorted[sorted.len() * share / 100].as_secs_f64() * 1e6;
            let each = times.len() as f64 / (self.commits - WARM_COMMITS) as f64;
            println!(
                "  {stage:<28} {each:>5.2} times, median {:>8.1} (10 %: {:.1}, 90 %: {:.1})",
                at(50),
                at(10),
                at(90)
            );
        }
    }
}

/// Creates a file as plainly as it goes.
fn create(folder: &Path, number: u64, bytes: &[u8], synced: bool) {
    let path = folder.join(format!("file-{number:09}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    if synced {
        file.sync_all().unwrap();
        File::open(folder).unwrap().sync_all().unwrap();
    }
}

fn commits(criterion: &mut Criterion) {
    let folder = TempDir::new().unwrap();
    for (durability, word) in [(Durability::None, "not synced"), (Durability::Fsync, "synced")] {
        let mut group = criterion.benchmark_group(format!("commit one namespace, {word}"));
        group.sample_size(20).measurement_time(Duration::from_secs(4));
        let synced = durability == Durability::Fsync;
        let (definitions, roots) =
            (folder.path().join(format!("{word} a")), folder.path().join(format!("{word} b")));
        fs::create_dir_all(&definitions).unwrap();
        fs::create_dir_all(&roots).unwrap();
        let root = vec![7; 9_500];
        let mut number = 0;
        // Before and after ours: a disk has moods.
        for moment in ["before", "after"] {
            if moment == "after" {
                for compression in ["zstd", "none"] {
                    let place = folder.path().join(format!("{word} {compression}"));
                    let mut writer = Writer::new(&place, durability, compression);
                    group.bench_function(format!("ours, {compression}"), |bencher| {
                        bencher.iter(|| writer.commit())
                    });
                    writer.print_stages(&format!("{word}, {compression}"));
                }
            }
            group.bench_function(format!("limit: its two files, {moment}"), |bencher| {
                bencher.iter(|| {
                    number += 1;
                    create(&definitions, number, DEFINITION, synced);
                    create(&roots, number, &root, synced);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, commits);
criterion_main!(benches);

//! Targets 8, 10 and 11 at the core: look-up, scan and bulk build of a tree in memory.
//!
//! `cargo bench -p trinitylake --bench tree`; `KEYS` changes the million keys.

use std::sync::Arc;

use arrow_array::{Array, StringArray};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use trinitylake::batch::{encode_keys, optimize_paths};
use trinitylake::bulk::register;
use trinitylake::definition::{LakehouseDefinition, proto};
use trinitylake::environment::SystemEnvironment;
use trinitylake::key::{KeyRange, NameSizes, ObjectKind};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::root_uri::RootUri;
use trinitylake::storage::ObjectStorage;

/// All decoded nodes of a million keys.
const CACHE_SIZE_BYTES: u64 = 384 << 20;

/// Keys of that many namespaces, and locations. Namespaces need no parents, so nothing else is needed.
fn objects(count: usize) -> (StringArray, StringArray) {
    let names = StringArray::from_iter_values((0..count).map(|i| format!("namespace_{i:09}")));
    let keys = encode_keys(ObjectKind::Namespace, &names, None, NameSizes::default()).unwrap();
    let id = |i: usize| u128::from(i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    let files = StringArray::from_iter_values(
        (0..count).map(|i| format!("namespace-namespace_{i:09}-{:032x}.binpb", id(i))),
    );
    (keys, optimize_paths(&files).unwrap())
}

async fn lakehouse(name: &str) -> Arc<Lakehouse> {
    let root = RootUri::parse(&format!("memory://{name}")).unwrap();
    Lakehouse::create(
        Arc::new(ObjectStorage::memory(&root)),
        SystemEnvironment::shared(),
        LakehouseDefinition::encode(proto::LakehouseDef::default()),
        Some(CACHE_SIZE_BYTES),
    )
    .await
    .unwrap()
}

fn tree(criterion: &mut Criterion) {
    let count: usize = std::env::var("KEYS").map_or(1_000_000, |keys| keys.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (keys, locations) = objects(count);

    let mut builds = 0;
    let mut group = criterion.benchmark_group(format!("a tree of {count} keys"));
    group.throughput(Throughput::Elements(count as u64)).sample_size(10);
    group.bench_function("build, in memory", |bencher| {
        bencher.iter(|| {
            builds += 1;
            runtime.block_on(async {
                let lakehouse = lakehouse(&format!("build-{builds}")).await;
                register(&lakehouse, keys.clone(), locations.clone(), false, "", "").await.unwrap()
            })
        });
    });
    let version = runtime.block_on(async {
        let lakehouse = lakehouse("read").await;
        register(&lakehouse, keys.clone(), locations.clone(), false, "", "").await.unwrap()
    });
    for with_locations in [false, true] {
        let what = if with_locations { "scan keys and locations, warm" } else { "scan keys, warm" };
        group.bench_function(what, |bencher| {
            bencher.iter(|| {
                runtime.block_on(async {
                    let mut scan = version.scan(KeyRange::all(), None, with_locations);
                    let mut rows = 0;
                    while let Some(batch) = scan.next_batch().await.unwrap() {
                        rows += batch.keys.len();
                    }
                    assert_eq!(rows, count);
                });
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    let mut row = 0;
    group.bench_function("look up one key, warm", |bencher| {
        bencher.iter(|| {
            row = (row + 7_919_993) % count;
            assert!(runtime.block_on(version.get(keys.value(row))).unwrap().is_some());
        });
    });
    group.finish();
}

criterion_group!(benches, tree);
criterion_main!(benches);

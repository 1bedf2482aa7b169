//! Targets 14 to 16: paths, keys and nodes, each beside the least that the work takes.
//!
//! `cargo bench -p trinitylake --bench format`

#[path = "../../format/benches/inputs.rs"]
mod inputs;

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use trinitylake::batch::{encode_keys, optimize_paths};
use trinitylake::key::{NameSizes, ObjectKind};
use trinitylake::node::Found;
use trinitylake::node::codec::{Compression, decode, encode};

use inputs::{ORDER, names, node};

const ROWS: usize = 1_000_000;

/// Target 14, at least 20 million a second: hash, digits and copy of each path, beside the hash alone.
fn paths(criterion: &mut Criterion) {
    let paths = inputs::paths(ROWS);
    let mut group = criterion.benchmark_group("target 14: optimize_paths");
    group.throughput(Throughput::Elements(ROWS as u64)).sample_size(20);
    group.bench_function("ours, Arrow to Arrow", |bencher| {
        bencher.iter(|| optimize_paths(black_box(&paths)).unwrap());
    });
    group.bench_function("limit: murmur alone", |bencher| {
        bencher.iter(|| {
            let hash = |path: &str| mur3::murmurhash3_x86_32(path.as_bytes(), 0);
            black_box(&paths).iter().flatten().map(hash).fold(0u32, u32::wrapping_add)
        });
    });
    group.finish();
}

/// Target 15, at least half of the bandwidth of a copy: padded keys, beside a copy of as many bytes.
fn keys(criterion: &mut Criterion) {
    let (namespaces, names) = names(ROWS);
    let sizes = NameSizes::default();
    let encode = || encode_keys(ObjectKind::Table, &namespaces, Some(&names), sizes).unwrap();
    let keys = encode();
    let bytes = keys.value_data();
    let mut group = criterion.benchmark_group("target 15: encode_table_keys");
    group.throughput(Throughput::Bytes(bytes.len() as u64)).sample_size(20);
    group.bench_function("ours, Arrow to Arrow", |bencher| bencher.iter(encode));
    group.bench_function("limit: a copy into new memory", |bencher| {
        bencher.iter(|| black_box(bytes).to_vec());
    });
    group.finish();
}

/// Target 16, at most 30 and 200 microseconds: decode and one search, from the bytes of the file.
fn nodes(criterion: &mut Criterion) {
    let draft = node();
    let wanted: Vec<&str> = draft.rows.iter().map(|row| &*row.key).collect();
    let mut group = criterion.benchmark_group("target 16: a node of 128 rows and 172 messages");
    for (name, compression) in [("uncompressed", Compression::None), ("ZSTD", Compression::Zstd)] {
        let bytes: Bytes = encode(&[], &draft, ORDER, compression).unwrap().bytes;
        println!("{name}: {} bytes", bytes.len());
        let mut turn = 0;
        group.bench_function(format!("decode and search once, {name}"), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let node = decode(bytes.clone(), "node", Some(ORDER)).unwrap();
                assert!(!matches!(node.search(wanted[turn % wanted.len()]), Found::Absent));
            });
        });
        group.bench_function(format!("encode, {name}"), |bencher| {
            bencher.iter(|| encode(&[], black_box(&draft), ORDER, compression).unwrap());
        });
        group.bench_function(format!("limit: checksum of the file, {name}"), |bencher| {
            bencher.iter(|| xxhash_rust::xxh3::xxh3_64(black_box(&bytes)));
        });
    }
    group.finish();
}

criterion_group!(benches, paths, keys, nodes);
criterion_main!(benches);

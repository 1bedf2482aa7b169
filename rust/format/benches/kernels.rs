//! How many instructions the kernels take: counted by valgrind, so nearly the same on every machine.
//!
//! `make bench-check` compares them with those in `benches/kernels.json`; benches/README.md says more.

mod inputs;

use std::hint::black_box;

use arrow_array::StringArray;
use bytes::Bytes;
use gungraun::prelude::*;
use trinitylake_format::batch::{decode_keys, encode_keys, optimize_paths};
use trinitylake_format::key::{NameSizes, ObjectKind};
use trinitylake_format::node::codec::{Compression, decode, encode};
use trinitylake_format::node::draft::{Draft, Message};
use trinitylake_format::node::{Found, Node};

use inputs::{ORDER, data_paths, key, leaf_and_messages, names, node, paths};

/// Few enough for one thread.
const ROWS: usize = 10_000;

fn file(compression: Compression) -> Bytes {
    encode(&[], &node(), ORDER, compression).unwrap().bytes
}

fn read_node() -> Node {
    decode(file(Compression::None), "node", Some(ORDER)).unwrap()
}

fn keys(rows: usize) -> StringArray {
    let (namespaces, names) = names(rows);
    encode_keys(ObjectKind::Table, &namespaces, Some(&names), NameSizes::default()).unwrap()
}

#[library_benchmark]
#[bench::definitions(paths(ROWS))]
#[bench::data_files(data_paths(ROWS))]
fn optimize_10k_paths(paths: StringArray) -> StringArray {
    black_box(optimize_paths(black_box(&paths)).unwrap())
}

#[library_benchmark]
#[bench::tables(names(ROWS))]
fn encode_10k_keys(names: (StringArray, StringArray)) -> StringArray {
    let sizes = NameSizes::default();
    black_box(encode_keys(ObjectKind::Table, black_box(&names.0), Some(&names.1), sizes).unwrap())
}

#[library_benchmark]
#[bench::tables(keys(ROWS))]
fn decode_10k_keys(keys: StringArray) {
    black_box(decode_keys(black_box(&keys), NameSizes::default()).unwrap());
}

#[library_benchmark]
#[bench::plain(file(Compression::None), key(640))]
#[bench::lz4(file(Compression::Lz4), key(640))]
#[bench::zstd(file(Compression::Zstd), key(640))]
fn decode_node_and_search_once(file: Bytes, key: String) {
    let node = decode(black_box(file), "node", Some(ORDER)).unwrap();
    assert!(matches!(black_box(node.search(&key)), Found::Row(_)));
}

#[library_benchmark]
#[bench::plain(node(), Compression::None)]
#[bench::lz4(node(), Compression::Lz4)]
#[bench::zstd(node(), Compression::Zstd)]
fn encode_node(draft: Draft, compression: Compression) {
    black_box(encode(&[], black_box(&draft), ORDER, compression).unwrap());
}

#[library_benchmark]
#[bench::root_like(read_node())]
fn take_node_apart(node: Node) -> Draft {
    black_box(Draft::of(black_box(&node), 1))
}

#[library_benchmark]
#[bench::of_172_messages(node())]
fn absorb_buffer(mut draft: Draft) -> Draft {
    draft.absorb();
    black_box(draft)
}

#[library_benchmark]
#[bench::of_172_messages(node())]
fn take_messages_of_the_heaviest_child(mut draft: Draft) -> (Draft, Vec<Message>) {
    let child = draft.heaviest_child().unwrap();
    let messages = draft.take_messages_of(child);
    black_box((draft, messages))
}

#[library_benchmark]
#[bench::of_64_messages(leaf_and_messages())]
fn apply_messages_to_leaf((mut leaf, messages): (Draft, Vec<Message>)) -> Draft {
    leaf.apply_to_leaf(messages);
    black_box(leaf)
}

library_benchmark_group!(name = columns, benchmarks = [optimize_10k_paths, encode_10k_keys, decode_10k_keys]);
library_benchmark_group!(
    name = nodes,
    benchmarks = [
        decode_node_and_search_once,
        encode_node,
        take_node_apart,
        absorb_buffer,
        take_messages_of_the_heaviest_child,
        apply_messages_to_leaf
    ]
);
main!(library_benchmark_groups = [columns, nodes]);

//! What kernels are measured with, by instructions (`kernels`) and by time (`format` of the crate trinitylake).
#![allow(dead_code, reason = "each benchmark takes what it needs")]

use arrow_array::StringArray;
use trinitylake_format::key::NameSizes;
use trinitylake_format::node::draft::{Draft, Message, Row};
use trinitylake_format::path::optimize;

/// Rows of the key table, and messages in the buffer, of [`node`].
pub const ORDER: usize = 128;
pub const MESSAGES: usize = 172;

/// Paths of definitions as writers make them, before they are spread by their hash.
pub fn paths(rows: usize) -> StringArray {
    StringArray::from_iter_values(
        (0..rows).map(|i| format!("table-customers_{i:07}-sales-5f0c7b1e-{i:012}.binpb")),
    )
}

/// Paths of data files, with slashes in them.
pub fn data_paths(rows: usize) -> StringArray {
    StringArray::from_iter_values(
        (0..rows)
            .map(|i| format!("sales/customers/data/region=eu/day={:03}/part-{i:012}.parquet", i / 100 % 365)),
    )
}

/// Namespaces and tables, a thousand in each namespace.
pub fn names(rows: usize) -> (StringArray, StringArray) {
    (
        StringArray::from_iter_values((0..rows).map(|i| format!("namespace_{:05}", i / 1000))),
        StringArray::from_iter_values((0..rows).map(|i| format!("table_{i:07}"))),
    )
}

pub fn key(i: usize) -> String {
    NameSizes::default().table_key("namespace_00001", &format!("table_{i:07}")).unwrap()
}

fn location(i: usize) -> String {
    // Digits that do not compress better than those of a real id.
    let id = u128::from(i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    optimize(&format!("table-table_{i:07}-namespace_00001-{id:032x}.binpb"))
}

/// A message for key `i`.
pub fn message(i: usize) -> Message {
    let location_of = Some(location(i + 2_000_000).as_str().into());
    Message::new(key(i).as_str().into(), location_of, location(i + 3_000_000)[60..96].into())
}

/// An inner node as it is after many commits.
pub fn node() -> Draft {
    Draft {
        height: 1,
        rows: (1..ORDER)
            .map(|i| Row { key: key(i * 10).as_str().into(), value: location(i).as_str().into() })
            .collect(),
        children: (0..ORDER).map(|i| location(i + 1_000_000).as_str().into()).collect(),
        buffer: (0..MESSAGES).map(|i| message(i * 7 % 1280 * 10 + 5)).collect(),
    }
}

/// A leaf, and messages that go into it: sets of new keys and of present ones, and deletes.
pub fn leaf_and_messages() -> (Draft, Vec<Message>) {
    let leaf = Draft { height: 0, children: Vec::new(), buffer: Vec::new(), ..node() };
    let messages = (0..64).map(|i| {
        let mut message = message(i * 37 % 1280);
        message.value = (i % 4 > 0).then(|| location(i + 4_000_000).as_str().into());
        message
    });
    (leaf, messages.collect())
}

//! One decoded node of the tree: immutable, four Arrow columns, searched in place.
//!
//! Rows, top to bottom (format §5): system rows; the key table with exactly N rows, the first of which has neither key
//! nor value; the write buffer, oldest message first. A node that is being changed is a [`mutable_node::MutableNode`];
//! [`codec`] encodes and decodes.
//!
//! `validate` checks the invariants of every node that is read or written.

pub mod codec;
mod columns;
mod gc_references;
pub mod mutable_node;
mod validate;
pub mod zstd;

use std::sync::{Arc, OnceLock};

use arrow_array::{Array, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

/// System key: the number of keys in the table. Every node has it.
pub const N_KEYS: &str = "n_keys";
/// System key: the height of the node, 0 for leaves. Nodes of other writers may lack it.
pub const HEIGHT: &str = "height";
pub const CREATED_AT_MILLIS: &str = "created_at_millis";
/// An extension: the id in the file name of a node that is not a root, so that a renamed file is detected.
pub const NODE_ID: &str = "node_id";

/// Memory of the buffers of the four columns (offsets, bytes, validity) in addition to their content.
const BUFFERS_OVERHEAD_SIZE_BYTES: usize = 12 * 128;

/// The columns of a node file. All of them are strings.
pub const COLUMNS: [&str; 4] = ["key", "value", "pnode", "txn"];

pub fn node_schema() -> SchemaRef {
    static SCHEMA: OnceLock<SchemaRef> = OnceLock::new();
    SCHEMA
        .get_or_init(|| {
            let field = |(i, name): (usize, &str)| {
                Field::new(name, DataType::Utf8, true)
                    .with_metadata([("id".to_string(), (i + 1).to_string())].into_iter().collect())
            };
            Arc::new(Schema::new(COLUMNS.into_iter().enumerate().map(field).collect::<Vec<_>>()))
        })
        .clone()
}

/// Result of looking up a key in one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// The last message for the key: its value, or `None` for a delete.
    Message(Option<&'a str>),
    /// The node's own row.
    Row(&'a str),
    /// The key is not in this node; the search continues in the child with this index.
    Child(usize),
    /// The key is not in this node, which has no child.
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRef<'a> {
    pub key: &'a str,
    pub value: Option<&'a str>,
    pub txn: &'a str,
}

#[derive(Debug)]
pub struct Node {
    keys: StringArray,
    values: StringArray,
    children: StringArray,
    txns: StringArray,
    /// Index of the null row: the first row of the key table, which has neither key nor value.
    table: usize,
    n_keys: usize,
    /// Number of rows of the key table, N.
    order: usize,
    height: Option<u32>,
    /// Row numbers of the last message of each key, sorted by key.
    buffer_index: OnceLock<Box<[u32]>>,
}

impl Node {
    pub fn order(&self) -> usize {
        self.order
    }

    pub fn n_keys(&self) -> usize {
        self.n_keys
    }

    /// Height, 0 for a leaf; `None` for an inner node whose writer did not record it.
    pub fn height(&self) -> Option<u32> {
        if self.is_leaf() { Some(0) } else { self.height }
    }

    pub fn is_leaf(&self) -> bool {
        self.children.is_null(self.table)
    }

    pub fn key(&self, i: usize) -> &str {
        self.keys.value(self.table + 1 + i)
    }

    pub fn value(&self, i: usize) -> &str {
        self.values.value(self.table + 1 + i)
    }

    /// Path of child `i`, whose keys are between key `i - 1` and key `i`. Only for inner nodes.
    pub fn child(&self, i: usize) -> &str {
        self.children.value(self.table + i)
    }

    /// Key and value columns of the key table, without its null row.
    pub fn table_columns(&self) -> (StringArray, StringArray) {
        (self.keys.slice(self.table + 1, self.n_keys), self.values.slice(self.table + 1, self.n_keys))
    }

    /// Key, value and child columns of all rows of the key table, including its null row and its empty rows.
    pub fn table_rows(&self) -> (StringArray, StringArray, StringArray) {
        let rows = |column: &StringArray| column.slice(self.table, self.order);
        (rows(&self.keys), rows(&self.values), rows(&self.children))
    }

    pub fn system_rows(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.table).map(|row| (self.keys.value(row), self.values.value(row)))
    }

    pub fn system(&self, key: &str) -> Option<&str> {
        self.system_rows().find_map(|(name, value)| (name == key).then_some(value))
    }

    pub fn n_messages(&self) -> usize {
        self.keys.len() - self.table - self.order
    }

    /// Message `i`, oldest first.
    pub fn message(&self, i: usize) -> MessageRef<'_> {
        let row = self.table + self.order + i;
        MessageRef {
            key: self.keys.value(row),
            value: self.values.is_valid(row).then(|| self.values.value(row)),
            txn: self.txns.value(row),
        }
    }

    fn message_key(&self, i: usize) -> &str {
        self.keys.value(self.table + self.order + i)
    }

    pub fn messages(&self) -> impl DoubleEndedIterator<Item = MessageRef<'_>> {
        (0..self.n_messages()).map(|i| self.message(i))
    }

    /// The last message of each key, in key order.
    pub fn newest_messages(&self) -> impl Iterator<Item = MessageRef<'_>> {
        self.buffer_index().iter().map(|i| self.message(*i as usize))
    }

    fn buffer_index(&self) -> &[u32] {
        self.buffer_index.get_or_init(|| {
            let mut rows: Vec<u32> = (0..self.n_messages() as u32).collect();
            let key = |row: u32| self.message_key(row as usize);
            // The sort is stable, so that messages with equal keys keep their order. Then only the last message of each
            // key is kept.
            rows.sort_by(|a, b| key(*a).cmp(key(*b)));
            let mut newest: Vec<u32> = Vec::with_capacity(rows.len());
            for row in rows {
                match newest.last_mut() {
                    Some(last) if key(*last) == key(row) => *last = row,
                    _ => newest.push(row),
                }
            }
            newest.into()
        })
    }

    fn last_message(&self, key: &str) -> Option<usize> {
        let index = self.buffer_index();
        let found = index.binary_search_by(|row| self.message_key(*row as usize).cmp(key)).ok()?;
        Some(index[found] as usize)
    }

    /// Returns the index of the last message for a key, and whether the message sets a value.
    pub fn find_message(&self, key: &str) -> Option<(u32, bool)> {
        self.last_message(key).map(|i| (i as u32, self.message(i).value.is_some()))
    }

    /// Searches the key table. `Ok(i)` if key `i` is equal; `Err(i)` if the key is before key `i`, i.e. in child `i`.
    pub fn search_table(&self, key: &str) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.n_keys);
        while low < high {
            let middle = (low + high) / 2;
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Looks up a key. Returns the last message for it, otherwise its row, otherwise the child to search.
    pub fn search(&self, key: &str) -> Found<'_> {
        if let Some(i) = self.last_message(key) {
            return Found::Message(self.message(i).value);
        }
        match self.search_table(key) {
            Ok(i) => Found::Row(self.value(i)),
            Err(_) if self.is_leaf() => Found::Absent,
            Err(i) => Found::Child(i),
        }
    }

    /// Size in memory, for the cache.
    pub fn memory_size_bytes(&self) -> usize {
        // Computed from the strings, because the columns may share one buffer, which is the whole file.
        let columns = [&self.keys, &self.values, &self.children, &self.txns];
        let texts: usize = columns.iter().map(|column| column.value_data().len()).sum();
        // Includes the index even before it is built, because the size of a cached node must not change.
        texts + self.keys.len() * 18 + self.n_messages() * 4 + size_of::<Node>() + BUFFERS_OVERHEAD_SIZE_BYTES
    }
}

#[cfg(test)]
mod tests;

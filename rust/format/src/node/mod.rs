//! One decoded node of the tree: immutable, four Arrow columns, searched in place.
//!
//! Rows, top to bottom (format §5): system rows; the key table with exactly N rows, the first of which has neither key
//! nor value; the write buffer, oldest message first. A node that is being changed is a [`mutable_node::MutableNode`]; [`codec`]
//! encodes and decodes.
//!
//! Invariants, checked by [`Node::from_batch`] on every read and every write:
//! 1. keys of the key table ascend strictly; the first `n_keys` rows after the null row have a key and a value, all
//!    others are null;
//! 2. a node has a child left of its first key and one right of every key, or no child;
//! 3. a message has a key and a transaction, but no child.
//!
//! Not checked here, because that needs other nodes: that the keys are between the pivots of the parent, and that all
//! leaves have the same height (see `tree::invariant`).

pub mod codec;
mod columns;
pub mod mutable_node;
pub mod zstd;

use std::sync::{Arc, OnceLock};

use arrow_array::{Array, RecordBatch, StringArray, cast::AsArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::path::{node_id, parse_id};
use trinitylake_base::error::{Error, Result};

/// System key: the number of keys in the table. Every node has it.
pub const N_KEYS: &str = "n_keys";
/// System key: the height of the node, 0 for leaves. Nodes of other writers may lack it.
pub const HEIGHT: &str = "height";
pub const CREATED_AT_MILLIS: &str = "created_at_millis";
/// An extension: the id in the file name of a node that is not a root, so that a renamed file is detected.
pub const NODE_ID: &str = "node_id";

/// Memory of the buffers of the four columns (offsets, text, validity) in addition to their content.
const BUFFERS_OVERHEAD_SIZE_BYTES: usize = 12 * 128;

/// The columns of a node file. All of them are text.
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
    /// Index of the null row, at which the key table begins.
    table: usize,
    n_keys: usize,
    /// Number of rows of the key table, N.
    order: usize,
    height: Option<u32>,
    /// Row numbers of the last message of each key, sorted by key.
    buffer_index: OnceLock<Box<[u32]>>,
}

impl Node {
    /// Creates a node from the rows of a node file. `order` is the N of the lakehouse, if known.
    pub fn from_batch(batch: &RecordBatch, path: &str, order: Option<usize>) -> Result<Node> {
        let corrupt = |message: String| Error::corrupt(path, message);
        check_columns(batch.schema_ref()).map_err(corrupt)?;
        let column = |i: usize| batch.column(i).as_string::<i32>().clone();
        let (keys, values, children, txns) = (column(0), column(1), column(2), column(3));

        let rows = batch.num_rows();
        let table = (0..rows)
            .find(|&row| keys.is_null(row) && values.is_null(row))
            .ok_or_else(|| corrupt("there is no key table: no row has neither key nor value".into()))?;
        let mut n_keys = None;
        let mut height = None;
        for row in 0..table {
            if keys.is_null(row) || values.is_null(row) || !children.is_null(row) || !txns.is_null(row) {
                return Err(corrupt(format!(
                    "row {row} is not a system row, yet stands above the key table"
                )));
            }
            match keys.value(row) {
                N_KEYS => n_keys = Some(number(N_KEYS, values.value(row)).map_err(corrupt)?),
                HEIGHT => height = Some(number(HEIGHT, values.value(row)).map_err(corrupt)?),
                _ => {}
            }
        }
        let n_keys: usize = n_keys.ok_or_else(|| corrupt(format!("the system row {N_KEYS} is missing")))?;
        let first_message = (table..rows).find(|&row| !txns.is_null(row)).unwrap_or(rows);
        let actual_order = first_message - table;
        if order.is_some_and(|order| order != actual_order) {
            let order = order.unwrap_or_default();
            return Err(corrupt(format!(
                "the key table has {actual_order} rows, this lakehouse's order is {order}"
            )));
        }
        let node = Node {
            keys,
            values,
            children,
            txns,
            table,
            n_keys,
            order: actual_order,
            height,
            buffer_index: OnceLock::new(),
        };
        node.check(rows).map_err(corrupt)?;
        Ok(node)
    }

    fn check(&self, rows: usize) -> Result<(), String> {
        if self.n_keys >= self.order {
            return Err(format!("{N_KEYS} is {}, a table of {} rows holds fewer", self.n_keys, self.order));
        }
        let inner = self.children.is_valid(self.table);
        if let Some(height) = self.height
            && (height > 0) != inner
        {
            return Err(format!(
                "height is {height}, yet the node has {} child",
                if inner { "a" } else { "no" }
            ));
        }
        for row in self.table + 1..self.table + self.order {
            let filled = row <= self.table + self.n_keys;
            if self.keys.is_valid(row) != filled || self.values.is_valid(row) != filled {
                return Err(format!("row {row} contradicts {N_KEYS} = {}", self.n_keys));
            }
            if self.children.is_valid(row) != (filled && inner) {
                return Err(format!("row {row}: a node has a child beside every key or none at all"));
            }
            if filled && row > self.table + 1 && self.keys.value(row - 1) >= self.keys.value(row) {
                return Err(format!("the keys of rows {} and {row} do not ascend", row - 1));
            }
        }
        for row in self.table + self.order..rows {
            if self.keys.is_null(row) || self.txns.is_null(row) || self.children.is_valid(row) {
                return Err(format!("row {row} stands in the write buffer and is not a message"));
            }
        }
        Ok(())
    }

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

    /// The id in the node, if it differs from the id in the file name.
    fn other_name(&self, path: &str) -> Option<&str> {
        let named = node_id(path)?;
        self.system(NODE_ID).filter(|held| parse_id(held) != Some(named))
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

    /// The locations that garbage collection must consider referenced by this node (format §9): for each key the
    /// location in its newest message here, or that in its row if there is no message. Messages in nodes above hide
    /// nothing.
    pub fn named_locations(&self) -> impl Iterator<Item = (&str, &str)> {
        let has_message = |key: &str| {
            let index = self.buffer_index();
            index.binary_search_by(|i| self.message_key(*i as usize).cmp(key)).is_ok()
        };
        let rows = (0..self.n_keys()).map(|row| (self.key(row), self.value(row)));
        let rows = rows.filter(move |(key, _)| !has_message(key));
        rows.chain(self.newest_messages().filter_map(|message| Some((message.key, message.value?))))
    }

    fn buffer_index(&self) -> &[u32] {
        self.buffer_index.get_or_init(|| {
            let mut rows: Vec<u32> = (0..self.n_messages() as u32).collect();
            let key = |row: u32| self.message_key(row as usize);
            // The sort is stable, so that equal keys keep their order; then only the last of each is kept.
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

    /// The index of the last message for a key, and whether it sets a value.
    pub fn find_message(&self, key: &str) -> Option<(u32, bool)> {
        self.last_message(key).map(|i| (i as u32, self.message(i).value.is_some()))
    }

    /// `Ok(i)` if key `i` is equal; `Err(i)` if the key belongs before key `i`, i.e. into child `i`.
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

    /// Looks up a key: the last message for it, otherwise the own row, otherwise the child to search.
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
        // Size of the texts, the offsets and the validity. The columns may share one buffer, which is the whole file.
        let columns = [&self.keys, &self.values, &self.children, &self.txns];
        let texts: usize = columns.iter().map(|column| column.value_data().len()).sum();
        // The index is counted even before it is built, because a cache needs sizes that never change.
        texts + self.keys.len() * 18 + self.n_messages() * 4 + size_of::<Node>() + BUFFERS_OVERHEAD_SIZE_BYTES
    }
}

fn check_columns(schema: &Schema) -> Result<(), String> {
    let actual: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    if actual != COLUMNS {
        return Err(format!("the columns are {actual:?}, a node file has {COLUMNS:?}"));
    }
    match schema.fields().iter().find(|field| field.data_type() != &DataType::Utf8) {
        Some(field) => Err(format!("column {} is {}, not Utf8", field.name(), field.data_type())),
        None => Ok(()),
    }
}

fn number<T: std::str::FromStr>(key: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("the system row {key} is {text:?}, not a number"))
}

#[cfg(test)]
mod tests;

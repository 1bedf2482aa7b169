//! The invariants of one node, checked on every read and every write (format §5):
//! 1. keys of the key table ascend strictly; the first `n_keys` rows after the null row have a key and a value, all
//!    others are null;
//! 2. a node has a child left of its first key and one right of every key, or no child;
//! 3. a message has a key and a transaction, but no child.
//!
//! `tree::invariant` checks the invariants between nodes: that the keys are between two keys of the parent, and that
//! all leaves have the same height.

use std::sync::OnceLock;

use arrow_array::{Array, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Schema};

use super::{COLUMNS, HEIGHT, N_KEYS, NODE_ID, Node};
use crate::file_names::{node_id, parse_id};
use trinitylake_base::error::{Error, Result};

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
                return Err(corrupt(format!("row {row} is above the key table, but is not a system row")));
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
            return Err(corrupt(format!("the key table has {actual_order} rows, this lakehouse's order is {order}")));
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
            return Err(format!(
                "{N_KEYS} is {}, but a key table of {} rows holds fewer keys",
                self.n_keys, self.order
            ));
        }
        let inner = self.children.is_valid(self.table);
        if let Some(height) = self.height
            && (height > 0) != inner
        {
            return Err(format!("height is {height}, but the node has {} child", if inner { "a" } else { "no" }));
        }
        for row in self.table + 1..self.table + self.order {
            let filled = row <= self.table + self.n_keys;
            if self.keys.is_valid(row) != filled || self.values.is_valid(row) != filled {
                return Err(format!("row {row} contradicts {N_KEYS} = {}", self.n_keys));
            }
            if self.children.is_valid(row) != (filled && inner) {
                return Err(format!("row {row}: a node must have a child next to every key, or no child"));
            }
            if filled && row > self.table + 1 && self.keys.value(row - 1) >= self.keys.value(row) {
                return Err(format!("the keys of rows {} and {row} do not ascend", row - 1));
            }
        }
        for row in self.table + self.order..rows {
            if self.keys.is_null(row) || self.txns.is_null(row) || self.children.is_valid(row) {
                return Err(format!("row {row} is in the write buffer, but is not a message"));
            }
        }
        Ok(())
    }

    /// The id in the node, if it differs from the id in the file name.
    pub(super) fn other_name(&self, path: &str) -> Option<&str> {
        let named = node_id(path)?;
        self.system(NODE_ID).filter(|held| parse_id(held) != Some(named))
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

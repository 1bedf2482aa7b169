//! Bulk build: a whole tree from sorted keys, bottom up.
//!
//! The number of keys is known, so the nodes of a level get equal shares and none is underfull. The shares depend only
//! on this number. Therefore several machines that write parts of the leaves ([`super::distributed_bulk_build`]) write
//! the same leaves as one machine, and [`build_above`] builds the same tree above them.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, StringArray};
use futures::{StreamExt, TryStreamExt, stream};

use super::node_source::PARALLEL_REQUESTS;
use crate::split_and_merge::min_keys;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::config::TreeConfig;
use trinitylake_format::file_names::node_path;
use trinitylake_format::node::codec::encode;
use trinitylake_format::node::mutable_node::{MutableNode, Row, Text, node_system_rows};
use trinitylake_storage::Storage;

/// Number of keys of a new node: seven eighths of the maximum. This leaves space for some inserts before a leaf splits,
/// without many more leaves for a listing to read.
fn fill(order: usize) -> usize {
    ((order - 1) * 7 / 8).max(1)
}

/// Distribution of the rows of one level to its nodes. A row between two nodes is their separator, and moves to the
/// level above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub rows: usize,
    pub nodes: usize,
}

impl Level {
    pub fn new(rows: usize, order: usize) -> Level {
        // With more than `most` nodes, a node would have fewer keys than the minimum, which could happen if the order
        // is small.
        let most = (rows + 1) / (min_keys(order) + 1);
        let nodes = if rows < order { 1 } else { (rows + 1).div_ceil(fill(order) + 1).clamp(2, most) };
        Level { rows, nodes }
    }

    /// Returns the first row of a node. `node` may be one above the last node.
    pub fn start(&self, node: usize) -> usize {
        let keys = self.rows - (self.nodes - 1);
        // Counts the rows of all nodes to the left, of which the first ones have one more row, and one separator for
        // each of these nodes.
        node * (keys / self.nodes) + node.min(keys % self.nodes) + node
    }

    pub fn rows_of(&self, node: usize) -> Range<usize> {
        self.start(node)..self.separator(node)
    }

    /// Returns the row of the separator after a node. The last node has no separator: returns the number of rows.
    pub fn separator(&self, node: usize) -> usize {
        self.start(node + 1) - 1
    }

    /// Returns the first node that starts at this row or later; the number of nodes if no node does.
    pub fn node_from(&self, row: usize) -> usize {
        let (mut low, mut high) = (0, self.nodes);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle) < row { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// All separators.
    fn separators(&self) -> impl Iterator<Item = usize> {
        let level = *self;
        (0..self.nodes - 1).map(move |node| level.separator(node))
    }
}

/// Writer of new nodes.
#[derive(Clone, Copy, Debug)]
pub struct NodeWriter<'a> {
    pub storage: &'a dyn Storage,
    pub environment: &'a dyn Environment,
    pub config: &'a TreeConfig,
}

impl NodeWriter<'_> {
    /// Writes nodes, several at once, and returns their paths in the same order.
    pub async fn write(&self, drafts: impl Iterator<Item = MutableNode> + Send) -> Result<Vec<Text>> {
        let now = self.environment.now_millis().to_string();
        stream::iter(drafts.map(|draft| {
            let path: Text = node_path(self.environment.uuid()).into();
            let system = node_system_rows(&path, now.clone());
            let encoded = encode(&system, &draft, self.config.order, self.config.compression);
            async move {
                self.storage.put_unique(&path, encoded?.bytes).await?;
                Ok::<Text, Error>(path)
            }
        }))
        .buffered(PARALLEL_REQUESTS)
        .try_collect()
        .await
    }
}

pub fn leaf(rows: impl Iterator<Item = Row>) -> MutableNode {
    MutableNode { rows: rows.collect(), ..MutableNode::default() }
}

/// Builds a tree from `keys` in strictly ascending order. Writes all nodes except the root, and returns the root.
pub async fn build(writer: &NodeWriter<'_>, keys: &StringArray, locations: &StringArray) -> Result<MutableNode> {
    if keys.len() != locations.len() || keys.null_count() + locations.null_count() > 0 {
        return Err(Error::InvalidArgument("a bulk build takes one location for each key and no nulls".into()));
    }
    if let Some(i) = (1..keys.len()).find(|i| keys.value(i - 1) >= keys.value(*i)) {
        return Err(does_not_ascend(keys.value(i)));
    }
    let row = |i: usize| Row { key: keys.value(i).into(), value: locations.value(i).into() };
    let level = Level::new(keys.len(), writer.config.order);
    if level.nodes == 1 {
        return Ok(leaf((0..keys.len()).map(row)));
    }
    let leaves = writer.write((0..level.nodes).map(|node| leaf(level.rows_of(node).map(row)))).await?;
    build_above(writer, leaves, level.separators().map(row).collect()).await
}

/// Builds the levels above existing leaves from the separators between them. Writes all nodes except the root, and
/// returns the root.
pub async fn build_above(writer: &NodeWriter<'_>, leaves: Vec<Text>, separators: Vec<Row>) -> Result<MutableNode> {
    let (mut children, mut rows) = (leaves, separators);
    let mut height = 1;
    loop {
        let level = Level::new(rows.len(), writer.config.order);
        if level.nodes == 1 {
            return Ok(MutableNode { height, rows, children, buffer: Vec::new() });
        }
        let draft = |node: usize| {
            let own = level.rows_of(node);
            MutableNode {
                height,
                rows: rows[own.clone()].to_vec(),
                children: children[own.start..=own.end].to_vec(),
                buffer: Vec::new(),
            }
        };
        children = writer.write((0..level.nodes).map(draft)).await?;
        rows = level.separators().map(|row| rows[row].clone()).collect();
        height += 1;
    }
}

pub fn does_not_ascend(key: &str) -> Error {
    Error::InvalidArgument(format!(
        "the keys of a bulk build must ascend strictly; {:?} is not greater than the key before it",
        key.trim_end()
    ))
}

/// Merges two sorted runs. For a key in both, takes the location of `right`, or returns the error of `on_duplicate`.
pub fn merge_runs(
    left: (&StringArray, &StringArray),
    right: (&StringArray, &StringArray),
    on_duplicate: impl Fn(&str) -> Result<()>,
) -> Result<(Arc<StringArray>, Arc<StringArray>)> {
    let (mut i, mut j) = (0, 0);
    let mut keys = Vec::with_capacity(left.0.len() + right.0.len());
    let mut locations = Vec::with_capacity(keys.capacity());
    while i < left.0.len() || j < right.0.len() {
        let take_left = match (i < left.0.len(), j < right.0.len()) {
            (true, true) => match left.0.value(i).cmp(right.0.value(j)) {
                std::cmp::Ordering::Equal => {
                    on_duplicate(left.0.value(i))?;
                    i += 1;
                    false
                }
                order => order.is_lt(),
            },
            (from_left, _) => from_left,
        };
        let (run, position) = if take_left { (left, &mut i) } else { (right, &mut j) };
        keys.push(run.0.value(*position));
        locations.push(run.1.value(*position));
        *position += 1;
    }
    Ok((Arc::new(StringArray::from_iter_values(keys)), Arc::new(StringArray::from_iter_values(locations))))
}

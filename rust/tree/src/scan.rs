//! Scan: iterates over keys in order, batch by batch (rule 11).
//!
//! Messages of a node are newer than all rows and messages in the nodes below it. On the way down, each frame carries
//! the newest message of every key in its range. A child without rows is visited if it has pending messages. A leaf
//! without pending messages is copied as a slice.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::StringArray;
use arrow_array::builder::StringBuilder;

use super::MAX_HEIGHT;
use super::node_source::{Nodes, PARALLEL_REQUESTS};
use super::search::{child_height, cycle};
use crate::split_and_merge::min_keys;
use trinitylake_base::error::Result;
use trinitylake_format::key::KeyRange;
use trinitylake_format::node::Node;
use trinitylake_format::node::mutable_node::Text;

/// Approximate maximum number of rows of a batch, chosen so that a batch stays in the processor's cache.
pub const BATCH_ROWS: usize = 16_384;

/// Keys and locations of consecutive objects; `locations` is `None` if only keys were requested.
#[derive(Debug)]
pub struct ScanBatch {
    pub keys: StringArray,
    pub locations: Option<StringArray>,
}

type Pending = Vec<(Text, Option<Text>)>;

#[derive(Debug)]
struct Frame {
    node: Arc<Node>,
    /// The newest message of each key from the nodes above, for the whole range of the node.
    pending: Pending,
    /// Even positions are children, odd ones rows: `2 i` is child i, `2 i + 1` is row i.
    position: usize,
    end: usize,
    /// The next children, which were loaded in advance.
    ahead: VecDeque<Arc<Node>>,
}

/// A running scan. Dropping it stops it.
#[derive(Debug)]
pub struct Scan<N: Nodes> {
    nodes: Arc<N>,
    range: KeyRange,
    remaining: usize,
    stack: Vec<Frame>,
    keys: StringBuilder,
    locations: Option<StringBuilder>,
    rows: usize,
}

impl<N: Nodes> Scan<N> {
    pub fn new(nodes: Arc<N>, root: Arc<Node>, range: KeyRange, limit: Option<usize>, with_locations: bool) -> Scan<N> {
        let mut scan = Scan {
            nodes,
            range,
            remaining: limit.unwrap_or(usize::MAX),
            stack: Vec::new(),
            keys: StringBuilder::new(),
            locations: with_locations.then(StringBuilder::new),
            rows: 0,
        };
        if scan.remaining > 0 {
            scan.enter(root, Vec::new());
        }
        scan
    }

    /// Returns the next rows in key order, at most about [`BATCH_ROWS`]; `None` at the end.
    pub async fn next_batch(&mut self) -> Result<Option<ScanBatch>> {
        while self.rows < BATCH_ROWS && self.remaining > 0 {
            let Some(frame) = self.stack.last_mut() else { break };
            if frame.node.is_leaf() {
                if let Some(leaf) = self.stack.pop() {
                    self.emit_leaf(&leaf.node, &leaf.pending);
                }
            } else if frame.position >= frame.end {
                self.stack.pop();
            } else if frame.position % 2 == 1 {
                let row = frame.position / 2;
                frame.position += 1;
                let node = frame.node.clone();
                let key = node.key(row);
                match frame.pending.binary_search_by(|(pending, _)| (**pending).cmp(key)) {
                    Ok(found) => {
                        if let Some(value) = frame.pending[found].1.clone() {
                            self.emit(key, &value);
                        }
                    }
                    Err(_) => self.emit(key, node.value(row)),
                }
            } else {
                self.descend().await?;
            }
        }
        if self.rows == 0 {
            return Ok(None);
        }
        self.rows = 0;
        Ok(Some(ScanBatch { keys: self.keys.finish(), locations: self.locations.as_mut().map(StringBuilder::finish) }))
    }

    async fn descend(&mut self) -> Result<()> {
        if self.stack.len() > MAX_HEIGHT as usize {
            return Err(cycle());
        }
        let remaining = self.remaining;
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        let child = frame.position / 2;
        if frame.ahead.is_empty() {
            let height = child_height(&frame.node);
            // Several leaves are loaded at once, but only one inner node.
            let window = match height {
                Some(0) => (remaining / min_keys(frame.node.order()).max(1)).saturating_add(1).min(PARALLEL_REQUESTS),
                _ => 1,
            };
            let last = frame.end.div_ceil(2).min(child + window);
            let paths: Vec<&str> = (child..last).map(|i| frame.node.child(i)).collect();
            frame.ahead = self.nodes.load_many(&paths, height).await?.into();
        }
        let Some(node) = frame.ahead.pop_front() else { return Ok(()) };
        frame.position += 1;
        let from = match child {
            0 => 0,
            i => frame.pending.partition_point(|(key, _)| &**key <= frame.node.key(i - 1)),
        };
        let to = if child < frame.node.n_keys() {
            frame.pending.partition_point(|(key, _)| &**key < frame.node.key(child))
        } else {
            frame.pending.len()
        };
        let pending = frame.pending[from..to].to_vec();
        self.enter(node, pending);
        Ok(())
    }

    /// Pushes a node onto the stack. A message of the node itself is used only if the nodes above have no message for
    /// its key.
    fn enter(&mut self, node: Arc<Node>, pending: Pending) {
        let pending = overlay(&node, pending, &self.range);
        let position = match node.search_table(&self.range.start) {
            Ok(row) => 2 * row + 1,
            Err(child) => 2 * child,
        };
        let end = match &self.range.end {
            Some(end) => match node.search_table(end) {
                Ok(i) | Err(i) => 2 * i + 1,
            },
            None => 2 * node.n_keys() + 1,
        };
        self.stack.push(Frame { node, pending, position, end, ahead: VecDeque::new() });
    }

    fn emit(&mut self, key: &str, location: &str) {
        if self.remaining == 0 {
            return;
        }
        self.keys.append_value(key);
        if let Some(locations) = &mut self.locations {
            locations.append_value(location);
        }
        self.rows += 1;
        self.remaining -= 1;
    }

    fn emit_leaf(&mut self, node: &Node, pending: &Pending) {
        let (Ok(mut row) | Err(mut row)) = node.search_table(&self.range.start);
        let end = match &self.range.end {
            Some(end) => match node.search_table(end) {
                Ok(i) | Err(i) => i,
            },
            None => node.n_keys(),
        };
        for (key, value) in pending {
            let (found, at) = match node.search_table(key) {
                Ok(at) => (true, at),
                Err(at) => (false, at),
            };
            self.emit_rows(node, row, at.min(end));
            row = row.max(at + usize::from(found));
            if let Some(value) = value {
                self.emit(key, value);
            }
        }
        self.emit_rows(node, row, end);
    }

    fn emit_rows(&mut self, node: &Node, from: usize, to: usize) {
        let count = to.saturating_sub(from).min(self.remaining);
        if count == 0 {
            return;
        }
        let (keys, values) = node.table_columns();
        append(&mut self.keys, &keys.slice(from, count));
        if let Some(locations) = &mut self.locations {
            append(locations, &values.slice(from, count));
        }
        self.rows += count;
        self.remaining -= count;
    }
}

fn append(builder: &mut StringBuilder, texts: &StringArray) {
    // Fails only for strings of more than 2 GiB, and a batch has about ten thousand rows.
    if builder.append_array(texts).is_err() {
        for text in texts.iter() {
            builder.append_option(text);
        }
    }
}

/// Returns the newest message of every key in the range: from above if there is one, otherwise from the node's buffer.
fn overlay(node: &Node, from_above: Pending, range: &KeyRange) -> Pending {
    if node.n_messages() == 0 {
        return from_above;
    }
    let mut combined = Vec::with_capacity(from_above.len() + node.n_messages());
    let mut above = from_above.into_iter().peekable();
    for message in node.newest_messages().filter(|message| range.contains(message.key)) {
        while let Some(newer) = above.next_if(|(key, _)| &**key < message.key) {
            combined.push(newer);
        }
        if above.peek().is_none_or(|(key, _)| &**key != message.key) {
            combined.push((message.key.into(), message.value.map(Into::into)));
        }
    }
    combined.extend(above);
    combined
}

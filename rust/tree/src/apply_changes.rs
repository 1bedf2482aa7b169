//! Computes the tree of the next version: applies the changes of a commit to the previous root.
//!
//! The messages of the new version stay in its root's buffer as the last rows, so that a reader of root v knows what v
//! changed (rules 8 and 9). Older messages are flushed when the buffer exceeds its cap.

use std::collections::HashMap;

use super::flush::{Flush, Tally};
use super::node_store::NodeStore;
use crate::split_and_merge::split;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::Result;
use trinitylake_format::config::TreeConfig;
use trinitylake_format::node::Node;
use trinitylake_format::node::mutable_node::{Message, MutableNode, Text};

/// The tree of the next version: its root, not yet encoded, and the new nodes below it.
#[derive(Debug)]
pub struct NextTree {
    pub root: MutableNode,
    pub nodes: Vec<(Text, MutableNode)>,
    pub tally: Tally,
}

/// Applies the changes of a new version to `root`. `changes` contains at most one message of each key;
/// `usual_size_bytes` is the size of recent commits.
pub async fn apply_changes(
    nodes: &NodeStore,
    environment: &dyn Environment,
    config: &TreeConfig,
    root: &Node,
    changes: Vec<Message>,
    usual_size_bytes: usize,
) -> Result<NextTree> {
    let mut root = MutableNode::of(root, nodes.height_of(root).await?);
    let mut flush = Flush::new(nodes, environment, config);
    settle(&mut root);
    remove_older_messages(&mut root, &changes);

    let tail_size: usize = changes.iter().map(Message::size_bytes).sum();
    let cap = config.root_buffer_cap_bytes(tail_size.max(usual_size_bytes));
    while root.buffer_size_bytes() + tail_size > cap && !root.children.is_empty() {
        let Some(child) = root.heaviest_child() else { break };
        flush.flush_child(&mut root, child).await?;
    }
    if !root.children.is_empty() {
        flush.resolve_parked(&mut root, cap).await?;
    }
    reduce(&mut flush, &mut root).await?;
    while root.rows.len() >= config.order {
        root = grow(&mut flush, root, config.order);
    }
    root.buffer.extend(changes);
    Ok(NextTree { root, tally: flush.tally, nodes: flush.into_staged() })
}

/// Applies messages to the rows of the root: all messages if the root is a leaf, otherwise messages for its own keys.
fn settle(root: &mut MutableNode) {
    if root.is_leaf() {
        root.apply_to_leaf(Vec::new());
    } else {
        root.absorb();
    }
}

/// Rule 7: removes older messages of the keys that this version writes. Rows of the root take the new values
/// immediately (rule 15): otherwise a split could separate a row from the message that hides it, and show an old value
/// whose file may be deleted.
fn remove_older_messages(root: &mut MutableNode, changes: &[Message]) {
    let newer: HashMap<&str, &Message> = changes.iter().map(|change| (&*change.key, change)).collect();
    let mut buffer = std::mem::take(&mut root.buffer);
    buffer.retain(|message| match newer.get(&*message.key) {
        None => true,
        // A new delete of the same key does not remove the parked delete, because the row must stay hidden while the
        // tree changes.
        Some(change) => change.value.is_none() && root.is_parked(message),
    });
    root.buffer = buffer;
    let is_leaf = root.is_leaf();
    let mut is_kept = vec![true; root.rows.len()];
    for change in changes {
        let Ok(row) = root.find_row(&change.key) else { continue };
        match &change.value {
            Some(value) => root.rows[row].value = value.clone(),
            None => is_kept[row] = !is_leaf,
        }
    }
    if is_kept.contains(&false) {
        let mut is_kept = is_kept.into_iter();
        root.rows.retain(|_| is_kept.next().unwrap_or(true));
    }
}

/// Replaces a root without keys by its only child. A root without children becomes a leaf.
async fn reduce(flush: &mut Flush<'_>, root: &mut MutableNode) -> Result<()> {
    while !root.is_leaf() && root.rows.is_empty() {
        match root.children.as_slice() {
            [] => root.height = 0,
            [only] => {
                let mut child = flush.load(only, root.height - 1).await?;
                child.buffer.append(&mut root.buffer);
                *root = child;
            }
            _ => return Ok(()),
        }
        flush.tally.reduced += 1;
        settle(root);
    }
    Ok(())
}

/// Creates a new root above the pieces of the old root. All messages stay in the new root, except that a parked delete
/// moves with its row (rule 15).
fn grow(flush: &mut Flush<'_>, mut root: MutableNode, order: usize) -> MutableNode {
    flush.tally.grown += 1;
    let height = root.height + 1;
    let buffer = std::mem::take(&mut root.buffer);
    let (parked, others) = buffer.into_iter().partition(|message| root.is_parked(message));
    root.buffer = parked;
    let mut grown = flush.parent_of(split(root, order, false), height);
    grown.buffer.extend::<Vec<Message>>(others);
    grown.absorb();
    grown
}

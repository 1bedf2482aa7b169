//! Flushing: moves messages into children, and performs the resulting splits and merges.
//!
//! Rule numbers refer to `docs/architecture.md` (rules of the tree). All changed nodes are staged in memory under new
//! paths. This module writes no files, so an abandoned commit leaves none.

use std::collections::HashMap;

use futures::future::BoxFuture;

use super::node_store::NodeStore;
use super::split_and_merge::{Split, fit_into_one, is_underfull, merge, split};
use trinitylake_base::environment::Environment;
use trinitylake_base::error::Result;
use trinitylake_format::config::{INNER_FLUSH_CHILDREN, TreeConfig};
use trinitylake_format::file_names::node_path;
use trinitylake_format::node::mutable_node::{Message, MutableNode, Text};

/// The transaction id of a message that moves a separator to another node; no transaction has the nil UUID.
pub const REHOMED: &str = "00000000-0000-0000-0000-000000000000";

/// Counts of tree changes by type, for tests, statistics and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub flushes: u64,
    pub splits: u64,
    pub merges: u64,
    pub emptied: u64,
    pub parked_resolved: u64,
    pub grown: u64,
    pub reduced: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.flushes += other.flushes;
        self.splits += other.splits;
        self.merges += other.merges;
        self.emptied += other.emptied;
        self.parked_resolved += other.parked_resolved;
        self.grown += other.grown;
        self.reduced += other.reduced;
    }
}

/// Result of pushing messages into a node: its replacement, of the same height.
pub enum Subtree {
    /// The node lost all its keys and messages.
    Empty,
    Nodes(Split),
}

/// Nodes being changed for one version.
pub struct Flush<'a> {
    nodes: &'a NodeStore,
    environment: &'a dyn Environment,
    config: &'a TreeConfig,
    staged: HashMap<Text, MutableNode>,
    pub tally: Tally,
}

impl<'a> Flush<'a> {
    pub fn new(nodes: &'a NodeStore, environment: &'a dyn Environment, config: &'a TreeConfig) -> Self {
        Flush { nodes, environment, config, staged: HashMap::new(), tally: Tally::default() }
    }

    pub fn into_staged(self) -> Vec<(Text, MutableNode)> {
        let mut staged: Vec<_> = self.staged.into_iter().collect();
        staged.sort_by(|a, b| a.0.cmp(&b.0));
        staged
    }

    pub async fn load(&mut self, path: &Text, height: u32) -> Result<MutableNode> {
        match self.staged.remove(path) {
            Some(draft) => Ok(draft),
            None => Ok(MutableNode::of(self.nodes.load(path, Some(height)).await?.as_ref(), height)),
        }
    }

    pub fn stage(&mut self, draft: MutableNode) -> Text {
        let path: Text = node_path(self.environment.uuid()).into();
        self.staged.insert(path.clone(), draft);
        path
    }

    /// Pushes messages, oldest first, into the subtree of `draft`.
    pub fn push(&mut self, mut draft: MutableNode, messages: Vec<Message>) -> BoxFuture<'_, Result<Subtree>> {
        Box::pin(async move {
            let ascending = is_ascending(&draft, &messages);
            if draft.is_leaf() {
                draft.apply_to_leaf(messages);
                return Ok(self.finish(draft, ascending));
            }
            draft.buffer.extend(messages);
            draft.absorb();
            let (soft, hard) = (self.config.inner_buffer_size_bytes, self.config.node_max_size_bytes);
            let mut flushed = 0;
            while draft.buffer_size_bytes() > if flushed < INNER_FLUSH_CHILDREN { soft } else { hard } {
                if draft.children.is_empty() {
                    break;
                }
                let Some(child) = draft.heaviest_child() else { break };
                self.flush_child(&mut draft, child).await?;
                flushed += 1;
            }
            self.resolve_parked(&mut draft, soft).await?;
            Ok(self.finish(draft, ascending))
        })
    }

    /// Pushes all messages for a child into it, and replaces the child by the result.
    pub async fn flush_child(&mut self, draft: &mut MutableNode, child: usize) -> Result<()> {
        self.tally.flushes += 1;
        let messages = draft.take_messages_of(child);
        let node = self.load(&draft.children[child], draft.height - 1).await?;
        let subtree = self.push(node, messages).await?;
        self.integrate(draft, child, subtree).await
    }

    pub(crate) async fn integrate(&mut self, draft: &mut MutableNode, child: usize, subtree: Subtree) -> Result<()> {
        let split = match subtree {
            Subtree::Empty => {
                self.remove_child(draft, child);
                return Ok(());
            }
            Subtree::Nodes(split) => split,
        };
        if split.rest.is_empty() && is_underfull(&split.first, self.config.order) && draft.children.len() > 1 {
            return self.merge_or_keep(draft, child, split.first).await;
        }
        draft.children[child] = self.stage(split.first);
        for (offset, (separator, piece)) in split.rest.into_iter().enumerate() {
            self.tally.splits += 1;
            let path = self.stage(piece);
            draft.rows.insert(child + offset, separator);
            draft.children.insert(child + offset + 1, path);
        }
        // Rule 5: deletes go to the front of the buffer, because all its messages are newer. Rule 2: the buffer may
        // have messages for a promoted key.
        draft.buffer.splice(0..0, split.promoted_deletes);
        draft.absorb();
        Ok(())
    }

    /// Removes an empty subtree and the separator next to it. Unless a delete is parked for this separator, it is an
    /// existing object, so it becomes a message that is older than all others.
    fn remove_child(&mut self, draft: &mut MutableNode, child: usize) {
        self.tally.emptied += 1;
        draft.children.remove(child);
        if draft.rows.is_empty() {
            return;
        }
        let separator = child.saturating_sub(1);
        let parked = draft.take_parked(separator);
        let row = draft.rows.remove(separator);
        if parked.is_none() {
            draft.buffer.insert(0, Message::new(row.key, Some(row.value), REHOMED.into()));
        }
    }

    /// Merges an underfull child with a neighbour if the result leaves space to grow.
    async fn merge_or_keep(&mut self, draft: &mut MutableNode, child: usize, node: MutableNode) -> Result<()> {
        let left = child.saturating_sub(1);
        let neighbour_index = if child == 0 { 1 } else { left };
        let neighbour_path = draft.children[neighbour_index].clone();
        let staged_before = self.staged.contains_key(&neighbour_path);
        let mut neighbour = self.load(&neighbour_path, draft.height - 1).await?;
        if neighbour.is_leaf() {
            neighbour.apply_to_leaf(Vec::new());
        }
        if !fit_into_one(&node, &neighbour, self.config.order) {
            if staged_before {
                self.staged.insert(neighbour_path, neighbour);
            }
            draft.children[child] = self.stage(node);
            return Ok(());
        }
        self.tally.merges += 1;
        let is_leaf = node.is_leaf();
        // Rule 14: between leaves, a parked delete of the separator is applied; between inner nodes, it moves with the
        // separator (rule 15).
        let parked = draft.take_parked(left);
        let separator = draft.rows.remove(left);
        let is_applied = is_leaf && parked.is_some();
        let (first, second) = if child == 0 { (node, neighbour) } else { (neighbour, node) };
        let mut merged = merge(first, (!is_applied).then_some(separator), second);
        if !is_leaf {
            merged.buffer.extend(parked);
            merged.absorb();
        }
        draft.children.remove(left + 1);
        let path = self.stage(merged);
        draft.children[left] = path;
        Ok(())
    }

    /// Splits the node if it is too large, or reports that it is empty.
    pub(crate) fn finish(&mut self, draft: MutableNode, ascending: bool) -> Subtree {
        if draft.is_leaf() {
            if draft.rows.is_empty() {
                return Subtree::Empty;
            }
        } else if draft.children.is_empty() {
            return self.regrow(draft);
        }
        Subtree::Nodes(split(draft, self.config.order, ascending))
    }

    /// Builds a subtree of the same height from the messages of an inner node that lost its last child.
    fn regrow(&mut self, draft: MutableNode) -> Subtree {
        let mut leaf = MutableNode::default();
        leaf.apply_to_leaf(draft.buffer);
        if leaf.rows.is_empty() {
            return Subtree::Empty;
        }
        let mut pieces = split(leaf, self.config.order, false);
        for height in 1..=draft.height {
            let parent = self.parent_of(pieces, height);
            pieces = split(parent, self.config.order, false);
        }
        Subtree::Nodes(pieces)
    }

    /// Stages the pieces of a split, and returns a new inner node above them.
    pub fn parent_of(&mut self, pieces: Split, height: u32) -> MutableNode {
        let mut parent = MutableNode { height, buffer: pieces.promoted_deletes, ..MutableNode::default() };
        parent.children.push(self.stage(pieces.first));
        for (separator, piece) in pieces.rest {
            self.tally.splits += 1;
            parent.rows.push(separator);
            parent.children.push(self.stage(piece));
        }
        parent
    }
}

/// Whether the keys of all messages are greater than the keys of the node.
fn is_ascending(draft: &MutableNode, messages: &[Message]) -> bool {
    match draft.rows.last() {
        Some(last) => messages.iter().all(|message| message.key > last.key),
        None => false,
    }
}

//! From one root to the next: what a commit changes in the tree.
//!
//! The messages of the new version stay in its root's buffer, as its last rows, so that a reader of root v
//! knows what v changed (rules 8 and 9). Older messages are flushed when the buffer is over its cap.

use super::flush::{Flush, Tally};
use super::node_store::NodeStore;
use crate::split_and_merge::split;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::Result;
use trinitylake_format::config::TreeConfig;
use trinitylake_format::node::Node;
use trinitylake_format::node::draft::{Draft, Message, Text};

/// The tree of the next version: its root, not yet encoded, and the new nodes below it.
#[derive(Debug)]
pub struct Advance {
    pub root: Draft,
    /// So many of its last messages are all that its next absorption has to look at ([`Draft::absorb_last`]); `None` if that
    /// is not known.
    pub unabsorbed: Option<usize>,
    pub nodes: Vec<(Text, Draft)>,
    pub tally: Tally,
}

/// Puts the changes of a new version on top of `root`. `changes` holds at most one message of each key;
/// `usual_size_bytes` is the size of recent commits.
pub async fn advance(
    nodes: &NodeStore,
    environment: &dyn Environment,
    config: &TreeConfig,
    root: &Node,
    changes: Vec<Message>,
    usual_size_bytes: usize,
) -> Result<Advance> {
    let root = Draft::of(root, nodes.height_of(root).await?);
    advance_draft(nodes, environment, config, (root, None), changes, usual_size_bytes).await
}

/// The same for a root that was taken apart before, with what was said of it then.
pub async fn advance_draft(
    nodes: &NodeStore,
    environment: &dyn Environment,
    config: &TreeConfig,
    (mut root, unabsorbed): (Draft, Option<usize>),
    changes: Vec<Message>,
    usual_size_bytes: usize,
) -> Result<Advance> {
    let mut flush = Flush::new(nodes, environment, config);
    match unabsorbed {
        Some(count) if !root.is_leaf() => root.absorb_last(count),
        _ => settle(&mut root),
    }
    let has_one_each = make_way(&mut root, &changes);

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
    let tally = flush.tally;
    let is_as_it_was = has_one_each && tally == Tally::default() && !root.is_leaf();
    let unabsorbed = is_as_it_was.then_some(changes.len());
    root.buffer.extend(changes);
    Ok(Advance { root, unabsorbed, nodes: flush.into_staged(), tally })
}

/// Applies what the root itself can take: all of it in a leaf, own keys in an inner node.
fn settle(root: &mut Draft) {
    if root.is_leaf() {
        root.apply_to_leaf(Vec::new());
    } else {
        root.absorb();
    }
}

/// Rule 7: what this version writes again need not be kept from before. Rows of the root take the new values at once
/// (rule 15): a row that is hidden by a message must not be parted from it later, with a value that nobody has kept. Says
/// whether no message stays for a key that is written again.
fn make_way(root: &mut Draft, changes: &[Message]) -> bool {
    let mut changes: Vec<&Message> = changes.iter().collect();
    changes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let change_of = |key: &Text| {
        let found = changes.binary_search_by(|change| change.key.cmp(key)).ok()?;
        Some(&changes[found].value)
    };
    let mut buffer = std::mem::take(&mut root.buffer);
    let mut has_one_each = true;
    let is_kept = |message: &Message| match change_of(&message.key) {
        None => true,
        // Deleted once more: it stays hidden while the tree is changed below.
        Some(value) => {
            let stays = value.is_none() && root.is_parked(message);
            has_one_each &= !stays;
            stays
        }
    };
    buffer.retain(is_kept);
    root.buffer = buffer;
    let is_leaf = root.is_leaf();
    root.rows.retain_mut(|row| match change_of(&row.key) {
        Some(Some(value)) => {
            row.value = value.clone();
            true
        }
        Some(None) => !is_leaf,
        None => true,
    });
    has_one_each
}

/// A root with one child and no key takes the child's place; one without a child becomes a leaf.
async fn reduce(flush: &mut Flush<'_>, root: &mut Draft) -> Result<()> {
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

/// A new root above the pieces of the old one. Messages stay at the top, where every key is in its range; but a delete
/// that is parked for a row goes where that row goes (rule 15).
fn grow(flush: &mut Flush<'_>, mut root: Draft, order: usize) -> Draft {
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

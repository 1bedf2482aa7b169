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
    /// It is the root that was given, with the changes behind its messages, and nothing else: its columns can be made of
    /// those of that root.
    pub is_grown: bool,
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
    let is_absorbed = match unabsorbed {
        Some(count) if !root.is_leaf() => !root.absorb_last(count),
        _ => {
            settle(&mut root);
            false
        }
    };
    let way = make_way(&mut root, &changes);

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
    let is_as_it_was = tally == Tally::default() && !root.is_leaf();
    let unabsorbed = (is_as_it_was && way.has_one_each).then_some(changes.len());
    let is_grown = is_as_it_was && is_absorbed && !way.was_in_the_way;
    root.buffer.extend(changes);
    Ok(Advance { root, unabsorbed, is_grown, nodes: flush.into_staged(), tally })
}

/// Applies what the root itself can take: all of it in a leaf, own keys in an inner node.
fn settle(root: &mut Draft) {
    if root.is_leaf() {
        root.apply_to_leaf(Vec::new());
    } else {
        root.absorb();
    }
}

/// What [`make_way`] found.
struct Way {
    /// No message stays for a key that is written again.
    has_one_each: bool,
    /// A message or a row of the root was for a key that is written again.
    was_in_the_way: bool,
}

/// Rule 7: what this version writes again need not be kept from before. Rows of the root take the new values at once
/// (rule 15): a row that is hidden by a message must not be parted from it later, with a value that nobody has kept.
fn make_way(root: &mut Draft, changes: &[Message]) -> Way {
    let newer = ByKey::of(changes);
    let mut way = Way { has_one_each: true, was_in_the_way: false };
    let mut buffer = std::mem::take(&mut root.buffer);
    buffer.retain(|message| match newer.find(message) {
        None => true,
        Some(change) => {
            way.was_in_the_way = true;
            // Deleted once more: it stays hidden while the tree is changed below.
            let stays = change.value.is_none() && root.is_parked(message);
            way.has_one_each &= !stays;
            stays
        }
    });
    root.buffer = buffer;
    let is_leaf = root.is_leaf();
    let mut is_kept = vec![true; root.rows.len()];
    for change in changes {
        let Ok(row) = root.find_row(&change.key) else { continue };
        way.was_in_the_way = true;
        match &change.value {
            Some(value) => root.rows[row].value = value.clone(),
            None => is_kept[row] = !is_leaf,
        }
    }
    if is_kept.contains(&false) {
        let mut is_kept = is_kept.into_iter();
        root.rows.retain(|_| is_kept.next().unwrap_or(true));
    }
    way
}

/// Messages that can be found by their keys, of each of which there is one.
struct ByKey<'a>(Vec<(u64, &'a Message)>);

impl<'a> ByKey<'a> {
    fn of(messages: &'a [Message]) -> ByKey<'a> {
        let mut messages: Vec<_> = messages.iter().map(|message| (message.key_hash(), message)).collect();
        messages.sort_unstable_by_key(|(hash, _)| *hash);
        ByKey(messages)
    }

    fn find(&self, other: &Message) -> Option<&'a Message> {
        let hash = other.key_hash();
        let first = self.0.partition_point(|(known, _)| *known < hash);
        let same = self.0[first..].iter().take_while(|(known, _)| *known == hash);
        same.map(|(_, message)| *message).find(|message| message.key == other.key)
    }
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

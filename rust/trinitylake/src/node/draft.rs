//! A node that is being changed, and the decisions about it that need no other node.
//!
//! Pure: no storage, no clock. The tree rules these functions carry are numbered as in
//! `docs/architecture.md` (rules of the tree).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::{MessageRef, Node};

pub type Text = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: Text,
    pub value: Text,
}

/// A change on its way down the tree; `value` is `None` for a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub key: Text,
    pub value: Option<Text>,
    pub txn: Text,
}

impl Message {
    /// What the message takes in a node file, before compression: texts and offsets.
    pub fn size_bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, |value| value.len()) + self.txn.len() + 16
    }
}

impl From<MessageRef<'_>> for Message {
    fn from(message: MessageRef<'_>) -> Self {
        Message { key: message.key.into(), value: message.value.map(Into::into), txn: message.txn.into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    pub height: u32,
    /// By key, strictly ascending.
    pub rows: Vec<Row>,
    /// Paths; empty in a leaf, else one more than rows.
    pub children: Vec<Text>,
    /// Oldest first.
    pub buffer: Vec<Message>,
}

impl Draft {
    pub fn of(node: &Node, height: u32) -> Draft {
        let inner = !node.is_leaf();
        Draft {
            height,
            rows: (0..node.n_keys())
                .map(|i| Row { key: node.key(i).into(), value: node.value(i).into() })
                .collect(),
            children: if inner {
                (0..=node.n_keys()).map(|i| node.child(i).into()).collect()
            } else {
                Vec::new()
            },
            buffer: node.messages().map(Message::from).collect(),
        }
    }

    pub fn is_leaf(&self) -> bool {
        self.height == 0
    }

    pub fn find_row(&self, key: &str) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| (*row.key).cmp(key))
    }

    /// The child that a key which is not in this node's table belongs to.
    pub fn child_of(&self, key: &str) -> Option<usize> {
        self.find_row(key).err()
    }

    /// Is this message parked here: a delete of a key in this node's own table?
    pub fn is_parked(&self, message: &Message) -> bool {
        message.value.is_none() && self.find_row(&message.key).is_ok()
    }

    /// Rules 2 and 7: only the newest message of a key stays, and a set of a key in the own table
    /// becomes its value. Deletes of own keys stay: they are parked.
    pub fn absorb(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        for message in coalesce(buffer) {
            match (self.find_row(&message.key), &message.value) {
                (Ok(i), Some(value)) => self.rows[i].value = value.clone(),
                _ => self.buffer.push(message),
            }
        }
    }

    pub fn buffer_size_bytes(&self) -> usize {
        self.buffer.iter().map(Message::size_bytes).sum()
    }

    /// Rule 3: the child whose messages weigh most, parked ones not counted.
    pub fn heaviest_child(&self) -> Option<usize> {
        let mut weights = vec![0usize; self.children.len()];
        for message in &self.buffer {
            if let Some(child) = self.child_of(&message.key) {
                weights[child] += message.size_bytes();
            }
        }
        // The first of equals, so that a history has one outcome.
        let (mut heaviest, mut most) = (None, 0);
        for (child, weight) in weights.into_iter().enumerate() {
            if weight > most {
                (heaviest, most) = (Some(child), weight);
            }
        }
        heaviest
    }

    /// Takes the messages of a child out of the buffer, oldest first.
    pub fn take_messages_of(&mut self, child: usize) -> Vec<Message> {
        let buffer = std::mem::take(&mut self.buffer);
        let (taken, kept) =
            buffer.into_iter().partition(|message| self.child_of(&message.key) == Some(child));
        self.buffer = kept;
        taken
    }

    /// Takes the parked delete of row `i` out of the buffer; is there one?
    pub fn take_parked(&mut self, i: usize) -> bool {
        let key = self.rows[i].key.clone();
        let before = self.buffer.len();
        self.buffer.retain(|message| message.key != key);
        self.buffer.len() < before
    }

    /// Rows of the table that a parked delete hides.
    pub fn parked_rows(&self) -> Vec<usize> {
        self.buffer.iter().filter_map(|message| self.find_row(&message.key).ok()).collect()
    }

    /// A leaf takes messages at once: a set inserts or replaces, a delete removes. Its own buffer, which
    /// only a leaf of another writer has, is older.
    pub fn apply_to_leaf(&mut self, messages: Vec<Message>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend(messages);
        let mut changes: BTreeMap<Text, Option<Text>> = BTreeMap::new();
        for message in buffer {
            changes.insert(message.key, message.value);
        }
        if changes.is_empty() {
            return;
        }
        let mut merged = Vec::with_capacity(self.rows.len() + changes.len());
        let mut rows = std::mem::take(&mut self.rows).into_iter().peekable();
        for (key, value) in changes {
            while let Some(row) = rows.next_if(|row| row.key < key) {
                merged.push(row);
            }
            rows.next_if(|row| row.key == key);
            merged.extend(value.map(|value| Row { key, value }));
        }
        merged.extend(rows);
        self.rows = merged;
    }
}

/// Rule 7: of each key only the last message stays, in its place.
pub fn coalesce(messages: Vec<Message>) -> Vec<Message> {
    let mut seen = HashSet::with_capacity(messages.len());
    let mut newest: Vec<Message> =
        messages.into_iter().rev().filter(|message| seen.insert(message.key.clone())).collect();
    newest.reverse();
    newest
}

/// The least keys of a node that our writer splits or builds.
pub fn min_keys(order: usize) -> usize {
    order.div_ceil(2) - 1
}

/// How many rows each piece of a table of `rows` rows gets; between two pieces one row is promoted.
///
/// Evenly, unless the rows came in at the right end: then all but the last piece are filled to nine
/// tenths, since keys that ascend would leave even halves half empty for ever. No piece has fewer than
/// [`min_keys`] or more than `order - 1`.
pub fn piece_sizes(rows: usize, order: usize, ascending: bool) -> Vec<usize> {
    if rows < order {
        return vec![rows];
    }
    let least = min_keys(order);
    if ascending {
        let full = (order * 9 / 10).clamp(least.max(1), order - 1);
        let (mut sizes, mut rest) = (Vec::new(), rows);
        while rest >= order {
            let size = full.min(rest - 1 - least);
            sizes.push(size);
            rest -= size + 1;
        }
        sizes.push(rest);
        return sizes;
    }
    let pieces = (rows + 1).div_ceil(order);
    let keys = rows - (pieces - 1);
    (0..pieces).map(|piece| keys / pieces + usize::from(piece < keys % pieces)).collect()
}

/// The pieces of a node with too many rows, and the rows that go up between them.
pub struct Split {
    pub first: Draft,
    pub rest: Vec<(Row, Draft)>,
    /// Rule 5: deletes of promoted rows; they belong to the front of the parent's buffer.
    pub promoted_deletes: Vec<Message>,
}

/// Splits a node of which [`Draft::absorb`] made the buffer; every other message goes with its range.
pub fn split(mut draft: Draft, order: usize, ascending: bool) -> Split {
    let sizes = piece_sizes(draft.rows.len(), order, ascending);
    let height = draft.height;
    let mut rows = std::mem::take(&mut draft.rows).into_iter();
    let mut children = std::mem::take(&mut draft.children).into_iter();
    let mut pieces: Vec<(Option<Row>, Draft)> = Vec::with_capacity(sizes.len());
    for (i, size) in sizes.iter().enumerate() {
        let separator = if i == 0 { None } else { rows.next() };
        let piece = Draft {
            height,
            rows: rows.by_ref().take(*size).collect(),
            children: children.by_ref().take(if height > 0 { size + 1 } else { 0 }).collect(),
            buffer: Vec::new(),
        };
        pieces.push((separator, piece));
    }
    let mut promoted_deletes = Vec::new();
    for message in draft.buffer {
        // The last piece whose separator is not above the key.
        let i = pieces
            .partition_point(|(separator, _)| separator.as_ref().is_none_or(|row| row.key <= message.key))
            - 1;
        if pieces[i].0.as_ref().is_some_and(|row| row.key == message.key) {
            promoted_deletes.push(message);
        } else {
            pieces[i].1.buffer.push(message);
        }
    }
    let mut pieces = pieces.into_iter();
    let first = pieces.next().map(|(_, piece)| piece).unwrap_or_default();
    let rest = pieces.filter_map(|(separator, piece)| separator.map(|row| (row, piece))).collect();
    Split { first, rest, promoted_deletes }
}

/// Rule 14: left + separator + right; the separator is left out where a delete was waiting for it.
pub fn merge(left: Draft, separator: Option<Row>, right: Draft) -> Draft {
    let mut merged = left;
    merged.rows.extend(separator);
    merged.rows.extend(right.rows);
    merged.children.extend(right.children);
    merged.buffer.extend(right.buffer);
    merged
}

#[cfg(test)]
mod tests;

//! A node that is being changed: its rows, its children, and the messages in its buffer.
//!
//! The functions of this module change one node and access no storage. Rule numbers refer to `docs/architecture.md`
//! (rules of the tree). The tree crate splits and merges nodes (`split_and_merge`).

use std::sync::Arc;

use super::{CREATED_AT_MILLIS, MessageRef, NODE_ID, Node};
use crate::file_names::node_id;

pub type Text = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: Text,
    pub value: Text,
}

/// System rows of a node that is not a root: creation time, and the id in its file name (format §4).
pub fn node_system_rows(path: &str, created_at_millis: String) -> Vec<(&'static str, String)> {
    let mut rows = vec![(CREATED_AT_MILLIS, created_at_millis)];
    rows.extend(node_id(path).map(|id| (NODE_ID, id.to_string())));
    rows
}

/// A change that is flushed down the tree; `value` is `None` for a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub key: Text,
    pub value: Option<Text>,
    pub txn: Text,
}

impl Message {
    pub fn new(key: Text, value: Option<Text>, txn: Text) -> Message {
        Message { key, value, txn }
    }

    /// Size of the message in a node file before compression: strings and offsets.
    pub fn size_bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, |value| value.len()) + self.txn.len() + 16
    }
}

impl From<MessageRef<'_>> for Message {
    fn from(message: MessageRef<'_>) -> Self {
        Message::new(message.key.into(), message.value.map(Into::into), message.txn.into())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MutableNode {
    pub height: u32,
    /// Strictly ascending by key.
    pub rows: Vec<Row>,
    /// Paths of the children; empty in a leaf, otherwise one more than rows.
    pub children: Vec<Text>,
    /// Messages, oldest first.
    pub buffer: Vec<Message>,
}

impl MutableNode {
    pub fn of(node: &Node, height: u32) -> MutableNode {
        let inner = !node.is_leaf();
        MutableNode {
            height,
            rows: (0..node.n_keys()).map(|i| Row { key: node.key(i).into(), value: node.value(i).into() }).collect(),
            children: if inner { (0..=node.n_keys()).map(|i| node.child(i).into()).collect() } else { Vec::new() },
            buffer: node.messages().map(Message::from).collect(),
        }
    }

    pub fn is_leaf(&self) -> bool {
        self.height == 0
    }

    pub fn find_row(&self, key: &str) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| (*row.key).cmp(key))
    }

    /// The child whose range contains a key that is not in this node's table.
    pub fn child_of(&self, key: &str) -> Option<usize> {
        self.find_row(key).err()
    }

    /// Whether this message is a parked delete: a delete of a key in the table of this node.
    pub fn is_parked(&self, message: &Message) -> bool {
        message.value.is_none() && self.find_row(&message.key).is_ok()
    }

    /// Rules 2 and 7: keeps only the newest message of each key, and applies sets of keys in the table of this node.
    /// Deletes of such keys stay as parked deletes.
    pub fn absorb(&mut self) {
        let mut stays = vec![false; self.buffer.len()];
        let mut row = 0;
        for number in newest_by_key(&self.buffer) {
            let message = &self.buffer[number];
            // Rows and messages are sorted, so the rows are traversed once.
            row += self.rows[row..].iter().take_while(|row| row.key < message.key).count();
            match (self.rows.get_mut(row).filter(|row| row.key == message.key), &message.value) {
                (Some(row), Some(value)) => row.value = value.clone(),
                _ => stays[number] = true,
            }
        }
        keep(&mut self.buffer, &stays);
    }

    pub fn buffer_size_bytes(&self) -> usize {
        self.buffer.iter().map(Message::size_bytes).sum()
    }

    /// Returns the child whose messages have the largest total size, without parked deletes (rule 3).
    pub fn heaviest_child(&self) -> Option<usize> {
        let mut weights = vec![0usize; self.children.len()];
        for message in &self.buffer {
            if let Some(child) = self.child_of(&message.key) {
                weights[child] += message.size_bytes();
            }
        }
        // Of children with equal sizes the first is chosen, so that the result is deterministic.
        let (mut heaviest, mut most) = (None, 0);
        for (child, weight) in weights.into_iter().enumerate() {
            if weight > most {
                (heaviest, most) = (Some(child), weight);
            }
        }
        heaviest
    }

    /// Removes the messages of a child from the buffer and returns them, oldest first.
    pub fn take_messages_of(&mut self, child: usize) -> Vec<Message> {
        let buffer = std::mem::take(&mut self.buffer);
        let left = child.checked_sub(1).map(|row| &self.rows[row].key);
        let right = self.rows.get(child).map(|row| &row.key);
        // Messages for keys in the table of this node belong to no child.
        let is_its = |message: &Message| {
            left.is_none_or(|left| *left < message.key) && right.is_none_or(|right| message.key < *right)
        };
        let (taken, kept) = buffer.into_iter().partition(is_its);
        self.buffer = kept;
        taken
    }

    /// Removes the parked delete of row `i` from the buffer, if there is one.
    pub fn take_parked(&mut self, i: usize) -> Option<Message> {
        let key = &self.rows[i].key;
        let at = self.buffer.iter().rposition(|message| message.key == *key)?;
        let parked = self.buffer.remove(at);
        self.buffer.retain(|message| message.key != parked.key);
        Some(parked)
    }

    /// Rows of the table with a parked delete.
    pub fn parked_rows(&self) -> Vec<usize> {
        self.buffer.iter().filter_map(|message| self.find_row(&message.key).ok()).collect()
    }

    /// Applies messages to a leaf: a set inserts or replaces a row, a delete removes it. Messages in the leaf's own
    /// buffer, which only other implementations of the format create, are older and applied first.
    pub fn apply_to_leaf(&mut self, messages: Vec<Message>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend(messages);
        if buffer.is_empty() {
            return;
        }
        let mut merged = Vec::with_capacity(self.rows.len() + buffer.len());
        let mut rows = std::mem::take(&mut self.rows).into_iter().peekable();
        for number in newest_by_key(&buffer) {
            let Message { key, value, .. } = &buffer[number];
            while let Some(row) = rows.next_if(|row| row.key < *key) {
                merged.push(row);
            }
            rows.next_if(|row| row.key == *key);
            merged.extend(value.clone().map(|value| Row { key: key.clone(), value }));
        }
        merged.extend(rows);
        self.rows = merged;
    }
}

/// The indices of the last message of each key, in key order.
fn newest_by_key(messages: &[Message]) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..messages.len()).collect();
    // For equal keys, the newer message sorts first.
    numbers.sort_unstable_by(|a, b| messages[*a].key.cmp(&messages[*b].key).then(b.cmp(a)));
    numbers.dedup_by(|later, first| messages[*later].key == messages[*first].key);
    numbers
}

/// Keeps the selected messages, in their order.
fn keep(messages: &mut Vec<Message>, stays: &[bool]) {
    let mut stays = stays.iter();
    messages.retain(|_| stays.next().is_some_and(|stays| *stays));
}

/// Rule 7: keeps only the last message of each key, in its position.
pub fn coalesce(mut messages: Vec<Message>) -> Vec<Message> {
    let mut stays = vec![false; messages.len()];
    for number in newest_by_key(&messages) {
        stays[number] = true;
    }
    keep(&mut messages, &stays);
    messages
}

#[cfg(test)]
mod tests;

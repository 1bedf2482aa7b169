//! Search for keys: on the way down from the root, the first node with a message or a row for a key determines its
//! value (rule 1).

use std::sync::Arc;

use arrow_array::{Array, StringArray};
use futures::future::BoxFuture;

use super::MAX_HEIGHT;
use super::node_source::Nodes;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::node::{Found, Node};

/// Returns the location of a key; `None` if the object does not exist.
pub async fn get<N: Nodes>(nodes: &N, root: &Arc<Node>, key: &str) -> Result<Option<String>> {
    let mut node = root.clone();
    for _ in 0..=MAX_HEIGHT {
        node = match node.search(key) {
            Found::Message(value) => return Ok(value.map(str::to_string)),
            Found::Row(value) => return Ok(Some(value.to_string())),
            Found::Absent => return Ok(None),
            Found::Child(i) => nodes.load(node.child(i), child_height(&node)).await?,
        };
    }
    Err(cycle())
}

/// The value of a key in a tree, and which row or message determines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub location: Option<String>,
    pub by: DecidedBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// A node file: the node with a row for the key, or the leaf that would have this row.
    Node(String),
    /// The message of a transaction, in any node.
    Transaction(String),
}

/// Like [`get`], but also returns which row or message determines the value. `root_path` is the path of the root file.
pub async fn decide<N: Nodes>(nodes: &N, root: &Arc<Node>, root_path: &str, key: &str) -> Result<Decision> {
    let (mut node, mut path) = (root.clone(), root_path.to_string());
    for _ in 0..=MAX_HEIGHT {
        let location = match node.search(key) {
            Found::Message(value) => {
                let location = value.map(str::to_string);
                let message = node.find_message(key).map(|(number, _)| node.message(number as usize));
                let txn = message.map_or_else(String::new, |message| message.txn.to_string());
                return Ok(Decision { location, by: DecidedBy::Transaction(txn) });
            }
            Found::Row(value) => Some(value.to_string()),
            Found::Absent => None,
            Found::Child(i) => {
                let child = node.child(i).to_string();
                node = nodes.load(&child, child_height(&node)).await?;
                path = child;
                continue;
            }
        };
        return Ok(Decision { location, by: DecidedBy::Node(path) });
    }
    Err(cycle())
}

/// Returns the height of a node's children if the node records its own height.
pub fn child_height(node: &Node) -> Option<u32> {
    node.height().and_then(|height| height.checked_sub(1))
}

pub(super) fn cycle() -> Error {
    Error::corrupt("(tree)", format!("a path is longer than {MAX_HEIGHT} nodes: they form a cycle"))
}

/// Looks up many keys in any order, and visits each node once. Returns one location per key, `None` if no object exists.
pub async fn get_many<N: Nodes>(nodes: &N, root: &Arc<Node>, keys: &StringArray) -> Result<Vec<Option<Location>>> {
    let mut found = vec![None; keys.len()];
    let wanted: Vec<u32> = (0..keys.len() as u32).filter(|i| keys.is_valid(*i as usize)).collect();
    visit(nodes, root.clone(), keys, wanted, &mut found, MAX_HEIGHT).await?;
    Ok(found)
}

/// A location that is borrowed from its node and keeps the node in memory: copying a million locations takes longer
/// than finding them.
#[derive(Clone, Debug)]
pub struct Location {
    node: Arc<Node>,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Row(u32),
    Message(u32),
}

impl Location {
    pub fn as_str(&self) -> &str {
        match self.place {
            Place::Row(i) => self.node.value(i as usize),
            Place::Message(i) => self.node.message(i as usize).value.unwrap_or_default(),
        }
    }
}

fn visit<'a, N: Nodes>(
    nodes: &'a N,
    node: Arc<Node>,
    keys: &'a StringArray,
    wanted: Vec<u32>,
    found: &'a mut [Option<Location>],
    levels_left: u32,
) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        if levels_left == 0 {
            return Err(cycle());
        }
        let mut of_child: Vec<Vec<u32>> = vec![Vec::new(); if node.is_leaf() { 0 } else { node.n_keys() + 1 }];
        for i in wanted {
            let key = keys.value(i as usize);
            if let Some((message, value)) = node.find_message(key) {
                found[i as usize] = value.then(|| Location { node: node.clone(), place: Place::Message(message) });
                continue;
            }
            match node.search_table(key) {
                Ok(row) => found[i as usize] = Some(Location { node: node.clone(), place: Place::Row(row as u32) }),
                Err(child) if !node.is_leaf() => of_child[child].push(i),
                Err(_) => {}
            }
        }
        let visited: Vec<usize> = (0..of_child.len()).filter(|child| !of_child[*child].is_empty()).collect();
        let paths: Vec<&str> = visited.iter().map(|child| node.child(*child)).collect();
        let children = nodes.load_many(&paths, child_height(&node)).await?;
        for (child, loaded) in visited.into_iter().zip(children) {
            let wanted = std::mem::take(&mut of_child[child]);
            visit(nodes, loaded, keys, wanted, found, levels_left - 1).await?;
        }
        Ok(())
    })
}

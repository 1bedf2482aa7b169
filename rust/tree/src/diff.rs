//! Difference of two trees, at a cost in proportion to the difference (rule 12).
//!
//! A path in both trees is the same subtree, so only nodes that are in one of the trees are read. The keys of these
//! nodes are candidates. A candidate is reported if its effective location differs: a flush moves rows without changing
//! the contents.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow_array::StringArray;

use super::node_store::NodeStore;
use super::search::get_many;
use trinitylake_base::error::Result;
use trinitylake_format::node::Node;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub key: String,
    /// Location in the first tree; `None` if the object was added.
    pub before: Option<String>,
    /// Location in the second tree; `None` if the object was removed.
    pub after: Option<String>,
}

/// Differences by key.
pub async fn diff(nodes: &NodeStore, before: &Arc<Node>, after: &Arc<Node>) -> Result<Vec<Difference>> {
    diff_between((nodes, before), (nodes, after)).await
}

/// Like [`diff`], but the trees may be in two stores. Files with the same path must have the same content.
pub async fn diff_between(
    (old_nodes, before): (&NodeStore, &Arc<Node>),
    (new_nodes, after): (&NodeStore, &Arc<Node>),
) -> Result<Vec<Difference>> {
    let mut candidates = BTreeSet::new();
    let mut left = Frontier::below(before, old_nodes.height_of(before).await?, &mut candidates);
    let mut right = Frontier::below(after, new_nodes.height_of(after).await?, &mut candidates);
    while !left.paths.is_empty() || !right.paths.is_empty() {
        let (descend_left, descend_right) = match left.height.cmp(&right.height) {
            std::cmp::Ordering::Greater => (true, false),
            std::cmp::Ordering::Less => (false, true),
            std::cmp::Ordering::Equal => {
                cancel_common(&mut left.paths, &mut right.paths);
                (true, true)
            }
        };
        if descend_left {
            left.descend(old_nodes, &mut candidates).await?;
        }
        if descend_right {
            right.descend(new_nodes, &mut candidates).await?;
        }
    }
    let keys = StringArray::from_iter_values(&candidates);
    let old = get_many(old_nodes, before, &keys).await?;
    let new = get_many(new_nodes, after, &keys).await?;
    let differences = candidates.into_iter().zip(old.into_iter().zip(new)).filter_map(|(key, (old, new))| {
        let before = old.map(|location| location.as_str().to_string());
        let after = new.map(|location| location.as_str().to_string());
        (before != after).then_some(Difference { key, before, after })
    });
    Ok(differences.collect())
}

/// Returns the node files below a root that the tree `old` does not reference; all node files if `old` is `None`. Reads
/// leaves only if they have to be distinguished from inner nodes of a higher tree.
pub async fn new_nodes(
    old: Option<(&NodeStore, &Arc<Node>)>,
    (new_nodes, after): (&NodeStore, &Arc<Node>),
) -> Result<Vec<String>> {
    let mut ignored = BTreeSet::new();
    let mut right = Frontier::below(after, new_nodes.height_of(after).await?, &mut ignored);
    let mut left = match old {
        Some((nodes, before)) => Frontier::below(before, nodes.height_of(before).await?, &mut ignored),
        None => Frontier { paths: Vec::new(), height: 0 },
    };
    let mut found = Vec::new();
    while !right.paths.is_empty() {
        if let Some((nodes, _)) = old
            && !left.paths.is_empty()
            && left.height > right.height
        {
            left.descend(nodes, &mut ignored).await?;
        } else {
            if left.height == right.height {
                cancel_common(&mut left.paths, &mut right.paths);
            }
            found.extend(right.paths.iter().cloned());
            if right.height == 0 {
                break;
            }
            right.descend(new_nodes, &mut ignored).await?;
            if let Some((nodes, _)) = old
                && !left.paths.is_empty()
                && left.height > right.height
            {
                left.descend(nodes, &mut ignored).await?;
            }
        }
        ignored.clear();
    }
    Ok(found)
}

/// Nodes of one height that have not been read yet.
struct Frontier {
    paths: Vec<String>,
    /// Height of the nodes at `paths`; undefined if there are none.
    height: u32,
}

impl Frontier {
    fn below(root: &Node, height: u32, candidates: &mut BTreeSet<String>) -> Frontier {
        let mut frontier = Frontier { paths: Vec::new(), height: height.saturating_sub(1) };
        frontier.take(root, candidates);
        frontier
    }

    fn take(&mut self, node: &Node, candidates: &mut BTreeSet<String>) {
        candidates.extend((0..node.n_keys()).map(|i| node.key(i).to_string()));
        candidates.extend(node.messages().map(|message| message.key.to_string()));
        if !node.is_leaf() {
            self.paths.extend((0..=node.n_keys()).map(|i| node.child(i).to_string()));
        }
    }

    async fn descend(&mut self, nodes: &NodeStore, candidates: &mut BTreeSet<String>) -> Result<()> {
        let mut paths = std::mem::take(&mut self.paths);
        // Duplicates are removed, because a node of a damaged tree may have two parents. If this happened on every
        // level and nodes were read twice, the walk would take exponential time.
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let loaded = nodes.load_many(&paths, Some(self.height)).await?;
        self.height = self.height.saturating_sub(1);
        for node in loaded {
            self.take(&node, candidates);
        }
        Ok(())
    }
}

fn cancel_common(left: &mut Vec<String>, right: &mut Vec<String>) {
    let on_the_right: HashSet<&str> = right.iter().map(String::as_str).collect();
    let common: HashSet<String> = left.iter().filter(|path| on_the_right.contains(path.as_str())).cloned().collect();
    left.retain(|path| !common.contains(path));
    right.retain(|path| !common.contains(path));
}

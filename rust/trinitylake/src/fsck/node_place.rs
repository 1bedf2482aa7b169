//! Places of nodes in a tree (format §5).

use std::sync::Arc;

use super::finding::Finding;
use crate::key::NameSizes;
use crate::node::Node;
use crate::node::mutable_node::Text;
use crate::tree::MAX_HEIGHT;
use crate::tree::node_store::NodeStore;
use crate::tree::search::child_height;

/// The place of a node in its tree, according to its parent.
#[derive(Clone, Debug)]
pub struct Place {
    pub path: String,
    pub height: u32,
    /// Exclusive bounds of the node's keys; `None` is unbounded.
    pub above: Option<Text>,
    pub below: Option<Text>,
}

impl Place {
    /// Describes the objects in this subtree.
    pub fn range(&self, names: NameSizes) -> String {
        let name = |key: &Option<Text>, none: &str| match key {
            Some(key) => names.decode(key).map_or_else(|| key.trim_end().to_string(), |name| name.to_string()),
            None => none.to_string(),
        };
        format!("the objects between {} and {}", name(&self.above, "the first key"), name(&self.below, "the last key"))
    }
}

/// An unreadable node.
#[derive(Clone, Debug)]
pub(super) struct BadNode {
    pub finding: Finding,
    pub place: Place,
}

/// Whether a tree has the node of `place` at this place; false if a node between the root and the place cannot be read.
pub(super) async fn leads_to(nodes: &NodeStore, root: &Arc<Node>, place: &Place) -> bool {
    let mut node = root.clone();
    for _ in 0..=MAX_HEIGHT {
        if node.is_leaf() {
            return false;
        }
        let path = node.child(child_at(&node, place)).to_string();
        if path == place.path {
            return true;
        }
        match nodes.load(&path, child_height(&node)).await {
            Ok(child) => node = child,
            Err(_) => return false,
        }
    }
    false
}

/// Returns the index of the child of `node` whose subtree contains the place.
pub(crate) fn child_at(node: &Node, place: &Place) -> usize {
    match &place.above {
        None => 0,
        Some(above) => match node.search_table(above) {
            Ok(row) => row + 1,
            Err(child) => child,
        },
    }
}

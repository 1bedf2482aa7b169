//! Invariants between nodes. Invariants within a node are checked when it is decoded.
//!
//! 1. every key and message below child i is between key i - 1 and key i of its parent;
//! 2. all leaves have the same height;
//! 3. no node has two parents;
//! 4. all key tables have the same number of rows, the order of the lakehouse.
//!
//! Tests, the commands `stats` and `tree`, and consistency checks use [`walk`].

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::MAX_HEIGHT;
use super::node_store::NodeStore;
use trinitylake_base::error::Result;
use trinitylake_format::node::Node;

/// One node of a tree, for `stats` and `tree`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShape {
    pub path: String,
    /// Empty for the root.
    pub parent: String,
    pub height: u32,
    pub n_keys: usize,
    pub n_messages: usize,
    /// Size of the decoded node in memory.
    pub size_bytes: usize,
    pub first_key: Option<String>,
    pub last_key: Option<String>,
}

/// All nodes of a tree, parents before children, and all violations of the invariants.
#[derive(Debug, Default)]
pub struct Shape {
    pub nodes: Vec<NodeShape>,
    pub problems: Vec<String>,
}

/// Reads a whole tree. Fails on damaged files; the result lists violations of invariants between nodes.
pub async fn walk(nodes: &NodeStore, root: &Arc<Node>, root_path: &str) -> Result<Shape> {
    let height = nodes.height_of(root).await?;
    let mut walk = Walk { nodes, order: root.order(), seen: HashSet::new(), shape: Shape::default() };
    walk.visit(root.clone(), root_path.to_string(), String::new(), height, None, None).await?;
    Ok(walk.shape)
}

/// Returns the invariants that a node violates at its place in a tree: at this height, with key tables of `order` rows,
/// and with keys between two exclusive bounds (`None` is unbounded).
pub fn rules_broken(
    node: &Node,
    height: u32,
    order: usize,
    (above, below): (Option<&str>, Option<&str>),
) -> Vec<String> {
    let mut problems = Vec::new();
    if node.height().is_some_and(|own| own != height) {
        problems.push(format!("its height is {}, its parent expects {height}", node.height().unwrap_or_default()));
    }
    if node.is_leaf() != (height == 0) || height > MAX_HEIGHT {
        problems.push(format!("a leaf at height {height}, or none at height 0"));
    }
    if node.order() != order {
        problems.push(format!("its key table has {} rows, the root's {order}", node.order()));
    }
    let inside = |key: &str| above.is_none_or(|above| key > above) && below.is_none_or(|below| key < below);
    for key in (0..node.n_keys()).map(|i| node.key(i)).chain(node.messages().map(|message| message.key)) {
        if !inside(key) {
            problems.push(format!("key {:?} lies outside of the node's range", key.trim_end()));
        }
    }
    problems
}

struct Walk<'a> {
    nodes: &'a NodeStore,
    order: usize,
    seen: HashSet<String>,
    shape: Shape,
}

impl Walk<'_> {
    fn visit(
        &mut self,
        node: Arc<Node>,
        path: String,
        parent: String,
        height: u32,
        above: Option<String>,
        below: Option<String>,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if !self.seen.insert(path.clone()) {
                self.shape.problems.push(format!("{path}: has two parents"));
                return Ok(());
            }
            let broken = rules_broken(&node, height, self.order, (above.as_deref(), below.as_deref()));
            self.shape.problems.extend(broken.into_iter().map(|problem| format!("{path}: {problem}")));
            if node.is_leaf() != (height == 0) || height > MAX_HEIGHT {
                return Ok(());
            }
            self.shape.nodes.push(NodeShape {
                path: path.clone(),
                parent,
                height,
                n_keys: node.n_keys(),
                n_messages: node.n_messages(),
                size_bytes: node.memory_size_bytes(),
                first_key: (node.n_keys() > 0).then(|| node.key(0).to_string()),
                last_key: (node.n_keys() > 0).then(|| node.key(node.n_keys() - 1).to_string()),
            });
            if node.is_leaf() {
                return Ok(());
            }
            let paths: Vec<&str> = (0..=node.n_keys()).map(|i| node.child(i)).collect();
            let children = self.nodes.load_many(&paths, Some(height - 1)).await?;
            for (i, child) in children.into_iter().enumerate() {
                let above = if i > 0 { Some(node.key(i - 1).to_string()) } else { above.clone() };
                let below = if i < node.n_keys() { Some(node.key(i).to_string()) } else { below.clone() };
                self.visit(child, paths[i].to_string(), path.clone(), height - 1, above, below).await?;
            }
            Ok(())
        })
    }
}

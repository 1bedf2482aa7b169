//! Rules between a node and its place in the tree (format §5).

use std::sync::Arc;

use super::{Finding, Fsck, Kind, fingerprint};
use crate::key::NameSizes;
use crate::node::Node;
use crate::node::draft::Text;
use crate::tree::MAX_HEIGHT;
use crate::tree::invariant::rules_broken;
use crate::tree::node_store::NodeStore;
use crate::tree::search::child_height;

/// Position of a node in its tree, from its parent.
#[derive(Clone, Debug)]
pub struct Place {
    pub path: String,
    pub height: u32,
    /// Its keys lie between these; `None` where there is no bound.
    pub above: Option<Text>,
    pub below: Option<Text>,
}

impl Place {
    /// The objects that hang there, in words.
    pub fn range(&self, names: NameSizes) -> String {
        let name = |key: &Option<Text>, none: &str| match key {
            Some(key) => {
                names.decode(key).map_or_else(|| key.trim_end().to_string(), |name| name.to_string())
            }
            None => none.to_string(),
        };
        format!(
            "what lies between {} and {}",
            name(&self.above, "the first key"),
            name(&self.below, "the last key")
        )
    }
}

/// Summary of a node that was reached.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The version in which it was reached last.
    version: u64,
    height: u32,
    /// Its own first and last key, once it is read.
    keys: Option<(Text, Text)>,
}

/// A node that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct BadNode {
    pub finding: Finding,
    pub place: Place,
}

impl Fsck {
    /// Checks a node that was read, has its children wait, and returns the keys and locations that it names.
    pub(super) fn take_node(&mut self, place: &Place, node: &Node) -> Vec<(String, String)> {
        let bounds = (place.above.as_deref(), place.below.as_deref());
        for problem in rules_broken(node, place.height, self.order, bounds) {
            self.findings.push(Finding::new(Kind::Broken, &place.path, problem).at(self.current));
        }
        if let Some(seen) = self.seen.get_mut(&fingerprint(&place.path))
            && node.n_keys() > 0
        {
            seen.keys = Some((node.key(0).into(), node.key(node.n_keys() - 1).into()));
        }
        if !node.is_leaf() && place.height > 0 && place.height <= MAX_HEIGHT {
            for i in 0..=node.n_keys() {
                let above = if i > 0 { Some(node.key(i - 1).into()) } else { place.above.clone() };
                let below = if i < node.n_keys() { Some(node.key(i).into()) } else { place.below.clone() };
                let child = Place { path: node.child(i).to_string(), height: place.height - 1, above, below };
                self.reach(child);
            }
        }
        let named: Vec<(String, String)> =
            node.named_locations().map(|(key, location)| (key.to_string(), location.to_string())).collect();
        named.into_iter().filter(|(_, location)| self.locations.insert(fingerprint(location))).collect()
    }

    /// A node is named by a parent. One that was reached before is not read again.
    fn reach(&mut self, place: Place) {
        let version = self.current;
        let Some(seen) = self.seen.get_mut(&fingerprint(&place.path)) else {
            let seen = Seen { version, height: place.height, keys: None };
            self.seen.insert(fingerprint(&place.path), seen);
            self.waiting.push(place);
            return;
        };
        let is_inside = seen.keys.as_ref().is_none_or(|(first, last)| {
            place.above.as_ref().is_none_or(|above| above < first)
                && place.below.as_ref().is_none_or(|below| last < below)
        });
        let problem = if seen.version == version {
            Some("has two parents in one version")
        } else if seen.height != place.height || !is_inside {
            Some("hangs at another place than in another version")
        } else {
            None
        };
        seen.version = version;
        if let Some(problem) = problem {
            self.findings.push(Finding::new(Kind::Broken, place.path, problem).at(version));
        }
    }
}

impl Fsck {
    /// A node that something else than a version refers to.
    pub(super) fn remember_node(&mut self, path: &str) {
        self.seen.entry(fingerprint(path)).or_insert(Seen { version: u64::MAX, height: 0, keys: None });
    }
}

/// Does the way from a root to a place end at the node that hangs there? Not where the way cannot be read.
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

/// The child of a node in which a place lies.
pub(crate) fn child_at(node: &Node, place: &Place) -> usize {
    match &place.above {
        None => 0,
        Some(above) => match node.search_table(above) {
            Ok(row) => row + 1,
            Err(child) => child,
        },
    }
}

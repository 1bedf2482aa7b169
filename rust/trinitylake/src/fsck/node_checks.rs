//! Checks of nodes: rules within a node, and rules about its place in the tree (format §5).

use futures::{StreamExt, stream};

use super::finding::{Finding, FoundTable, Kind};
use super::node_place::{BadNode, Place};
use super::{Fsck, SeenNode, fingerprint};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::node::codec::decode;
use crate::tree::MAX_HEIGHT;
use crate::tree::invariant::rules_broken;
use crate::tree::node_source::PARALLEL_REQUESTS;

impl Fsck {
    /// Reads and checks the next queued nodes and the definitions that they reference.
    pub(super) async fn visit_nodes(&mut self) -> Result<Vec<FoundTable>> {
        let from = self.waiting.len().saturating_sub(PARALLEL_REQUESTS);
        let places = self.waiting.split_off(from);
        let storage = self.storage.clone();
        let read = |place: Place| {
            let storage = storage.clone();
            async move {
                let node = match storage.get(&place.path).await {
                    Ok(bytes) => decode(bytes, &place.path, None),
                    Err(error) => Err(error),
                };
                (place, node)
            }
        };
        let nodes: Vec<(Place, Result<Node>)> =
            stream::iter(places).map(read).buffered(PARALLEL_REQUESTS).collect().await;
        let mut named = Vec::new();
        for (place, node) in nodes {
            match node {
                Ok(node) => {
                    self.counts.nodes += 1;
                    named.extend(self.check_node(&place, &node));
                }
                Err(error @ (Error::FileNotFound { .. } | Error::CorruptFile { .. } | Error::InvalidLocation(_))) => {
                    self.bad_nodes.push(BadNode { finding: Finding::of(&error, &place.path), place });
                }
                Err(error) => return Err(error),
            }
        }
        self.check_definitions(named).await
    }

    /// Checks a node and queues its children. Returns the keys and locations of definitions that were not found before.
    pub(super) fn check_node(&mut self, place: &Place, node: &Node) -> Vec<(String, String)> {
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

    /// Checks the place of a node, and queues the node if it was not found before.
    fn reach(&mut self, place: Place) {
        let version = self.current;
        let Some(seen) = self.seen.get_mut(&fingerprint(&place.path)) else {
            let seen = SeenNode { version, height: place.height, keys: None };
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
            Some("has another place in its tree than in another version")
        } else {
            None
        };
        seen.version = version;
        if let Some(problem) = problem {
            self.findings.push(Finding::new(Kind::Broken, place.path, problem).at(version));
        }
    }

    /// Marks a node as referenced by something other than a checked version.
    pub(super) fn mark_referenced(&mut self, path: &str) {
        self.seen.entry(fingerprint(path)).or_insert(SeenNode { version: u64::MAX, height: 0, keys: None });
    }
}

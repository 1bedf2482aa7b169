//! A tree and the dictionary that it must equal, compared after every commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::StringArray;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::apply_changes::apply_changes;
use crate::diff::{Difference, diff};
use crate::flush::Tally;
use crate::invariant::walk;
use crate::node_cache::CACHE_SIZE_BYTES;
use crate::node_store::NodeStore;
use crate::scan::Scan;
use crate::search::{get, get_many};
use crate::split_and_merge::min_keys;
use trinitylake_base::environment::testing::TestEnvironment;
use trinitylake_format::config::TreeConfig;
use trinitylake_format::key::KeyRange;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::{Compression, decode, encode};
use trinitylake_format::node::mutable_node::{Message, MutableNode};
use trinitylake_storage::memory_files::MemoryFiles;

pub type Dictionary = BTreeMap<String, String>;
pub type Changes = Vec<(String, Option<String>)>;

pub struct Model {
    pub config: TreeConfig,
    pub files: Arc<MemoryFiles>,
    pub nodes: Arc<NodeStore>,
    pub environment: Arc<TestEnvironment>,
    pub root: Arc<Node>,
    pub dictionary: Dictionary,
    /// Every key that was ever written; deleted keys are looked up as well.
    pub known: BTreeSet<String>,
    pub tally: Tally,
    /// Locations that the nodes of the latest version reference.
    pub named: BTreeSet<String>,
    /// All versions so far.
    pub versions: Vec<(Arc<Node>, Dictionary)>,
}

/// Buffers hold only a few messages, so that a short history changes the whole tree.
pub fn config(order: usize, root_cap: usize, inner_cap: usize, node_max: usize) -> TreeConfig {
    TreeConfig {
        order,
        root_buffer_size_bytes: root_cap,
        root_buffer_is_fixed: true,
        inner_buffer_size_bytes: inner_cap,
        node_max_size_bytes: node_max,
        compression: Compression::None,
        ..TreeConfig::default()
    }
}

impl Model {
    pub fn empty(config: TreeConfig, seed: u64) -> Model {
        let files = MemoryFiles::shared();
        let root = encode(&[], &MutableNode::default(), config.order, config.compression).unwrap().node;
        Model {
            config,
            nodes: Arc::new(NodeStore::new(files.clone(), CACHE_SIZE_BYTES)),
            files,
            environment: TestEnvironment::seeded(seed),
            root: Arc::new(root),
            dictionary: Dictionary::new(),
            known: BTreeSet::new(),
            tally: Tally::default(),
            named: BTreeSet::new(),
            versions: Vec::new(),
        }
    }

    /// A tree that was built at once.
    pub fn of(config: TreeConfig, dictionary: Dictionary, root: MutableNode, from: Model) -> Model {
        let named = dictionary.values().cloned().collect();
        let root = encode(&[], &root, config.order, config.compression).unwrap().node;
        Model { config, root: Arc::new(root), known: dictionary.keys().cloned().collect(), dictionary, named, ..from }
    }

    /// Commits one version: applies the changes to the tree and to the dictionary, and compares both.
    pub async fn commit(&mut self, changes: Changes) {
        let txn = format!("t{}", self.versions.len());
        let messages: Vec<Message> = changes
            .iter()
            .map(|(key, value)| {
                Message::new(key.as_str().into(), value.as_deref().map(Into::into), txn.as_str().into())
            })
            .collect();
        let (order, compression) = (self.config.order, self.config.compression);
        let (nodes, environment) = (&self.nodes, self.environment.as_ref());
        let next = apply_changes(nodes, environment, &self.config, &self.root, messages.clone(), 0).await.unwrap();
        self.tally += next.tally;
        for (path, draft) in &next.nodes {
            assert!(draft.rows.len() < order, "{path} was not split");
        }
        let encoded = next.nodes.into_iter();
        let encoded = encoded.map(|(path, draft)| (path, encode(&[], &draft, order, compression).unwrap()));
        self.nodes.write(encoded.collect()).await.unwrap();
        let system = [("version", txn.clone())];
        let root = encode(&system, &next.root, order, compression).unwrap();
        self.root = Arc::new(decode(root.bytes, "root", Some(order)).unwrap());
        self.check_named(&messages).await;
        for (key, value) in changes {
            self.known.insert(key.clone());
            match value {
                Some(value) => self.dictionary.insert(key, value),
                None => self.dictionary.remove(&key),
            };
        }
        self.versions.push((self.root.clone(), self.dictionary.clone()));
        self.check_tail(&messages, &txn);
        self.check_shape().await;
        self.check_keys(&self.nodes).await;
    }

    /// Checks rule 8: the messages of the version are the last rows of its root's buffer, and are nowhere else in the
    /// buffer.
    fn check_tail(&self, messages: &[Message], txn: &str) {
        let buffer: Vec<Message> = self.root.messages().map(Message::from).collect();
        assert!(buffer.ends_with(messages), "the tail of the root's buffer is not what the version wrote");
        let own = buffer.iter().filter(|message| &*message.txn == txn).count();
        assert_eq!(own, messages.len(), "rows of the version stand outside of the tail");
    }

    /// Checks rule 15: the nodes of a version reference only new locations and locations that the previous version
    /// referenced. Otherwise a hidden row could become visible in a new root after its definition was deleted, and
    /// every later garbage collection would fail.
    async fn check_named(&mut self, messages: &[Message]) {
        let mut named = BTreeSet::new();
        let mut waiting = vec![self.root.clone()];
        while let Some(node) = waiting.pop() {
            named.extend(node.named_locations().map(|(_, location)| location.to_string()));
            let children = if node.is_leaf() { 0 } else { node.n_keys() + 1 };
            for child in 0..children {
                waiting.push(self.nodes.load(node.child(child), None).await.unwrap());
            }
        }
        let is_new = |location: &str| messages.iter().any(|message| message.value.as_deref() == Some(location));
        let back: Vec<&String> = named.difference(&self.named).filter(|location| !is_new(location)).collect();
        assert!(back.is_empty(), "nodes reference again what the version before did not: {back:?}");
        self.named = named;
    }

    pub async fn check_shape(&self) {
        let shape = walk(&self.nodes, &self.root, "root").await.unwrap();
        assert!(shape.problems.is_empty(), "{:?}", shape.problems);
        let empty_leaf = shape.nodes.iter().skip(1).find(|node| node.height == 0 && node.n_keys == 0);
        assert!(empty_leaf.is_none(), "a leaf without keys stays in the tree: {empty_leaf:?}");
    }

    /// Checks rule 1: lookups of every known key, one by one and all at once, return the values of the dictionary.
    pub async fn check_keys(&self, nodes: &NodeStore) {
        let keys = StringArray::from_iter_values(&self.known);
        let found = get_many(nodes, &self.root, &keys).await.unwrap();
        for (i, (key, location)) in self.known.iter().zip(found).enumerate() {
            let expected = self.dictionary.get(key);
            let found = location.as_ref().map(|location| location.as_str());
            assert_eq!(found, expected.map(String::as_str), "get_many of {key}");
            if i % 7 == self.versions.len() % 7 {
                let found = get(nodes, &self.root, key).await.unwrap();
                assert_eq!(found.as_ref(), expected, "get of {key}");
            }
        }
        assert_eq!(get(nodes, &self.root, "never written").await.unwrap(), None);
    }

    /// Begins with an empty cache, like another process.
    pub fn cold_nodes(&self) -> Arc<NodeStore> {
        Arc::new(NodeStore::new(self.files.clone(), 0))
    }

    pub async fn check_scans(&self, generator: &mut StdRng) {
        let nodes = self.cold_nodes();
        self.check_scan(&nodes, KeyRange::all(), None).await;
        for _ in 0..4 {
            let limit = generator.random_bool(0.5).then(|| generator.random_range(0..20));
            let range = self.random_range(generator);
            self.check_scan(&nodes, range, limit).await;
        }
    }

    /// Returns a random range: all keys with a prefix of a known key, or the keys from one known key to another one or
    /// to the end.
    fn random_range(&self, generator: &mut StdRng) -> KeyRange {
        let mut pick = || {
            let i = generator.random_range(0..self.known.len().max(1));
            self.known.iter().nth(i).cloned().unwrap_or_default()
        };
        let (one, other) = (pick(), pick());
        match generator.random_range(0..3) {
            0 => KeyRange::prefix(&one[..generator.random_range(0..=one.len())]),
            1 => KeyRange { start: one, end: None },
            _ => KeyRange { start: one.clone().min(other.clone()), end: Some(one.max(other)) },
        }
    }

    async fn check_scan(&self, nodes: &Arc<NodeStore>, range: KeyRange, limit: Option<usize>) {
        let expected: Vec<(&String, &String)> =
            self.dictionary.iter().filter(|(key, _)| range.contains(key)).take(limit.unwrap_or(usize::MAX)).collect();
        for with_locations in [true, false] {
            let mut scan = Scan::new(nodes.clone(), self.root.clone(), range.clone(), limit, with_locations);
            let (mut keys, mut locations) = (Vec::new(), Vec::new());
            while let Some(batch) = scan.next_batch().await.unwrap() {
                assert_eq!(batch.locations.is_some(), with_locations);
                keys.extend(batch.keys.iter().map(|key| key.unwrap().to_string()));
                let texts = batch.locations.iter().flatten();
                locations.extend(texts.map(|location| location.unwrap().to_string()));
            }
            assert!(keys.iter().eq(expected.iter().map(|(key, _)| *key)), "keys of {range:?}, limit {limit:?}");
            if with_locations {
                let expected = expected.iter().map(|(_, location)| *location);
                assert!(locations.iter().eq(expected), "locations of {range:?}, limit {limit:?}");
            }
        }
    }

    /// Checks rule 12 for two versions in either order.
    pub async fn check_diff(&self, generator: &mut StdRng) {
        let mut pick = || &self.versions[generator.random_range(0..self.versions.len())];
        let ((before, old), (after, new)) = (pick(), pick());
        let found = diff(&self.nodes, before, after).await.unwrap();
        assert_eq!(found, difference(old, new));
    }

    /// Checks that every node except the root has at least the minimum number of keys of a bulk build.
    pub async fn check_filled(&self) {
        let shape = walk(&self.nodes, &self.root, "root").await.unwrap();
        let least = min_keys(self.config.order);
        let underfull = shape.nodes.iter().skip(1).find(|node| node.n_keys < least);
        assert!(underfull.is_none(), "underfull: {underfull:?}");
    }
}

fn difference(old: &Dictionary, new: &Dictionary) -> Vec<Difference> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let keys = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    keys.map(|key| Difference { key: key.clone(), before: old.get(key).cloned(), after: new.get(key).cloned() })
        .collect()
}

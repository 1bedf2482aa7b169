//! Fsck: checks that a lakehouse obeys the rules of its format: roots, trees, definitions, and saved transactions.
//!
//! A [`Fsck`] checks versions in ascending order. Nodes and definitions that several versions share are read once.
//! Memory holds a fingerprint of each path and the work in progress.
//!
//! A faulty definition is reported only if it is the value of its key in a checked version: a row that a newer message
//! hides may reference a definition that was deleted long ago.
//!
//! Each step returns table definitions; the caller checks the Iceberg files of these tables.

mod affected_versions;
mod definition_checks;
mod finding;
mod node_checks;
mod node_place;
pub mod repair;
mod root_checks;
mod root_listing;
mod unreferenced_files;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Result;
use crate::key::{NameSizes, ObjectKind};
use crate::node::mutable_node::Text;
use crate::storage::Storage;
use crate::tree::node_store::NodeStore;
use crate::version::root_metadata::RootMetadata;
use finding::Suspect;
pub use finding::{Finding, FoundTable, Kind};
use node_place::{BadNode, Place};
use root_listing::NODE_CACHE_SIZE_BYTES;
pub use root_listing::{RootListing, Scope};

#[derive(Debug, Default)]
pub struct Step {
    pub findings: Vec<Finding>,
    pub tables: Vec<FoundTable>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub versions: u64,
    pub nodes: u64,
    pub definitions: u64,
}

/// Summary of a node that a root or another node references.
#[derive(Clone, Debug)]
struct SeenNode {
    /// The last checked version that references the node.
    pub version: u64,
    pub height: u32,
    /// The first and last key of the node, if the node has been read.
    pub keys: Option<(Text, Text)>,
}

/// The root of the previous checked version.
#[derive(Clone, Debug)]
struct PreviousRoot {
    pub number: u64,
    pub metadata: RootMetadata,
}

/// A running check, which stops when it is dropped.
#[derive(Debug)]
pub struct Fsck {
    storage: Arc<dyn Storage>,
    nodes: NodeStore,
    listing: RootListing,
    wants_tables: bool,
    names: NameSizes,
    order: usize,
    /// Versions to check; the last element is the next one.
    versions: Vec<u64>,
    checked: Vec<u64>,
    current: u64,
    previous: Option<PreviousRoot>,
    /// Nodes to read.
    waiting: Vec<Place>,
    /// The nodes that were found, by the fingerprint of their path.
    seen: HashMap<u64, SeenNode>,
    /// Fingerprints of the definitions that were found.
    locations: HashSet<u64>,
    lakehouse_definitions: HashSet<String>,
    /// Definitions in the root of the current version, by path.
    inline_definitions: BTreeMap<String, Bytes>,
    bad_nodes: Vec<BadNode>,
    suspects: Vec<Suspect>,
    findings: Vec<Finding>,
    /// Folders to search for unreferenced files; the last element is the next one.
    folders: Vec<String>,
    /// Whether the affected versions of all faults are known.
    has_affected: bool,
    pub counts: Counts,
}

impl Fsck {
    /// Starts a check. `storage` must retry requests. `NotALakehouse` if no root exists, `VersionNotFound` or
    /// `VersionExpired` if versions of the range do not exist.
    pub async fn begin(storage: Arc<dyn Storage>, scope: Scope, wants_tables: bool) -> Result<Fsck> {
        let listing = RootListing::read(&storage).await?;
        let nodes = NodeStore::new(storage.clone(), NODE_CACHE_SIZE_BYTES);
        let mut versions = listing.numbers(scope)?;
        versions.reverse();
        let (names, order) = match &listing.intact {
            Some(version) => (version.config.names, version.config.order),
            None => (NameSizes::default(), 0),
        };
        let folders = if scope == Scope::All { unreferenced_files::folders() } else { Vec::new() };
        Ok(Fsck {
            findings: listing.findings(scope),
            storage,
            nodes,
            wants_tables,
            names,
            order,
            versions,
            checked: Vec::new(),
            current: 0,
            previous: None,
            waiting: Vec::new(),
            seen: HashMap::new(),
            locations: HashSet::new(),
            lakehouse_definitions: HashSet::new(),
            inline_definitions: BTreeMap::new(),
            bad_nodes: Vec::new(),
            suspects: Vec::new(),
            folders,
            has_affected: false,
            counts: Counts::default(),
            listing,
        })
    }

    /// Executes the next step and returns its result; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Step>> {
        let mut step = Step::default();
        if !self.waiting.is_empty() {
            step.tables = self.visit_nodes().await?;
        } else if let Some(number) = self.versions.pop() {
            step.tables = self.begin_version(number).await?;
        } else if !self.has_affected {
            self.has_affected = true;
            self.find_affected().await?;
        } else if let Some(folder) = self.folders.pop() {
            self.find_unreferenced(&folder).await?;
        } else {
            return Ok(None);
        }
        step.findings = std::mem::take(&mut self.findings);
        Ok(Some(step))
    }

    async fn begin_version(&mut self, number: u64) -> Result<Vec<FoundTable>> {
        self.current = number;
        self.checked.push(number);
        let Some(root) = self.check_root(number).await? else {
            self.previous = None;
            return Ok(Vec::new());
        };
        self.counts.versions += 1;
        self.counts.nodes += 1;
        let path = self.listing.root_file(number);
        let height = match root.height() {
            Some(height) => height,
            None => match self.nodes.height_of(&root).await {
                Ok(height) => height,
                Err(error) => {
                    self.findings.push(Finding::of(&error, &path).at(number));
                    return Ok(Vec::new());
                }
            },
        };
        let place = Place { path, height, above: None, below: None };
        let named = self.check_node(&place, &root);
        self.check_definitions(named).await
    }

    /// The number of versions to check.
    pub fn total_versions(&self) -> u64 {
        (self.versions.len() + self.checked.len()) as u64
    }

    fn name_of(&self, key: &str) -> Option<(ObjectKind, String, String)> {
        let (kind, namespace, name) = self.names.decode_parts(key)?;
        Some((kind, namespace.to_string(), name.to_string()))
    }
}

fn fingerprint(path: &str) -> u64 {
    xxh3_64(path.as_bytes())
}

#[cfg(test)]
mod tests;

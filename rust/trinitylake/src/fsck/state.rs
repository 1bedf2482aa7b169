//! State of a check.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::finding::{Finding, Suspect};
use super::place::{BadNode, Place};
use super::survey::Survey;
use crate::key::{NameSizes, ObjectKind};
use crate::node::mutable_node::Text;
use crate::storage::Storage;
use crate::tree::node_store::NodeStore;
use crate::version::root_metadata::RootMetadata;

/// The progress of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub versions: u64,
    pub nodes: u64,
    pub definitions: u64,
}

/// Summary of a node that a parent references.
#[derive(Clone, Debug)]
pub(super) struct SeenNode {
    /// The last checked version that references it.
    pub version: u64,
    pub height: u32,
    /// Its first and last key, if it has been read.
    pub keys: Option<(Text, Text)>,
}

/// The root of the previous checked version.
#[derive(Clone, Debug)]
pub(super) struct PreviousRoot {
    pub number: u64,
    pub metadata: RootMetadata,
}

/// A running check. Dropping it stops it.
#[derive(Debug)]
pub struct Fsck {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) nodes: NodeStore,
    pub(super) survey: Survey,
    pub(super) wants_tables: bool,
    pub(super) names: NameSizes,
    pub(super) order: usize,
    /// Versions to check; the last element is the next one.
    pub(super) versions: Vec<u64>,
    pub(super) checked: Vec<u64>,
    pub(super) current: u64,
    pub(super) previous: Option<PreviousRoot>,
    /// Nodes to read.
    pub(super) waiting: Vec<Place>,
    /// The nodes that were found, by the fingerprint of their path.
    pub(super) seen: HashMap<u64, SeenNode>,
    /// Fingerprints of the definitions that were found.
    pub(super) locations: HashSet<u64>,
    pub(super) lakehouse_definitions: HashSet<String>,
    /// Definitions in the root of the current version, by path.
    pub(super) inline_definitions: BTreeMap<String, Bytes>,
    pub(super) bad_nodes: Vec<BadNode>,
    pub(super) suspects: Vec<Suspect>,
    pub(super) findings: Vec<Finding>,
    /// Folders to search for unreferenced files; the last element is the next one.
    pub(super) folders: Vec<String>,
    /// Whether the affected versions of all faults are known.
    pub(super) has_affected: bool,
    pub counts: Counts,
}

impl Fsck {
    /// The number of versions to check.
    pub fn total_versions(&self) -> u64 {
        (self.versions.len() + self.checked.len()) as u64
    }

    pub(super) fn name_of(&self, key: &str) -> Option<(ObjectKind, String, String)> {
        let (kind, namespace, name) = self.names.decode_parts(key)?;
        Some((kind, namespace.to_string(), name.to_string()))
    }
}

pub(super) fn fingerprint(path: &str) -> u64 {
    xxh3_64(path.as_bytes())
}

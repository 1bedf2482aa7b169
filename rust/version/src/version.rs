//! One version: its root, the metadata in it, and its tree.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::expired_versions;
use crate::read_definition::read_definition;
use crate::root_metadata::RootMetadata;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::config::TreeConfig;
use trinitylake_format::definition_file::decode_file;
use trinitylake_format::file_names::root_path;
use trinitylake_format::key::{KeyRange, ObjectKind};
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_format::node::Node;
use trinitylake_tree::diff::{Difference, diff_between};
use trinitylake_tree::invariant::{Shape, walk};
use trinitylake_tree::node_store::NodeStore;
use trinitylake_tree::scan::Scan;
use trinitylake_tree::search;

/// The lakehouse in one version. Immutable and shared by its readers.
#[derive(Debug)]
pub struct Version {
    pub number: u64,
    pub root_path: String,
    pub root: Arc<Node>,
    pub metadata: RootMetadata,
    pub definition: Arc<LakehouseDefinition>,
    pub config: TreeConfig,
    nodes: Arc<NodeStore>,
    changes: OnceLock<Arc<[KeyChange]>>,
    /// Whether this process knows that the files of all inline definitions exist.
    are_definitions_written: AtomicBool,
}

/// A key that a version wrote, with the transaction that wrote it (an index into `committed`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub key: String,
    pub transaction: usize,
}

impl Version {
    pub fn new(
        number: u64,
        root: Arc<Node>,
        metadata: RootMetadata,
        definition: Arc<LakehouseDefinition>,
        nodes: Arc<NodeStore>,
    ) -> Result<Version> {
        let config = TreeConfig::of(&definition)?;
        let root_path = root_path(number);
        if root.order() != config.order {
            let message =
                format!("its key table has {} rows, the order of this lakehouse is {}", root.order(), config.order);
            return Err(Error::corrupt(root_path, message));
        }
        let (changes, are_definitions_written) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Version { number, root_path, root, metadata, definition, config, nodes, changes, are_definitions_written })
    }

    /// Returns the definitions in the root whose files may not exist. The next root must contain them as well, unless
    /// their files are written before it.
    pub fn unwritten_definitions(&self) -> BTreeMap<String, Bytes> {
        match self.are_definitions_written.load(Ordering::Relaxed) {
            true => BTreeMap::new(),
            false => self.metadata.inline_definitions.clone(),
        }
    }

    /// Records that the files of all inline definitions are durable.
    pub fn definitions_are_written(&self) {
        self.are_definitions_written.store(true, Ordering::Relaxed);
    }

    pub fn nodes(&self) -> &Arc<NodeStore> {
        &self.nodes
    }

    /// Location of the definition file of an object, if it exists.
    pub async fn locate(&self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<String>> {
        self.get(&self.config.names.key(kind, namespace, name)?).await
    }

    /// The definition of an object; `None` for an unknown name.
    pub async fn read(&self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<Bytes>> {
        match self.locate(kind, namespace, name).await? {
            Some(location) => self.read_definition(&location).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the location for a key; `None` if no object has it.
    pub async fn get(&self, key: &str) -> Result<Option<String>> {
        self.unless_expired(search::get(&self.nodes, &self.root, key).await).await
    }

    /// Replaces the error `CorruptFile` by `VersionExpired` if this version has expired, because its files may have
    /// been deleted. If the boundary cannot be read, returns the error of the store.
    pub async fn unless_expired<T>(&self, read: Result<T>) -> Result<T> {
        let Err(error @ Error::CorruptFile { .. }) = read else { return read };
        match expired_versions::check_retained(&self.nodes, self.number).await {
            Err(answer @ (Error::VersionExpired(_) | Error::Storage { .. } | Error::PermissionDenied(_))) => {
                Err(answer)
            }
            _ => Err(error),
        }
    }

    /// The definition at a location, from the root or from its file. `CorruptFile` if its checksum or its path is wrong.
    pub async fn read_definition(&self, location: &str) -> Result<Bytes> {
        if let Some(file) = self.metadata.held_definition(location) {
            return decode_file(location, file);
        }
        self.unless_expired(read_definition(&self.nodes, location).await).await
    }

    pub fn scan(&self, range: KeyRange, limit: Option<usize>, with_locations: bool) -> Scan<NodeStore> {
        Scan::new(self.nodes.clone(), self.root.clone(), range, limit, with_locations)
    }

    /// Differences from this version to `newer`, by key.
    pub async fn diff(&self, newer: &Version) -> Result<Vec<Difference>> {
        let (old, new) = ((self.nodes.as_ref(), &self.root), (newer.nodes.as_ref(), &newer.root));
        newer.unless_expired(self.unless_expired(diff_between(old, new).await).await).await
    }

    /// All nodes of the tree.
    pub async fn shape(&self) -> Result<Shape> {
        self.unless_expired(walk(&self.nodes, &self.root, &self.root_path).await).await
    }

    /// Returns the changes of this version if they are messages in its root, and therefore need no other file.
    pub fn recorded_changes(&self) -> Option<Arc<[KeyChange]>> {
        if let Some(changes) = self.changes.get() {
            return Some(changes.clone());
        }
        self.metadata.messages_tell_changes().then(|| self.changes.get_or_init(|| self.message_changes()).clone())
    }

    fn message_changes(&self) -> Arc<[KeyChange]> {
        self.metadata
            .own_messages(&self.root)
            .map(|(message, transaction)| KeyChange { key: message.key.to_string(), transaction })
            .collect()
    }

    /// Returns the changes of this version: the messages of its transactions in the root's buffer. A rollback or a bulk
    /// registration has no messages, so its tree is compared with the tree of the previous version.
    pub async fn changes(&self, previous: &Version) -> Result<Arc<[KeyChange]>> {
        if let Some(changes) = self.recorded_changes() {
            return Ok(changes);
        }
        let differences = previous.diff(self).await?;
        let changes = differences
            .into_iter()
            .map(|difference| KeyChange { key: difference.key, transaction: 0 })
            .collect::<Arc<[KeyChange]>>();
        Ok(self.changes.get_or_init(|| changes).clone())
    }
}

//! Fsck: checks that a lakehouse keeps the rules of its format: roots, trees, definitions, and the small files.
//!
//! A [`Fsck`] goes from version to version, the oldest first. A node that several versions share is read once, as is a
//! definition that several nodes name. Memory holds a fingerprint of each path that was seen, and the work in progress.
//!
//! A row that a newer message hides may name a definition that was deleted long ago. So a faulty definition is reported
//! only if a checked version shows it.
//!
//! The content of table files is checked by the layer above, which gets the definitions of tables with each step.

mod definitions;
mod places;
pub mod repair;
mod roots;
mod unreferenced;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::key::{NameSizes, ObjectKind};
use crate::node::Node;
use crate::node::codec::decode;
use crate::storage::Storage;
use crate::tree::node_store::NodeStore;
use crate::tree::nodes::PARALLEL_REQUESTS;
use crate::version::discovery;
use definitions::Suspect;
use places::{BadNode, Place, Seen};
use roots::PreviousRoot;
pub use roots::Survey;

/// Decoded nodes that are kept for look-ups.
const CACHE_SIZE_BYTES: u64 = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that is named is not there.
    Missing,
    /// A file cannot be read, or does not hold what was written.
    Damaged,
    /// A file is whole, and does not belong where it is.
    Misplaced,
    /// Files contradict each other.
    Broken,
    /// The hint does not hold a version.
    Hint,
    /// No version that is kept reaches the file. That is for garbage collection, and harms nobody.
    Unreferenced,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Missing => "missing",
            Kind::Damaged => "damaged",
            Kind::Misplaced => "misplaced",
            Kind::Broken => "broken",
            Kind::Hint => "hint",
            Kind::Unreferenced => "unreferenced",
        }
    }
}

/// A fault of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    pub path: String,
    pub message: String,
    /// Affected versions among the checked ones, ascending.
    pub versions: Vec<u64>,
    /// Names of objects that are harmed, or the range of them.
    pub affected: Vec<String>,
}

impl Finding {
    fn new(kind: Kind, path: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding {
            kind,
            path: path.into(),
            message: message.into(),
            versions: Vec::new(),
            affected: Vec::new(),
        }
    }

    fn of(error: &Error, path: &str) -> Finding {
        let kind = if error.is_file_not_found() { Kind::Missing } else { Kind::Damaged };
        let message = match error {
            Error::CorruptFile { message, .. } => message.clone(),
            Error::FileNotFound { .. } => "it is not there".into(),
            other => other.to_string(),
        };
        Finding::new(kind, path, message)
    }

    fn at(mut self, version: u64) -> Finding {
        self.versions = vec![version];
        self
    }
}

/// Which versions are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Latest,
    /// Both ends are checked.
    Range(u64, u64),
    /// All kept and tagged versions, and unreferenced files.
    All,
}

/// Definition of a table. The layer above checks the files of the table.
#[derive(Clone, Debug)]
pub struct FoundTable {
    pub namespace: String,
    pub name: String,
    pub location: String,
    pub definition: Bytes,
}

/// A part of the work that is done.
#[derive(Debug, Default)]
pub struct Step {
    pub findings: Vec<Finding>,
    pub tables: Vec<FoundTable>,
}

/// Progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub versions: u64,
    pub nodes: u64,
    pub definitions: u64,
}

/// A check under way. To stop it, drop it.
#[derive(Debug)]
pub struct Fsck {
    storage: Arc<dyn Storage>,
    nodes: NodeStore,
    survey: Survey,
    wants_tables: bool,
    names: NameSizes,
    order: usize,
    /// Still to be checked, the last one first.
    numbers: Vec<u64>,
    checked: Vec<u64>,
    current: u64,
    previous: Option<PreviousRoot>,
    waiting: Vec<Place>,
    seen: HashMap<u64, Seen>,
    locations: HashSet<u64>,
    lakehouse_definitions: HashSet<String>,
    /// Of the version that is checked.
    inline_definitions: BTreeMap<String, Bytes>,
    bad_nodes: Vec<BadNode>,
    suspects: Vec<Suspect>,
    findings: Vec<Finding>,
    /// Folders that are still to be looked through for what nothing refers to.
    folders: Vec<String>,
    is_concluded: bool,
    pub counts: Counts,
}

pub(crate) fn fingerprint(path: &str) -> u64 {
    xxh3_64(path.as_bytes())
}

impl Fsck {
    /// `storage` repeats requests. `NotALakehouse` if there is no root at all, `VersionNotFound` or `VersionExpired`
    /// for a version that is not there.
    pub async fn begin(storage: Arc<dyn Storage>, scope: Scope, wants_tables: bool) -> Result<Fsck> {
        let survey = Survey::take(&storage).await?;
        let nodes = NodeStore::new(storage.clone(), CACHE_SIZE_BYTES);
        let mut numbers = survey.numbers(scope)?;
        numbers.reverse();
        let (names, order) = match &survey.intact {
            Some(version) => (version.config.names, version.config.order),
            None => (NameSizes::default(), 0),
        };
        let folders = if scope == Scope::All { unreferenced::folders() } else { Vec::new() };
        Ok(Fsck {
            findings: survey.findings(scope),
            storage,
            nodes,
            wants_tables,
            names,
            order,
            numbers,
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
            is_concluded: false,
            counts: Counts::default(),
            survey,
        })
    }

    /// Number of versions to check.
    pub fn total_versions(&self) -> u64 {
        (self.numbers.len() + self.checked.len()) as u64
    }

    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Step>> {
        let mut step = Step::default();
        if !self.waiting.is_empty() {
            step.tables = self.visit_some().await?;
        } else if let Some(number) = self.numbers.pop() {
            step.tables = self.begin_version(number).await?;
        } else if !self.is_concluded {
            self.is_concluded = true;
            self.conclude().await?;
        } else if let Some(folder) = self.folders.pop() {
            self.look_for_unreferenced(&folder).await?;
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
        let path = self.survey.root_file(number);
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
        let named = self.take_node(&place, &root);
        self.check_definitions(named).await
    }

    /// Reads the next nodes that wait, and the definitions that they name.
    async fn visit_some(&mut self) -> Result<Vec<FoundTable>> {
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
                    named.extend(self.take_node(&place, &node));
                }
                Err(
                    error @ (Error::FileNotFound { .. }
                    | Error::CorruptFile { .. }
                    | Error::InvalidLocation(_)),
                ) => {
                    self.bad_nodes.push(BadNode { finding: Finding::of(&error, &place.path), place });
                }
                Err(error) => return Err(error),
            }
        }
        self.check_definitions(named).await
    }

    /// Tells in which versions bad nodes and definitions harm, once all are read.
    async fn conclude(&mut self) -> Result<()> {
        let roots = self.loaded_roots().await;
        for BadNode { mut finding, place } in std::mem::take(&mut self.bad_nodes) {
            for (number, root) in &roots {
                if places::leads_to(&self.nodes, root, &place).await {
                    finding.versions.push(*number);
                }
            }
            finding.affected = vec![place.range(self.names)];
            self.findings.push(finding);
        }
        for suspect in std::mem::take(&mut self.suspects) {
            let mut finding = suspect.finding;
            for (number, root) in &roots {
                let found = crate::tree::search::get(&self.nodes, root, &suspect.key).await;
                if matches!(found, Ok(Some(location)) if location == finding.path) {
                    finding.versions.push(*number);
                }
            }
            // The record of an id goes after its key: versions before that still name it.
            let newest = self.survey.intact.as_ref().map(|version| version.number);
            let is_gone = finding.kind == Kind::Missing
                && suspect.key.starts_with(ObjectKind::TransactionRecord.prefix())
                && !newest.is_some_and(|newest| finding.versions.contains(&newest));
            if !finding.versions.is_empty() && !is_gone {
                finding.affected =
                    self.names.decode(&suspect.key).map(|name| name.to_string()).into_iter().collect();
                self.findings.push(finding);
            }
        }
        Ok(())
    }

    /// The roots of the versions that were checked, if there is anything to look up in them.
    async fn loaded_roots(&self) -> Vec<(u64, Arc<Node>)> {
        let mut roots = Vec::new();
        if self.bad_nodes.is_empty() && self.suspects.is_empty() {
            return roots;
        }
        for number in &self.checked {
            if let Ok(root) = self.nodes.load(&self.survey.root_file(*number), None).await {
                roots.push((*number, root));
            }
        }
        roots
    }

    fn name_of(&self, key: &str) -> Option<(ObjectKind, String, String)> {
        let (kind, namespace, name) = self.names.decode_parts(key)?;
        Some((kind, namespace.to_string(), name.to_string()))
    }

    async fn root_bytes(&self, number: u64) -> Result<Bytes> {
        discovery::root(self.storage.as_ref(), number).await
    }
}

#[cfg(test)]
mod tests;

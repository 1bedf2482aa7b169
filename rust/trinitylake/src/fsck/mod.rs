//! Fsck: checks that a lakehouse obeys the rules of its format: roots, trees, definitions, and saved transactions.
//!
//! A [`Fsck`] checks versions in ascending order. Nodes and definitions that several versions share are read once.
//! Memory holds a fingerprint of each path and the work in progress.
//!
//! A row that a newer message hides may name a definition that was deleted long ago. So a faulty definition is reported
//! only if a checked version shows it.
//!
//! The caller checks the Iceberg files of the tables, whose definitions each step returns.

mod affected_versions;
mod definition_checks;
mod finding;
mod node_checks;
mod place;
pub mod repair;
mod root_checks;
mod state;
mod survey;
mod unreferenced_files;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::error::Result;
use crate::key::NameSizes;
use crate::storage::Storage;
use crate::tree::node_store::NodeStore;
pub use finding::{Finding, FoundTable, Kind};
use place::Place;
pub use state::{Counts, Fsck};
use survey::NODE_CACHE_SIZE_BYTES;
pub use survey::{Scope, Survey};

/// The results of one step.
#[derive(Debug, Default)]
pub struct Step {
    pub findings: Vec<Finding>,
    pub tables: Vec<FoundTable>,
}

impl Fsck {
    /// Start a check. `storage` retries requests. Fails with `NotALakehouse` without any root, and with
    /// `VersionNotFound` or `VersionExpired` for a range of versions that do not exist.
    pub async fn begin(storage: Arc<dyn Storage>, scope: Scope, wants_tables: bool) -> Result<Fsck> {
        let survey = Survey::take(&storage).await?;
        let nodes = NodeStore::new(storage.clone(), NODE_CACHE_SIZE_BYTES);
        let mut versions = survey.numbers(scope)?;
        versions.reverse();
        let (names, order) = match &survey.intact {
            Some(version) => (version.config.names, version.config.order),
            None => (NameSizes::default(), 0),
        };
        let folders = if scope == Scope::All { unreferenced_files::folders() } else { Vec::new() };
        Ok(Fsck {
            findings: survey.findings(scope),
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
            survey,
        })
    }

    /// Execute the next step; `None` at the end.
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
        let named = self.check_node(&place, &root);
        self.check_definitions(named).await
    }
}

#[cfg(test)]
mod tests;

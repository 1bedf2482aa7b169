//! Listing of the root files: which versions exist, which are missing, and which to check (format §§4, 7).

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::{join3, try_join};

use super::finding::{Finding, Kind};
use crate::error::{Error, Result};
use crate::file_names::{LATEST_HINT_PATH, root_path, root_version};
use crate::storage::Storage;
use crate::tree::node_store::NodeStore;
use crate::version::{Version, discovery, expiry_boundary, newest_intact};

/// The size of the node cache of a check.
pub(super) const NODE_CACHE_SIZE_BYTES: u64 = 32 << 20;

/// Which versions are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Latest,
    /// From a first to a last version, both inclusive.
    Range(u64, u64),
    /// All retained and tagged versions, and unreferenced files.
    All,
}

/// Maximum number of missing versions in a report.
const REPORTED_GAPS_MAX: usize = 1000;

/// The root files, hint and expiry boundary of a lakehouse.
#[derive(Clone, Debug)]
pub struct RootListing {
    /// The paths of all root files by version, including expired ones.
    pub roots: BTreeMap<u64, String>,
    pub boundary: u64,
    /// The version in the hint file, if the file can be decoded.
    pub hint: Option<u64>,
    /// Whether the hint file exists.
    pub has_hint: bool,
    /// The newest readable version.
    pub intact: Option<Arc<Version>>,
    /// Tagged versions below the boundary.
    pub tagged: Vec<u64>,
}

impl RootListing {
    /// Lists the roots. `NotALakehouse` if there is none.
    pub async fn read(storage: &Arc<dyn Storage>) -> Result<RootListing> {
        let (hint, has_hint, oldest) = join3(
            discovery::read_hint(storage.as_ref()),
            storage.exists(LATEST_HINT_PATH),
            expiry_boundary::boundary(storage.as_ref()),
        )
        .await;
        let (boundary, has_hint) = (oldest?, has_hint?);
        let (zeros, ones) = try_join(storage.list("_0"), storage.list("_1")).await?;
        let files = zeros.into_iter().chain(ones).filter_map(|file| Some((root_version(&file.path)?, file.path)));
        let roots: BTreeMap<u64, String> = files.collect();
        let Some(highest) = roots.keys().next_back().copied() else {
            return Err(Error::NotALakehouse("there is no root node file".into()));
        };
        let nodes = Arc::new(NodeStore::new(storage.clone(), NODE_CACHE_SIZE_BYTES));
        let intact = newest_intact(&nodes, highest.saturating_add(1)).await?.map(Arc::new);
        let tags = intact.iter().flat_map(|version| version.definition.exported_snapshots().values());
        let mut tagged: Vec<u64> =
            tags.filter_map(|path| root_version(path)).filter(|number| *number < boundary).collect();
        tagged.sort_unstable();
        tagged.dedup();
        Ok(RootListing { roots, boundary, hint, has_hint, intact, tagged })
    }

    /// Returns the highest version with a root file, readable or not.
    pub fn highest(&self) -> u64 {
        self.roots.keys().next_back().copied().unwrap_or_default()
    }

    /// Returns the highest version number that a root file or the hint has.
    pub fn newest(&self) -> u64 {
        let highest = self.highest();
        self.hint.map_or(highest, |hint| hint.max(highest))
    }

    pub fn has(&self, number: u64) -> bool {
        self.roots.contains_key(&number)
    }

    pub(super) fn root_file(&self, number: u64) -> String {
        self.roots.get(&number).cloned().unwrap_or_else(|| root_path(number))
    }

    /// Returns the versions to check, ascending.
    pub(super) fn numbers(&self, scope: Scope) -> Result<Vec<u64>> {
        let highest = self.highest();
        let (first, last) = match scope {
            Scope::Latest => (highest, highest),
            Scope::Range(first, last) => (first, last),
            Scope::All => (self.boundary, highest),
        };
        let is_kept = |number: u64| number >= self.boundary || self.tagged.contains(&number);
        if let Scope::Range(first, last) = scope {
            if last > self.newest() || first > last {
                let message = format!("there are no versions {first} to {last}; the latest is {}", self.newest());
                return Err(Error::VersionNotFound(message));
            }
            if !is_kept(first) {
                let message = format!("version {first} has expired; the oldest kept is {}", self.boundary);
                return Err(Error::VersionExpired(message));
            }
        }
        let tagged = self.tagged.iter().copied().filter(|_| scope == Scope::All);
        let kept = self.roots.keys().copied().filter(|number| (first..=last).contains(number) && is_kept(*number));
        let mut numbers: Vec<u64> = tagged.chain(kept).filter(|number| self.has(*number)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Returns faults of the hint, missing roots, and roots of expired versions.
    pub(super) fn findings(&self, scope: Scope) -> Vec<Finding> {
        let mut findings = Vec::new();
        let highest = self.highest();
        match self.hint {
            None if self.has_hint => {
                findings.push(Finding::new(Kind::Hint, LATEST_HINT_PATH, "it does not contain a version number"));
            }
            None => findings.push(Finding::new(Kind::Hint, LATEST_HINT_PATH, "the file is missing")),
            Some(_) => {}
        }
        let missing = |number: u64| {
            let message = format!("the root node file of version {number} is missing");
            Finding::new(Kind::Missing, root_path(number), message).at(number)
        };
        let lost = highest.saturating_add(1)..=self.newest();
        let gaps = (self.boundary..=highest).filter(|number| !self.has(*number));
        findings.extend(gaps.chain(lost.filter(|number| *number > highest)).take(REPORTED_GAPS_MAX).map(missing));
        let missing_tagged = self.tagged.iter().filter(|number| !self.has(**number));
        findings.extend(missing_tagged.map(|number| missing(*number)));
        if scope == Scope::All {
            let expired = self.roots.keys().filter(|number| **number < self.boundary);
            let untagged = expired.filter(|number| !self.tagged.contains(number));
            findings.extend(untagged.map(|number| {
                Finding::new(Kind::Unreferenced, self.root_file(*number), "the root of an expired version")
            }));
        }
        findings
    }
}

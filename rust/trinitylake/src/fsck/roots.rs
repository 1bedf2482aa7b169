//! Checks of roots, hint and boundary: which versions exist, and what their roots say about each other (format §§4, 7).

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::{join3, try_join};

use super::{Finding, Fsck, Kind, Scope};
use crate::definition::LakehouseDefinition;
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::node::codec::decode;
use crate::path::{LATEST_HINT_PATH, root_path, root_path_000, root_version};
use crate::storage::Storage;
use crate::tree::node_store::NodeStore;
use crate::version::root_metadata::{
    INLINE_DEFINITIONS, LAKEHOUSE_DEF_INLINE, LastRollback, RootMetadata, damaged_inline_definitions,
};
use crate::version::{Version, boundary, discovery, newest_intact};

/// Missing versions that are reported one by one.
const GAPS_TOLD: usize = 1000;

/// Which versions a lakehouse has.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The names of the root files, those below the boundary too.
    pub roots: BTreeMap<u64, String>,
    pub boundary: u64,
    /// The number in the hint file, if there is one.
    pub hint: Option<u64>,
    /// The hint file is there.
    pub has_hint: bool,
    /// The newest version that can be read.
    pub intact: Option<Arc<Version>>,
    /// Versions that named snapshots keep, below the boundary.
    pub snapshots: Vec<u64>,
}

impl Survey {
    pub async fn take(storage: &Arc<dyn Storage>) -> Result<Survey> {
        let (hint, has_hint, oldest) = join3(
            discovery::read_hint(storage.as_ref()),
            storage.exists(LATEST_HINT_PATH),
            boundary::boundary(storage.as_ref()),
        )
        .await;
        let (boundary, has_hint) = (oldest?, has_hint?);
        let (zeros, ones) = try_join(storage.list("_0"), storage.list("_1")).await?;
        let named =
            zeros.into_iter().chain(ones).filter_map(|file| Some((root_version(&file.path)?, file.path)));
        let roots: BTreeMap<u64, String> = named.collect();
        let Some(highest) = roots.keys().next_back().copied() else {
            return Err(Error::NotALakehouse("there is no root node file".into()));
        };
        let nodes = Arc::new(NodeStore::new(storage.clone(), super::CACHE_SIZE_BYTES));
        let intact = newest_intact(&nodes, highest.saturating_add(1)).await?.map(Arc::new);
        let kept = intact.iter().flat_map(|version| version.definition.exported_snapshots().values());
        let mut snapshots: Vec<u64> =
            kept.filter_map(|path| root_version(path)).filter(|number| *number < boundary).collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        Ok(Survey { roots, boundary, hint, has_hint, intact, snapshots })
    }

    /// The highest version whose root file is there, whether it can be read or not.
    pub fn highest(&self) -> u64 {
        self.roots.keys().next_back().copied().unwrap_or_default()
    }

    /// The highest number that is known to have been given to a version.
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

    /// Versions to be checked, ascending.
    pub(super) fn numbers(&self, scope: Scope) -> Result<Vec<u64>> {
        let highest = self.highest();
        let (first, last) = match scope {
            Scope::Latest => (highest, highest),
            Scope::Range(first, last) => (first, last),
            Scope::All => (self.boundary, highest),
        };
        let is_kept = |number: u64| number >= self.boundary || self.snapshots.contains(&number);
        if let Scope::Range(first, last) = scope {
            if last > self.newest() || first > last {
                let message =
                    format!("there are no versions {first} to {last}; the latest is {}", self.newest());
                return Err(Error::VersionNotFound(message));
            }
            if !is_kept(first) {
                let message = format!("version {first} has expired; the oldest kept is {}", self.boundary);
                return Err(Error::VersionExpired(message));
            }
        }
        let snapshots = self.snapshots.iter().copied().filter(|_| scope == Scope::All);
        let kept =
            self.roots.keys().copied().filter(|number| (first..=last).contains(number) && is_kept(*number));
        let mut numbers: Vec<u64> = snapshots.chain(kept).filter(|number| self.has(*number)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    pub(super) fn findings(&self, scope: Scope) -> Vec<Finding> {
        let mut findings = Vec::new();
        let highest = self.highest();
        match self.hint {
            None if self.has_hint => {
                findings.push(Finding::new(
                    Kind::Hint,
                    LATEST_HINT_PATH,
                    "it does not hold the number of a version",
                ));
            }
            None => findings.push(Finding::new(Kind::Hint, LATEST_HINT_PATH, "it is not there")),
            Some(_) => {}
        }
        let missing = |number: u64| {
            let message = format!("the root node file of version {number} is missing");
            Finding::new(Kind::Missing, root_path(number), message).at(number)
        };
        let lost = highest.saturating_add(1)..=self.newest();
        let gaps = (self.boundary..=highest).filter(|number| !self.has(*number));
        findings.extend(gaps.chain(lost.filter(|number| *number > highest)).take(GAPS_TOLD).map(missing));
        let named = self.snapshots.iter().filter(|number| !self.has(**number));
        findings.extend(named.map(|number| missing(*number)));
        if scope == Scope::All {
            let expired = self.roots.keys().filter(|number| **number < self.boundary);
            let late = expired.filter(|number| !self.snapshots.contains(number));
            findings.extend(late.map(|number| {
                Finding::new(
                    Kind::Unreferenced,
                    self.root_file(*number),
                    "the root of a version that has expired",
                )
            }));
        }
        findings
    }
}

/// Root with which the next one is compared.
#[derive(Clone, Debug)]
pub(super) struct PreviousRoot {
    number: u64,
    metadata: RootMetadata,
}

impl Fsck {
    /// Reads and checks a root; `None` if it cannot be read.
    pub(super) async fn check_root(&mut self, number: u64) -> Result<Option<Arc<Node>>> {
        let path = self.survey.root_file(number);
        let read = match self.root_bytes(number).await {
            Ok(bytes) => decode(bytes, &path, None),
            Err(error @ (Error::FileNotFound { .. } | Error::CorruptFile { .. })) => Err(error),
            Err(error) => return Err(error),
        };
        let root = match read {
            Ok(root) => Arc::new(root),
            Err(error) => {
                self.findings.push(Finding::of(&error, &path).at(number));
                return Ok(None);
            }
        };
        let metadata = match RootMetadata::of(&root, number, &path) {
            Ok(metadata) => metadata,
            Err(error) => {
                let mut finding = Finding::of(&error, &path).at(number);
                let holds = root.system("version").and_then(|text| text.parse::<u64>().ok());
                if holds.is_some_and(|holds| holds != number) || root.system("lakehouse_def").is_none() {
                    finding.kind = Kind::Misplaced;
                }
                self.findings.push(finding);
                return Ok(None);
            }
        };
        for problem in contradictions(&root, &metadata, self.previous.as_ref()) {
            self.findings.push(Finding::new(Kind::Broken, &path, problem).at(number));
        }
        if self.order == 0 {
            self.order = root.order();
        }
        self.check_lakehouse_definition(&root, &metadata, number).await?;
        self.inline_definitions = metadata.inline_definitions.clone();
        self.previous = Some(PreviousRoot { number, metadata });
        Ok(Some(root))
    }

    async fn check_lakehouse_definition(
        &mut self,
        root: &Node,
        metadata: &RootMetadata,
        number: u64,
    ) -> Result<()> {
        let path = metadata.lakehouse_definition.clone();
        let is_known = self.previous.as_ref().is_some_and(|previous| {
            previous.metadata.lakehouse_definition == path
                && previous.metadata.inline_definition == metadata.inline_definition
        });
        if is_known
            || !self.lakehouse_definitions.insert(path.clone()) && metadata.inline_definition.is_none()
        {
            return Ok(());
        }
        let finding = match self.storage.get(&path).await {
            Ok(file) => {
                let repeated =
                    metadata.inline_definition.as_ref().map(|inline| decode_file(&path, inline).ok());
                let has_row = root.system(LAKEHOUSE_DEF_INLINE).is_some();
                match decode_file(&path, &file) {
                    Err(error) => Some(Finding::of(&error, &path)),
                    Ok(definition) => {
                        if let Err(error) = LakehouseDefinition::decode(definition.clone(), &path) {
                            Some(Finding::of(&error, &path))
                        } else if has_row && repeated != Some(Some(definition)) {
                            let message =
                                format!("it is not what the root of version {number} repeats of it");
                            Some(Finding::new(Kind::Broken, &path, message))
                        } else {
                            None
                        }
                    }
                }
            }
            Err(error @ (Error::FileNotFound { .. } | Error::InvalidLocation(_))) => {
                Some(Finding::of(&error, &path))
            }
            Err(error) => return Err(error),
        };
        self.findings.extend(finding.map(|finding| finding.at(number)));
        Ok(())
    }
}

/// Contradictions within a root and with the one before.
fn contradictions(root: &Node, metadata: &RootMetadata, previous: Option<&PreviousRoot>) -> Vec<String> {
    let number = metadata.version;
    let mut problems = Vec::new();
    let names = |path: &Option<String>, number: u64| {
        path.as_deref().is_some_and(|path| path == root_path(number) || path == root_path_000(number))
    };
    match number.checked_sub(1) {
        None if metadata.previous_root.is_some() => {
            problems.push("version 0 has no previous root".to_string())
        }
        Some(before) if metadata.previous_root.is_some() && !names(&metadata.previous_root, before) => {
            problems.push(format!("its previous_root is not the root of version {before}"));
        }
        _ => {}
    }
    if metadata.rollback_from_root.is_some() {
        let is_before =
            number.checked_sub(1).is_some_and(|before| names(&metadata.rollback_from_root, before));
        if !is_before {
            problems.push("its rollback_from_root is not the root of the version before".into());
        }
        if metadata.rollback_target().is_some_and(|target| target >= number) {
            problems.push("it goes back to a version that is not before it".into());
        }
        if matches!(metadata.last_rollback, LastRollback::Version(last) if last != number) {
            problems.push("its last_rollback is not itself, though a rollback made it".into());
        }
    }
    if let Some(previous) = previous.filter(|previous| previous.number + 1 == number) {
        let before = &previous.metadata;
        if metadata.created_at_millis <= before.created_at_millis && metadata.created_at_millis > 0 {
            problems.push("its created_at_millis is not after that of the version before".into());
        }
        let expected = before.last_rollback_for_next();
        let is_chained = metadata.rollback_from_root.is_some()
            || metadata.last_rollback == LastRollback::Unknown
            || expected == LastRollback::Unknown
            || metadata.last_rollback == expected;
        if !is_chained {
            problems.push("its last_rollback is not what the version before names".into());
        }
    }
    if root.system(LAKEHOUSE_DEF_INLINE).is_some() && metadata.inline_definition.is_none() {
        problems.push(format!("its {LAKEHOUSE_DEF_INLINE} is not hexadecimal"));
    }
    if let Some(row) = root.system(INLINE_DEFINITIONS)
        && damaged_inline_definitions(row) > 0
    {
        problems.push(format!("its row {INLINE_DEFINITIONS} has damaged definitions"));
    }
    let mut ids: Vec<&str> = metadata.committed.iter().map(|transaction| transaction.id.as_str()).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        problems.push("a transaction is in it twice".into());
    }
    // The newest messages are the last ones.
    let is_new = |txn: &str| ids.binary_search(&txn).is_ok();
    let tail = root.messages().skip_while(|message| !is_new(message.txn));
    if tail.skip(1).any(|message| !is_new(message.txn)) {
        problems.push("messages of older versions stand below those of its own".into());
    }
    problems
}

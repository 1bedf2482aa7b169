//! Repair: replaces a damaged newest version by a new version, made from all files that can be read.
//!
//! - Newest root damaged or lost: the tree of the newest readable version is published again, as the next version. Each
//!   missing number in between also gets a root with that tree, because a gap would hide later versions. A damaged root
//!   file is not replaced.
//! - Node that cannot be read: the newest version without the node shows the rows of its key range from before the node
//!   was written. The changes of the version that wrote the node are still in a buffer above it. So the rows are known
//!   exactly, and are written as messages on top of an empty node. If the version without the node is not retained or
//!   cannot be read, the node is not repaired.
//! - Definition that cannot be read: the newest older definition of the same object that can be read replaces it.
//!
//! Only the hint is overwritten, and no file is deleted. A second run finds nothing to repair. A moved lakehouse can be
//! repaired as well, and stays read-only until it is relocated.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::Fsck;
use super::definition_checks::checked_definition;
use super::finding::{Finding, Kind};
use super::node_place::{Place, child_at, leads_to};
use super::root_listing::{NODE_CACHE_SIZE_BYTES, Scope};
use crate::apply_many_changes::apply_many_changes;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::file_names::{LATEST_HINT_PATH, lakehouse_definition_path, node_path, root_path};
use crate::key::{KeyRange, ObjectKind};
use crate::lakehouse_definition::LakehouseDefinition;
use crate::node::Node;
use crate::node::codec::encode;
use crate::node::mutable_node::{Message, MutableNode, Text};
use crate::storage::Storage;
use crate::transaction::Note;
use crate::tree::node_store::NodeStore;
use crate::tree::scan::Scan;
use crate::tree::search::{DecidedBy, decide, get};
use crate::version::publisher::Publisher;
use crate::version::root_metadata::{
    CommittedTransaction, LastRollback, OPERATION_PROPERTY, OPERATION_REPAIR, ROLLBACK_TARGET_PROPERTY,
};
use crate::version::summary_format::Summary;
use crate::version::versions::Versions;
use crate::version::{Version, discovery};

/// Maximum number of lost versions for which a repair creates roots. If more are missing, the hint is probably damaged.
const LOST_VERSIONS_MAX: u64 = 1000;

/// Result of a repair or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// The newest version that the repair created.
    pub version: Option<u64>,
    /// Descriptions of objects and files that were recovered completely.
    pub saved: Vec<String>,
    /// Descriptions of objects and files that were lost or replaced by older ones.
    pub lost: Vec<String>,
}

impl Repair {
    /// Whether nothing was repaired or lost.
    pub fn is_empty(&self) -> bool {
        *self == Repair::default()
    }
}

struct Repairer {
    storage: Arc<dyn Storage>,
    environment: Arc<dyn Environment>,
    nodes: Arc<NodeStore>,
    fsck: Fsck,
    intact: Arc<Version>,
    is_dry: bool,
    report: Repair,
}

/// Repairs the faults of the newest version. `storage` must retry requests.
pub async fn repair(
    storage: Arc<dyn Storage>,
    environment: Arc<dyn Environment>,
    is_dry: bool,
    note: Note,
) -> Result<Repair> {
    let mut fsck = Fsck::begin(storage.clone(), Scope::Latest, false).await?;
    let Some(intact) = fsck.listing.intact.clone() else {
        let lost = vec!["no version can be read: restore the root files from a backup".to_string()];
        return Ok(Repair { lost, ..Repair::default() });
    };
    fsck.versions = vec![intact.number];
    let mut findings = Vec::new();
    while !fsck.waiting.is_empty() || !fsck.versions.is_empty() {
        findings.extend(fsck.next().await?.into_iter().flat_map(|step| step.findings));
    }
    let nodes = Arc::new(NodeStore::new(storage.clone(), NODE_CACHE_SIZE_BYTES));
    let repairer = Repairer { storage, environment, nodes, fsck, intact, is_dry, report: Repair::default() };
    repairer.run(findings, &note).await
}

impl Repairer {
    async fn run(mut self, findings: Vec<Finding>, note: &Note) -> Result<Repair> {
        let listing = &self.fsck.listing;
        let (intact, newest, highest) = (self.intact.number, listing.newest(), listing.highest());
        let lost: Vec<u64> = (intact + 1..=newest).take(LOST_VERSIONS_MAX as usize + 1).collect();
        if lost.len() as u64 > LOST_VERSIONS_MAX {
            self.report.lost.push(format!(
                "{LATEST_HINT_PATH} names version {newest}, and the newest readable version is {intact}: if the hint is \
                 wrong, stop all writers and delete it"
            ));
            return Ok(self.report);
        }
        let mut numbers: Vec<u64> = lost.iter().copied().filter(|number| !listing.has(*number)).collect();
        let has_bad_hint = listing.hint.is_none_or(|hint| hint < highest.min(intact));
        for number in &lost {
            let what = if listing.has(*number) { "damaged" } else { "missing" };
            self.report.lost.push(format!(
                "version {number}: its root is {what} and its changes are lost; the lakehouse continues from version \
                 {intact}"
            ));
        }
        for finding in findings.iter().filter(|finding| finding.kind == Kind::Broken) {
            self.report.lost.push(format!("{}: {}", finding.path, finding.message));
        }
        let id = self.environment.uuid().to_string();
        let definition = self.definition(&findings).await?;
        let repaired = self.repaired_tree(&id).await?;
        if numbers.last() != Some(&newest) && (newest > intact || repaired.is_some() || definition.is_some()) {
            numbers.push(newest + 1);
        }
        if self.is_dry {
            return Ok(self.report);
        }
        if numbers.is_empty() {
            if has_bad_hint {
                discovery::write_hint(self.storage.as_ref(), intact).await;
                self.report.saved.push(format!("{LATEST_HINT_PATH} names version {intact}"));
            }
            return Ok(self.report);
        }
        let draft = match repaired {
            Some(draft) => draft,
            None => MutableNode::of(&self.intact.root, self.nodes.height_of(&self.intact.root).await?),
        };
        let mut created_at_millis = 0;
        for number in numbers {
            created_at_millis = self.publish(number, created_at_millis, &draft, definition.clone(), &id, note).await?;
            self.report.version = Some(number);
        }
        Ok(self.report)
    }

    /// Publishes the tree as version `number`, even if the previous version does not exist. Returns its
    /// `created_at_millis`, which is after `after_millis`.
    async fn publish(
        &self,
        number: u64,
        after_millis: u64,
        draft: &MutableNode,
        definition: Option<(String, LakehouseDefinition)>,
        id: &str,
        note: &Note,
    ) -> Result<u64> {
        let target = self.intact.number;
        let mut properties = vec![(OPERATION_PROPERTY.to_string(), OPERATION_REPAIR.to_string())];
        let goes_back = number > target + 1 || self.fsck.listing.newest() > target;
        if goes_back {
            properties.push((ROLLBACK_TARGET_PROPERTY.to_string(), target.to_string()));
        }
        let transaction = CommittedTransaction {
            // Each version needs a new id, because a transaction is in one version only.
            id: if goes_back { self.environment.uuid().to_string() } else { id.to_string() },
            isolation: "serializable".into(),
            message: note.message_or("repair"),
            author: note.author.clone(),
            began_at_version: target,
            properties: properties.into_iter().collect(),
            summary: Summary::plain(format!("repair from version {target}")),
        };
        let previous = Version::new(
            number - 1,
            self.intact.root.clone(),
            self.intact.metadata.clone(),
            self.intact.definition.clone(),
            self.nodes.clone(),
        )?;
        let versions = Arc::new(Versions::standing_at(self.nodes.clone(), self.environment.clone(), previous));
        let publisher = Publisher::new(versions.clone());
        let previous = versions.known();
        let mut metadata = publisher.next_metadata(&previous, vec![transaction]);
        metadata.created_at_millis = metadata.created_at_millis.max(after_millis + 1);
        let created_at_millis = metadata.created_at_millis;
        if goes_back {
            metadata.rollback_from_root = Some(root_path(number - 1));
            metadata.last_rollback = LastRollback::Version(number);
        }
        if let Some((path, definition)) = definition {
            metadata.inline_definition = Some(definition.encode_file(&path));
            metadata.lakehouse_definition = path;
        }
        publisher.publish_repair(&previous, metadata, draft.clone(), "the repair").await?;
        Ok(created_at_millis)
    }

    /// Returns the path and content of a new lakehouse definition, if the file of the current one is damaged.
    async fn definition(&mut self, findings: &[Finding]) -> Result<Option<(String, LakehouseDefinition)>> {
        let path = self.intact.metadata.lakehouse_definition.clone();
        let Some(finding) = findings.iter().find(|finding| finding.path == path) else { return Ok(None) };
        let definition = self.intact.definition.as_ref().clone();
        self.report.saved.push(format!("{path}: the lakehouse definition, from the copy in the root"));
        self.report.lost.retain(|lost| !lost.starts_with(&path));
        if finding.kind == Kind::Missing {
            if !self.is_dry {
                self.storage.put_unique(&path, definition.encode_file(&path)).await?;
            }
            return Ok(None);
        }
        let path = lakehouse_definition_path(self.environment.uuid());
        if !self.is_dry {
            self.storage.put_unique(&path, definition.encode_file(&path)).await?;
        }
        Ok(Some((path, definition)))
    }

    /// Returns the newest readable tree with damaged nodes and definitions replaced; `None` if it is undamaged.
    async fn repaired_tree(&mut self, id: &str) -> Result<Option<MutableNode>> {
        let mut places = Vec::new();
        let mut rows: Vec<(String, String)> = Vec::new();
        for bad in std::mem::take(&mut self.fsck.bad_nodes) {
            let range = bad.place.range(self.fsck.names);
            match self.rows_before(&bad.place).await? {
                Some((version, found)) => {
                    self.report.saved.push(format!(
                        "{}: {range}, {} objects as of version {version}, with all later changes",
                        bad.place.path,
                        found.len()
                    ));
                    rows.extend(found);
                    places.push(bad.place);
                }
                None => self
                    .report
                    .lost
                    .push(format!("{}: {range}, because no readable version shows them", bad.place.path)),
            }
        }
        let suspects = std::mem::take(&mut self.fsck.suspects);
        let bad: HashSet<String> = suspects.iter().map(|suspect| suspect.finding.path.clone()).collect();
        let mut older = Vec::new();
        for suspect in suspects {
            let shown = get(&self.nodes, &self.intact.root, &suspect.key).await;
            if !matches!(shown, Ok(Some(location)) if location == suspect.finding.path) {
                continue;
            }
            let name =
                self.fsck.names.decode(&suspect.key).map_or_else(|| suspect.key.clone(), |name| name.to_string());
            if self.can_be_decoded(&suspect.key, &suspect.finding.path).await? {
                self.report.lost.push(format!(
                    "{name}: {} can be decoded, but is not the file that was written; it was not changed",
                    suspect.finding.path
                ));
                continue;
            }
            match self.older_definition(&suspect.key, &bad).await? {
                Some((version, location)) => {
                    self.report
                        .lost
                        .push(format!("{name}: has the state of version {version}; later changes are lost"));
                    older.push((suspect.key, location));
                }
                None => self.report.lost.push(format!("{name}: {} {}", suspect.finding.path, suspect.finding.message)),
            }
        }
        if places.is_empty() && older.is_empty() {
            return Ok(None);
        }
        if self.is_dry {
            return Ok(Some(MutableNode::default()));
        }
        let txn: Text = id.into();
        let (config, environment) = (self.intact.config, self.environment.clone());
        let mut new = Vec::new();
        let height = self.nodes.height_of(&self.intact.root).await?;
        let root = self.grafted(self.intact.root.clone(), height, &places, &mut new).await?;
        let publisher = Publisher::new(Arc::new(Versions::standing_at(
            self.nodes.clone(),
            environment.clone(),
            Version::new(
                self.intact.number,
                self.intact.root.clone(),
                self.intact.metadata.clone(),
                self.intact.definition.clone(),
                self.nodes.clone(),
            )?,
        )));
        self.nodes.write(publisher.encode_nodes(&config, new)?).await?;
        let root = Arc::new(encode(&[], &root, config.order, config.compression)?.node);
        let mut messages = Vec::new();
        for (key, location) in rows {
            let decision = decide(&self.nodes, &root, "(root)", &key).await?;
            // Skip the row if a message in a node above decides its key, because that message is newer.
            if decision.location.is_none() && matches!(decision.by, DecidedBy::Node(_)) {
                messages.push(Message::new(key.into(), Some(location.into()), txn.clone()));
            }
        }
        messages.extend(
            older.into_iter().map(|(key, location)| Message::new(key.into(), Some(location.into()), txn.clone())),
        );
        apply_many_changes(&self.nodes, environment.as_ref(), &publisher, &config, root, messages).await.map(Some)
    }

    /// Returns the rows of a node's key range before the node was written, from the newest version without it.
    async fn rows_before(&self, place: &Place) -> Result<Option<(u64, Vec<(String, String)>)>> {
        let mut number = self.intact.number;
        while number > self.fsck.listing.boundary {
            number -= 1;
            let root = match self.nodes.load(&self.fsck.listing.root_file(number), None).await {
                Ok(root) => root,
                Err(Error::FileNotFound { .. } | Error::CorruptFile { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            if leads_to(&self.nodes, &root, place).await {
                continue;
            }
            let start = place.above.as_ref().map_or_else(String::new, |above| format!("{above}\0"));
            let range = KeyRange { start, end: place.below.as_ref().map(|below| below.to_string()) };
            let mut scan = Scan::new(self.nodes.clone(), root, range, None, true);
            let mut rows = Vec::new();
            loop {
                match scan.next_batch().await {
                    Ok(Some(batch)) => {
                        let locations = batch.locations.iter().flatten();
                        let pairs = batch.keys.iter().zip(locations);
                        rows.extend(pairs.filter_map(|(key, at)| Some((key?.to_string(), at?.to_string()))));
                    }
                    Ok(None) => return Ok(Some((number, rows))),
                    Err(Error::CorruptFile { .. }) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    async fn can_be_decoded(&self, key: &str, location: &str) -> Result<bool> {
        let Some((kind, _, name)) = self.fsck.name_of(key) else { return Ok(false) };
        match self.storage.get(location).await {
            Ok(bytes) => Ok(checked_definition(kind, &name, location, &bytes).is_ok()),
            Err(Error::FileNotFound { .. } | Error::CorruptFile { .. } | Error::InvalidLocation(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest readable definition of a key in an older version.
    async fn older_definition(&self, key: &str, bad: &HashSet<String>) -> Result<Option<(u64, String)>> {
        let Some((kind, _, name)) = self.fsck.name_of(key) else { return Ok(None) };
        if kind == ObjectKind::TransactionRecord {
            return Ok(None);
        }
        let mut number = self.intact.number;
        while number > self.fsck.listing.boundary {
            number -= 1;
            let Ok(root) = self.nodes.load(&self.fsck.listing.root_file(number), None).await else {
                continue;
            };
            let Ok(Some(location)) = get(&self.nodes, &root, key).await else { continue };
            if bad.contains(&location) {
                continue;
            }
            if let Ok(bytes) = self.storage.get(&location).await
                && checked_definition(kind, &name, &location, &bytes).is_ok()
            {
                return Ok(Some((number, location)));
            }
        }
        Ok(None)
    }

    /// Copies a node with empty subtrees at `places`. Appends the new nodes below it to `new`.
    fn grafted<'a>(
        &'a self,
        node: Arc<Node>,
        height: u32,
        places: &'a [Place],
        new: &'a mut Vec<(Text, MutableNode)>,
    ) -> BoxFuture<'a, Result<MutableNode>> {
        Box::pin(async move {
            let mut draft = MutableNode::of(&node, height);
            if height == 0 {
                return Ok(draft);
            }
            for i in 0..draft.children.len() {
                let path = node.child(i).to_string();
                let within: Vec<Place> = places
                    .iter()
                    .filter(|place| place.height < height && child_at(&node, place) == i)
                    .cloned()
                    .collect();
                if within.is_empty() {
                    continue;
                }
                let child = if within.iter().any(|place| place.path == path) {
                    self.empty_subtree(height - 1, new)
                } else {
                    let below = self.nodes.load(&path, Some(height - 1)).await?;
                    // The place may be further below this child.
                    self.grafted_below(below, height - 1, within, new).await?
                };
                let path: Text = node_path(self.environment.uuid()).into();
                new.push((path.clone(), child));
                draft.children[i] = path;
            }
            Ok(draft)
        })
    }

    async fn grafted_below(
        &self,
        node: Arc<Node>,
        height: u32,
        places: Vec<Place>,
        new: &mut Vec<(Text, MutableNode)>,
    ) -> Result<MutableNode> {
        self.grafted(node, height, &places, new).await
    }

    fn empty_subtree(&self, height: u32, new: &mut Vec<(Text, MutableNode)>) -> MutableNode {
        let mut draft = MutableNode::default();
        for level in 1..=height {
            let path: Text = node_path(self.environment.uuid()).into();
            new.push((path.clone(), draft));
            draft = MutableNode { height: level, children: vec![path], ..MutableNode::default() };
        }
        draft
    }
}

//! Compaction of the tree: publishes a version with the same objects in full leaves and empty buffers.
//!
//! The new tree is built from a scan, leaf by leaf, with less than a leaf in memory. If other versions are committed
//! meanwhile, the messages in their roots (rule 10) are applied to the new tree, so that it need not be built again.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::key::KeyRange;
use crate::lakehouse::Lakehouse;
use crate::node::codec::encode;
use crate::node::mutable_node::{Message, MutableNode, Row};
use crate::tree::apply_changes::apply_changes;
use crate::tree::bulk_build::{Level, NodeWriter};
use crate::tree::distributed_bulk_build::{LeafWriter, assemble};
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;
use crate::version::summary_format::Summary;

/// Maximum number of attempts to publish the tree while other transactions commit.
const MAX_ATTEMPTS: usize = 50;
/// Minimum percentage of nodes to save. If fewer would be saved and the messages are at most a tenth of the keys, the
/// tree is not rebuilt.
const SPARE_NODES_PER_CENT: usize = 20;

/// Size of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSize {
    pub nodes: usize,
    pub messages: usize,
    /// Size of all nodes before compression.
    pub size_bytes: usize,
}

/// Result of a compaction.
#[derive(Debug)]
pub struct Compacted {
    /// `None` if compaction was not worthwhile, or in a dry run.
    pub version: Option<Arc<Version>>,
    pub before: TreeSize,
    /// Size of the new tree. If no tree was built, only the number of nodes is set, and it is estimated.
    pub after: TreeSize,
}

/// Rebuilds the tree of the latest version if that is worthwhile or `force` is set. A dry run only reports.
/// `CommitConflict` if a version was committed first whose changes cannot be applied to the new tree, such as a
/// rollback or a bulk registration.
pub async fn compact(
    lakehouse: &Lakehouse,
    force: bool,
    dry_run: bool,
    message: &str,
    author: &str,
) -> Result<Compacted> {
    let latest = lakehouse.latest().await?;
    let before = size(&latest).await?;
    let rows = count(&latest).await?;
    let planned = planned_nodes(rows, latest.config.order);
    let spare = before.nodes.saturating_sub(planned);
    // If the order is small, a newly built tree can be larger, because its leaves have free space for inserts.
    let is_worth_it = spare > 0 && (spare * 100 >= before.nodes * SPARE_NODES_PER_CENT || before.messages * 10 > rows);
    if dry_run || !(force || is_worth_it) {
        let after = TreeSize { nodes: planned, ..TreeSize::default() };
        return Ok(Compacted { version: None, before, after });
    }
    let root = built(lakehouse, &latest, rows).await?;
    let version = published(lakehouse, latest, root, message, author).await?;
    let after = size(&version).await?;
    Ok(Compacted { version: Some(version), before, after })
}

async fn size(version: &Version) -> Result<TreeSize> {
    let shape = version.shape().await?;
    Ok(TreeSize {
        nodes: shape.nodes.len(),
        messages: shape.nodes.iter().map(|node| node.n_messages).sum(),
        size_bytes: shape.nodes.iter().map(|node| node.size_bytes).sum(),
    })
}

async fn count(version: &Version) -> Result<usize> {
    let mut scan = version.scan(KeyRange::all(), None, false);
    let mut rows = 0;
    while let Some(batch) = scan.next_batch().await? {
        rows += arrow_array::Array::len(&batch.keys);
    }
    Ok(rows)
}

/// Returns the number of nodes that a newly built tree has.
fn planned_nodes(mut rows: usize, order: usize) -> usize {
    let mut nodes = 0;
    loop {
        let level = Level::new(rows, order);
        nodes += level.nodes;
        if level.nodes == 1 {
            return nodes;
        }
        rows = level.nodes - 1;
    }
}

/// Writes a new tree with the objects of `base`, except its root, which is returned.
async fn built(lakehouse: &Lakehouse, base: &Version, rows: usize) -> Result<MutableNode> {
    let environment = lakehouse.environment();
    let writer =
        NodeWriter { storage: lakehouse.storage().as_ref(), environment: environment.as_ref(), config: &base.config };
    let mut leaves = Vec::new();
    let mut leaf_writer = LeafWriter::new(rows, base.config.order, 0);
    let mut scan = base.scan(KeyRange::all(), None, true);
    while let Some(batch) = scan.next_batch().await? {
        let Some(locations) = batch.locations else { continue };
        let objects = batch.keys.iter().flatten().zip(locations.iter().flatten());
        let some = objects.map(|(key, location)| Row { key: key.into(), value: location.into() }).collect();
        leaves.extend(leaf_writer.push(&writer, some).await?);
    }
    assemble(lakehouse.nodes(), &writer, rows, leaves, leaf_writer.finish()).await
}

/// Publishes a tree with the objects of `base`, after applying the changes of all versions since `base`.
async fn published(
    lakehouse: &Lakehouse,
    mut base: Arc<Version>,
    mut root: MutableNode,
    message: &str,
    author: &str,
) -> Result<Arc<Version>> {
    let id = lakehouse.environment().uuid().to_string();
    for attempt in 1.. {
        let transaction = CommittedTransaction {
            id: id.clone(),
            isolation: "serializable".into(),
            message: message.into(),
            author: author.into(),
            began_at_version: base.number,
            properties: Default::default(),
            summary: Summary::plain("compact the tree"),
        };
        let metadata = lakehouse.publisher().next_metadata(&base, vec![transaction]);
        let lost = match lakehouse.publisher().publish_alone(&base, metadata, root.clone(), "the compaction").await {
            Err(error @ Error::CommitConflict { .. }) if attempt < MAX_ATTEMPTS => error,
            other => return other,
        };
        let newest = lakehouse.latest().await?;
        for number in base.number + 1..=newest.number {
            let next = lakehouse.version(number).await?;
            // A version without messages is a rollback or a bulk registration. A gc fence means that nodes of the new
            // tree may have been deleted, because no version references them yet.
            let is_collected = next.metadata.gc_before_millis > base.metadata.gc_before_millis;
            if is_collected || next.recorded_changes().is_none() {
                return Err(lost);
            }
            root = with_changes_of(lakehouse, &next, root).await?;
        }
        base = newest;
    }
    unreachable!("the last attempt returns")
}

/// Applies the changes of `version` to a tree. Writes the new nodes, except the root, which is returned.
async fn with_changes_of(lakehouse: &Lakehouse, version: &Version, root: MutableNode) -> Result<MutableNode> {
    let own = version.root.messages().filter(|message| version.metadata.commits(message.txn));
    let changes: Vec<Message> = own
        .map(|message| Message::new(message.key.into(), message.value.map(Into::into), message.txn.into()))
        .collect();
    if changes.is_empty() {
        return Ok(root);
    }
    let config = &version.config;
    let node = encode(&[], &root, config.order, config.compression)?.node;
    let environment = lakehouse.environment();
    let next = apply_changes(lakehouse.nodes(), environment.as_ref(), config, &node, changes, 0).await?;
    lakehouse.nodes().write(lakehouse.publisher().encode_nodes(config, next.nodes)?).await?;
    Ok(next.root)
}

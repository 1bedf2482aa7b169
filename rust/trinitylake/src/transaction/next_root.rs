//! The root of the next version, for a group of transactions: the tree is advanced, what the root refers to is
//! written, and, when all of that lasts, the root is claimed (docs/decisions/0033).

use std::sync::Arc;

use futures::future::join;
use futures::{StreamExt, stream};

use super::inline_definitions::{Inline, write_beside};
use super::life::Failure;
use super::pause_after_lost_race::pause_after_lost_race;
use super::shared_root::Submission;
use super::written_behind::make_durable;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::node::draft::Draft;
use crate::storage::retry::within;
use crate::storage::{BackgroundUploads, Storage};
use crate::tree::advance::advance;
use crate::tree::nodes::PARALLEL_REQUESTS;
use crate::version::Version;
use crate::version::publisher::{Created, Prepared, Slot, Unpublished};
use crate::version::versions::NextSlot;

pub(super) enum Claimed {
    /// The root was created, with all of the group.
    Root(Created),
    /// The group is empty, or nothing could be tried.
    Nothing,
    /// Another writer was faster.
    Overtaken { files_are_written: bool },
}

/// Creates the root after `previous` for the group, all of which can be in it.
pub(super) async fn claim_for(
    lakehouse: &Lakehouse,
    previous: &Arc<Version>,
    group: &[Submission],
    usual_size_bytes: usize,
    deadline_millis: u64,
) -> Result<Claimed, Failure> {
    if group.is_empty() {
        return Ok(Claimed::Nothing);
    }
    let started = lakehouse.environment().elapsed_millis();
    // An expired version is followed by a slot that is free and void: no root is sent there.
    let (written, slot) = join(
        write_below_root(lakehouse, previous, group, usual_size_bytes),
        lakehouse.next_slot(previous.number),
    )
    .await;
    let Written { root, nodes, inline } = match written {
        // Garbage collection took a file that nobody refers to. It made a version before, so this slot is taken, and
        // whoever is too old learns it there.
        Err(Error::FileNotFound { path }) => {
            if lakehouse.latest().await?.number > previous.number {
                return Ok(Claimed::Nothing);
            }
            // Writing took longer than the collection waits.
            return Err(Error::TransactionExpired(format!(
                "{path}, which this commit had just written, was collected before a version referred to it; begin again"
            ))
            .into());
        }
        written => match previous.unless_expired(written).await {
            // The version expired meanwhile, and a node of it is gone: it is not the newest one.
            Err(Error::VersionExpired(_)) => {
                lakehouse.rediscover().await?;
                return Ok(Claimed::Nothing);
            }
            written => written?,
        },
    };
    // Writing may have taken longer than what was seen of the slot is good for.
    let slot = match slot? {
        NextSlot::Free => lakehouse.next_slot(previous.number).await?,
        slot => slot,
    };
    if slot != NextSlot::Free {
        remove_files(lakehouse.storage().as_ref(), nodes).await;
        let latest = match slot {
            NextSlot::Expired => lakehouse.rediscover().await?,
            _ => lakehouse.latest().await?,
        };
        pause_after_lost_race(lakehouse, previous, &latest, group, started).await;
        return Ok(Claimed::Overtaken { files_are_written: inline.is_all_ahead() });
    }
    let claim = lakehouse.publisher().claim(root, deadline_millis);
    let (claimed, are_written) = write_beside(lakehouse, &inline, claim).await;
    match claimed {
        Ok(Slot::Won(created)) => {
            if are_written {
                created.version.definitions_are_written();
            }
            Ok(Claimed::Root(created))
        }
        Err(refused @ Unpublished::Refused(_)) => {
            remove_files(lakehouse.storage().as_ref(), nodes).await;
            Err(refused.into())
        }
        Err(unpublished) => Err(unpublished.into()),
        Ok(Slot::Lost(latest)) => {
            pause_after_lost_race(lakehouse, previous, &latest, group, started).await;
            Ok(Claimed::Overtaken { files_are_written: are_written })
        }
    }
}

/// What is ready for the next root.
struct Written {
    root: Prepared,
    /// Paths of the nodes below it that were written for it.
    nodes: Vec<String>,
    inline: Inline,
}

/// Writes what the next root refers to and does not hold itself, all at once, and waits for what its transactions have
/// written behind: then all of it lasts. Of nodes that the store refuses to take none are left; what becomes of other
/// files is for the transactions to say.
async fn write_below_root(
    lakehouse: &Lakehouse,
    previous: &Version,
    group: &[Submission],
    usual_size_bytes: usize,
) -> Result<Written> {
    let (config, environment) = (&previous.config, lakehouse.environment().as_ref());
    let messages = group.iter().flat_map(|member| member.messages.iter().cloned()).collect();
    let advance =
        advance(lakehouse.nodes(), environment, config, &previous.root, messages, usual_size_bytes).await?;
    let nodes = lakehouse.publisher().encode_nodes(config, advance.nodes)?;
    let paths: Vec<String> = nodes.iter().map(|(path, _)| path.to_string()).collect();
    let (inline, files) = Inline::of(lakehouse.storage().as_ref(), previous, group);
    let root = prepare_root(lakehouse, previous, group, &advance.root, &inline)?;
    let pending: Vec<&BackgroundUploads> =
        group.iter().filter_map(|member| member.pending.as_deref()).collect();
    let write_nodes = async {
        lakehouse.nodes().write_ahead(nodes).await?;
        Ok(paths.clone())
    };
    let storage = lakehouse.storage().as_ref();
    match make_durable(storage, files, &pending, write_nodes).await {
        Ok(()) => Ok(Written { root, nodes: paths, inline }),
        Err(error) => {
            if error.is_refusal() {
                remove_files(storage, paths).await;
            }
            Err(error)
        }
    }
}

fn prepare_root(
    lakehouse: &Lakehouse,
    previous: &Version,
    group: &[Submission],
    root: &Draft,
    inline: &Inline,
) -> Result<Prepared> {
    let committed = group.iter().map(|member| member.info.clone()).collect();
    let mut metadata = lakehouse.publisher().next_metadata(previous, committed);
    metadata.inline_definitions = inline.definitions();
    let mut definition = previous.definition.clone();
    if let Some((path, changed)) = group.iter().find_map(|member| member.definition.as_ref()) {
        metadata.lakehouse_definition = path.clone();
        metadata.inline_definition = Some(changed.encode_file(path));
        definition = changed.clone();
    }
    lakehouse.publisher().prepare(previous, metadata, root, definition)
}

/// Removes files that nothing refers to, as far as the store lets it: each is asked for once.
pub(super) async fn remove_files(storage: &dyn Storage, paths: Vec<String>) {
    let removals = stream::iter(paths).for_each_concurrent(PARALLEL_REQUESTS, |path| async move {
        // What stays does no harm.
        let _ = storage.delete(&path).await;
    });
    within(0, removals).await;
}

//! The root of the next version, for a group of transactions: the tree is advanced, what the root refers to is
//! written, and the root is claimed.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{join, try_join};
use futures::{StreamExt, TryStreamExt, stream};

use super::admission::Submission;
use super::life::Failure;
use super::pause_after_lost_race::pause_after_lost_race;
use crate::error::Result;
use crate::lakehouse::Lakehouse;
use crate::node::draft::Draft;
use crate::storage::Storage;
use crate::storage::retry::within;
use crate::tree::advance::advance;
use crate::tree::node_store::PARALLEL_REQUESTS;
use crate::version::Version;
use crate::version::publisher::{Created, Slot, Unpublished};

pub(super) enum Claimed {
    /// The root was created, with all of the group.
    Root(Created),
    /// The group is empty, or another writer was faster.
    Nothing { files_are_written: bool },
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
        return Ok(Claimed::Nothing { files_are_written: false });
    }
    let started = lakehouse.environment().elapsed_millis();
    // An expired version is followed by a slot that is free and void: no root is sent there.
    let (written, is_kept) = join(
        write_below_root(lakehouse, previous, group, usual_size_bytes),
        lakehouse.is_kept(previous.number),
    )
    .await;
    let (root, nodes) = written?;
    // Writing may have taken longer than what was seen of the boundary is good for.
    if !(is_kept? && lakehouse.is_kept(previous.number).await?) {
        remove_files(lakehouse.storage().as_ref(), nodes).await;
        lakehouse.rediscover().await?;
        return Ok(Claimed::Nothing { files_are_written: true });
    }
    let mut metadata = lakehouse
        .publisher()
        .next_metadata(previous, group.iter().map(|member| member.info.clone()).collect());
    let mut definition = previous.definition.clone();
    if let Some((path, changed)) = group.iter().find_map(|member| member.definition.as_ref()) {
        metadata.lakehouse_definition = path.clone();
        metadata.inline_definition = Some(changed.bytes().to_vec());
        definition = changed.clone();
    }
    let claimed = lakehouse.publisher().claim(previous, metadata, &root, definition, deadline_millis).await;
    match claimed {
        Ok(Slot::Won(created)) => Ok(Claimed::Root(created)),
        Err(refused @ Unpublished::Refused(_)) => {
            remove_files(lakehouse.storage().as_ref(), nodes).await;
            Err(refused.into())
        }
        Err(unpublished) => Err(unpublished.into()),
        Ok(Slot::Lost(latest)) => {
            pause_after_lost_race(lakehouse, previous, &latest, group, started).await;
            Ok(Claimed::Nothing { files_are_written: true })
        }
    }
}

/// Writes what the next root refers to: the nodes below it, and definitions. Returns the root, and the nodes. Of nodes
/// that the store refuses to take none are left; what becomes of definitions is for the transactions to say.
async fn write_below_root(
    lakehouse: &Lakehouse,
    previous: &Version,
    group: &[Submission],
    usual_size_bytes: usize,
) -> Result<(Draft, Vec<String>)> {
    let (config, environment) = (&previous.config, lakehouse.environment().as_ref());
    let messages = group.iter().flat_map(|member| member.messages.iter().cloned()).collect();
    let advance =
        advance(lakehouse.nodes(), environment, config, &previous.root, messages, usual_size_bytes).await?;
    let nodes = lakehouse.publisher().encode_nodes(config, advance.nodes)?;
    let paths: Vec<String> = nodes.iter().map(|(path, _)| path.to_string()).collect();
    let files = group.iter().flat_map(|member| member.files.iter().cloned()).collect();
    let storage = lakehouse.storage().as_ref();
    match try_join(write_files(storage, files), lakehouse.nodes().write(nodes)).await {
        Ok(_) => Ok((advance.root, paths)),
        Err(error) => {
            if error.is_refusal() {
                remove_files(storage, paths).await;
            }
            Err(error)
        }
    }
}

/// Removes files that nothing refers to, as far as the store lets it: each is asked for once.
pub(super) async fn remove_files(storage: &dyn Storage, paths: Vec<String>) {
    let removals = stream::iter(paths).for_each_concurrent(PARALLEL_REQUESTS, |path| async move {
        // What stays does no harm.
        let _ = storage.delete(&path).await;
    });
    within(0, removals).await;
}

/// Writes definition files in parallel.
pub(super) async fn write_files(storage: &dyn Storage, files: Vec<(String, Bytes)>) -> Result<()> {
    stream::iter(files)
        .map(|(path, bytes)| async move { storage.put_unique(&path, bytes).await })
        .buffer_unordered(PARALLEL_REQUESTS)
        .try_collect()
        .await
}

//! Publishing a group: advances the tree, writes the files that the next root refers to, and creates the root once all
//! of them are durable (docs/decisions/0033).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use futures::{StreamExt, stream};

use crate::error::{Error, Result};
use crate::moved_lakehouse::Placement;
use crate::node::mutable_node::MutableNode;
use crate::storage::create_readback::is_refusal;
use crate::storage::retry_policy::within;
use crate::storage::{BackgroundUploads, Storage};
use crate::transaction::commit::durability_barrier::flush_all;
use crate::transaction::commit::inline_definitions::{Inline, write_beside};
use crate::transaction::commit::submission::Submission;
use crate::transaction::state_machine::Failure;
use crate::tree::apply_changes::apply_changes;
use crate::tree::node_source::PARALLEL_REQUESTS;
use crate::version::Version;
use crate::version::publisher::{Created, Prepared, Publisher, Race, Unpublished};
use crate::version::refresh::NextRoot;

/// Maximum length of a pause after a lost race, in durations of an attempt. A longer pause would only starve the
/// writer.
const MAX_PAUSE_ATTEMPTS: u64 = 8;

pub(crate) enum Claimed {
    /// The root was created and contains the whole group.
    Root(Created),
    /// The group is empty, or the attempt was abandoned before a root was sent.
    Nothing,
    /// Another writer was faster.
    Overtaken { files_are_written: bool },
}

/// Creates the root after `previous` for the admitted members of a group.
pub(crate) async fn claim_for(
    publisher: &Publisher,
    previous: &Arc<Version>,
    group: &[Submission],
    usual_size_bytes: usize,
    deadline_millis: u64,
) -> Result<Claimed, Failure> {
    if group.is_empty() {
        return Ok(Claimed::Nothing);
    }
    let started = publisher.environment().elapsed_millis();
    // The number after an expired version is unused, but no root may be created with it.
    let (written, next) = join(
        write_files_below_root(publisher, previous, group, usual_size_bytes),
        publisher.next_root(previous.number),
    )
    .await;
    let Written { root, nodes, inline } = match written {
        // A garbage collection deleted a file of the group. Before that it has published its fence as a version, so the
        // next number is usually taken, and the validation rejects transactions that are too old.
        Err(Error::FileNotFound { path }) => {
            if publisher.latest().await?.number > previous.number {
                return Ok(Claimed::Nothing);
            }
            // Writing the files took longer than the grace period of the collection.
            return Err(Error::TransactionExpired(format!(
                "a garbage collection deleted {path} before this commit could publish a version with it; begin again"
            ))
            .into());
        }
        written => match previous.unless_expired(written).await {
            // A node of the previous version was deleted, because that version has expired and is not the newest one.
            Err(Error::VersionExpired(_)) => {
                publisher.rediscover().await?;
                return Ok(Claimed::Nothing);
            }
            written => written?,
        },
    };
    // Check again that the number is unused, because writing the files may have taken long.
    let next = match next? {
        NextRoot::Absent => publisher.next_root(previous.number).await?,
        next => next,
    };
    if next != NextRoot::Absent {
        remove_files(publisher.storage().as_ref(), nodes).await;
        let latest = match next {
            NextRoot::Expired => publisher.rediscover().await?,
            _ => publisher.latest().await?,
        };
        pause_after_lost_race(publisher, previous, &latest, group, started).await;
        return Ok(Claimed::Overtaken { files_are_written: inline.is_all_ahead() });
    }
    let claim = publisher.claim(root, deadline_millis);
    let (claimed, are_written) = write_beside(publisher, &inline, claim).await;
    match claimed {
        Ok(Race::Won(created)) => {
            if are_written {
                created.version.definitions_are_written();
            }
            Ok(Claimed::Root(created))
        }
        Err(refused @ Unpublished::Refused(_)) => {
            remove_files(publisher.storage().as_ref(), nodes).await;
            Err(refused.into())
        }
        Err(unpublished) => Err(unpublished.into()),
        Ok(Race::Lost(latest)) => {
            pause_after_lost_race(publisher, previous, &latest, group, started).await;
            Ok(Claimed::Overtaken { files_are_written: are_written })
        }
    }
}

/// A root that is ready to be created.
struct Written {
    root: Prepared,
    /// Paths of the nodes that were written below the root.
    nodes: Vec<String>,
    inline: Inline,
}

/// Writes in parallel all files that the next root references but does not contain, and waits for background uploads.
/// After success all these files are durable. If the store refuses a write, the nodes are removed again; the
/// transactions remove their own files.
async fn write_files_below_root(
    publisher: &Publisher,
    previous: &Version,
    group: &[Submission],
    usual_size_bytes: usize,
) -> Result<Written> {
    let (config, environment) = (&previous.config, publisher.environment().as_ref());
    let messages = group.iter().flat_map(|member| member.messages.iter().cloned()).collect();
    let next =
        apply_changes(publisher.nodes(), environment, config, &previous.root, messages, usual_size_bytes).await?;
    let nodes = publisher.encode_nodes(config, next.nodes)?;
    let paths: Vec<String> = nodes.iter().map(|(path, _)| path.to_string()).collect();
    let (inline, files) = Inline::of(publisher.storage().as_ref(), previous, group);
    let root = prepare_root(publisher, previous, group, &next.root, &inline)?;
    let pending: Vec<&BackgroundUploads> = group.iter().filter_map(|member| member.pending.as_deref()).collect();
    let write_nodes = async {
        publisher.nodes().write_unsynced(nodes).await?;
        Ok(paths.clone())
    };
    let storage = publisher.storage().as_ref();
    match flush_all(storage, files, &pending, write_nodes).await {
        Ok(()) => Ok(Written { root, nodes: paths, inline }),
        Err(error) => {
            if is_refusal(&error) {
                remove_files(storage, paths).await;
            }
            Err(error)
        }
    }
}

fn prepare_root(
    publisher: &Publisher,
    previous: &Version,
    group: &[Submission],
    root: &MutableNode,
    inline: &Inline,
) -> Result<Prepared> {
    let committed = group.iter().flat_map(Submission::transactions).cloned().collect();
    let mut metadata = publisher.next_metadata(previous, committed);
    metadata.inline_definitions = inline.definitions();
    metadata.copied_definitions = inline.copied.clone();
    let mut definition = previous.definition.clone();
    if let Some((path, changed)) = group.iter().find_map(|member| member.definition.as_ref()) {
        metadata.lakehouse_definition = path.clone();
        metadata.inline_definition = Some(changed.encode_file(path));
        definition = changed.clone();
    }
    Placement::of(publisher.storage().root(), &definition).check_writable()?;
    publisher.prepare(previous, metadata, root, definition)
}

/// Removes files that no version refers to, with one request each. Failures are ignored.
pub(crate) async fn remove_files(storage: &dyn Storage, paths: Vec<String>) {
    let removals = stream::iter(paths).for_each_concurrent(PARALLEL_REQUESTS, |path| async move {
        // If this fails, garbage collection deletes the file.
        let _ = storage.delete(&path).await;
    });
    within(0, removals).await;
}

/// Pauses for a random time after a lost race, at most the duration of the attempt for each version that followed the
/// winner. The number of these versions estimates the number of other writers, so the pause avoids most attempts that
/// would lose. A writer that has lost several times pauses less, so that it wins earlier than new writers.
async fn pause_after_lost_race(
    publisher: &Publisher,
    previous: &Version,
    latest: &Version,
    group: &[Submission],
    started_millis: u64,
) {
    let environment = publisher.environment().as_ref();
    let others = latest.number.saturating_sub(previous.number + 1).min(MAX_PAUSE_ATTEMPTS);
    let round = environment.elapsed_millis() - started_millis;
    let lost = group.iter().map(|member| member.attempt).max().unwrap_or_default().max(1);
    let pause = environment.random_below(round * others / u64::from(lost) + 1);
    // Members of the intent queue wait in the queue.
    if pause > 0 && group.iter().all(|member| member.last_version.is_none()) {
        environment.sleep(Duration::from_millis(pause)).await;
    }
}

//! Small definitions stored in the root, so that the root need not wait for their files (format §4,
//! docs/decisions/0067). On a remote store a commit that writes nothing else takes one round of requests.
//!
//! Invariant: **a root contains every definition that its version references, unless the writer knows that the file of
//! the definition exists.** A version can therefore be read even if these files were never written. The writer of the
//! root writes them at the same time; if it dies, the writer of the next version does.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, join_all, select};

use super::submission::{Submission, files_size_bytes};
use crate::config::TreeConfig;
use crate::error::Result;
use crate::file_names::definition_id;
use crate::storage::{Storage, is_remote};
use crate::transaction::commit::durability_barrier::flush_files;
use crate::version::Version;
use crate::version::publisher::Publisher;

/// Maximum size of one definition in a root, and of all together. They are small, because every reader of the root also
/// reads its definitions.
const DEFINITION_MAX_SIZE_BYTES: usize = 2048;
const DEFINITIONS_MAX_SIZE_BYTES: usize = 64 << 10;

/// Minimum time to wait for definition files after the root was created. If creating the root took longer, wait longer.
const PATIENCE_MILLIS: u64 = 1000;

/// Whether a root may contain these files. False on a local disk, because all files become durable in one round anyway.
pub(crate) fn fit_in_root(storage: &dyn Storage, files: &[(String, Bytes)]) -> bool {
    !files.is_empty() && is_remote(storage) && files.iter().all(is_small_definition)
}

fn is_small_definition((path, bytes): &(String, Bytes)) -> bool {
    bytes.len() <= DEFINITION_MAX_SIZE_BYTES && definition_id(path).is_some()
}

/// Maximum size of the inline definitions of all waiting members of a group together, and also of its leader alone.
pub(crate) fn max_size_bytes(config: &TreeConfig) -> usize {
    DEFINITIONS_MAX_SIZE_BYTES.min(config.node_max_size_bytes / 4)
}

/// The definitions that the next root holds.
#[derive(Debug)]
pub(crate) struct Inline {
    /// Definitions of the group.
    own: Vec<(String, Bytes)>,
    /// Definitions of the previous version whose files may not exist, because their writer died or is still writing.
    taken_over: Vec<(String, Bytes)>,
    /// Small definitions of the group whose files exist before the root. Readers of the version do not request them.
    pub copied: BTreeMap<String, Bytes>,
}

impl Inline {
    /// Returns the definitions that the next root holds, and the files that have to be durable before it.
    pub fn of(storage: &dyn Storage, previous: &Version, group: &[Submission]) -> (Inline, Vec<(String, Bytes)>) {
        let files = |is_inline: bool| -> Vec<(String, Bytes)> {
            let members = group.iter().filter(|member| member.fits_in_root == is_inline);
            members.flat_map(|member| member.files.iter().cloned()).collect()
        };
        let (own, mut ahead) = (files(true), files(false));
        let written = group.iter().flat_map(|member| &member.written).chain(&ahead);
        let mut copied: Vec<_> = written.filter(|file| is_small_definition(file)).cloned().collect();
        if !is_remote(storage) || files_size_bytes(&copied) > max_size_bytes(&previous.config) {
            copied.clear();
        }
        let mut taken_over: Vec<_> = previous.unwritten_definitions().into_iter().collect();
        let fits = files_size_bytes(&own) + files_size_bytes(&taken_over) <= 3 * max_size_bytes(&previous.config);
        if !is_remote(storage) || !fits {
            ahead.append(&mut taken_over);
        }
        (Inline { own, taken_over, copied: copied.into_iter().collect() }, ahead)
    }

    /// Whether all files of the group are written before the root.
    pub fn is_all_ahead(&self) -> bool {
        self.own.is_empty()
    }

    pub fn definitions(&self) -> BTreeMap<String, Bytes> {
        self.own.iter().chain(&self.taken_over).cloned().collect()
    }

    async fn write(&self, storage: &dyn Storage) -> Result<()> {
        // Check which files exist, because the writer of the previous version has usually written them.
        let missing = self.taken_over.iter().map(|file| async move {
            let is_there = storage.exists(&file.0).await?;
            Result::Ok((!is_there).then(|| file.clone()))
        });
        let write_missing = async {
            let missing: Result<Vec<_>> = join_all(missing).await.into_iter().collect();
            flush_files(storage, missing?.into_iter().flatten().collect(), &[]).await
        };
        let write_own = flush_files(storage, self.own.clone(), &[]);
        futures::future::try_join(write_own, write_missing).await.map(drop)
    }
}

/// Creates the root and writes the files of its definitions at the same time. Returns whether these files exist. A
/// failure to write them is not an error, because the writer of the next version tries again.
pub(crate) async fn write_beside<T>(
    publisher: &Publisher,
    inline: &Inline,
    claim: impl Future<Output = T>,
) -> (T, bool) {
    if inline.own.is_empty() && inline.taken_over.is_empty() {
        return (claim.await, true);
    }
    let environment = publisher.environment();
    let started = environment.elapsed_millis();
    let write = std::pin::pin!(inline.write(publisher.storage().as_ref()));
    let claim = std::pin::pin!(claim);
    match select(claim, write).await {
        Either::Left((claimed, write)) => {
            let took = environment.elapsed_millis() - started;
            let alarm = environment.alarm(Duration::from_millis(took.max(PATIENCE_MILLIS)));
            let is_written = match select(write, alarm).await {
                Either::Left((written, _)) => written.is_ok(),
                Either::Right(_) => false,
            };
            (claimed, is_written)
        }
        Either::Right((written, claim)) => (claim.await, written.is_ok()),
    }
}

/// Writes the files of the inline definitions of a version, for a caller that publishes the next version without a
/// transaction.
pub(crate) async fn write_definitions_of(storage: &dyn Storage, version: &Version) -> Result<()> {
    let missing: Vec<_> = version.unwritten_definitions().into_iter().collect();
    if !missing.is_empty() {
        flush_files(storage, missing, &[]).await?;
        version.definitions_are_written();
    }
    Ok(())
}

//! Small definitions that a root holds itself, so that it need not come after their files (format §4,
//! docs/decisions/0067): on a remote store a commit that writes nothing else waits for it once.
//!
//! The rule that nothing may break: **a root holds every definition that its version names and whose file its writer does
//! not know to be there.** So a version can be read whatever became of those files: they are written beside the root, by
//! its writer and, if he does not come to it, by whoever makes the next version.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, join_all, select};

use super::shared_root::Submission;
use super::written_behind::make_files_durable;
use crate::config::TreeConfig;
use crate::error::Result;
use crate::lakehouse::Lakehouse;
use crate::path::definition_id;
use crate::storage::{Storage, is_remote};
use crate::version::Version;
use crate::version::root_metadata::{INLINE_OBJECT_MAX_SIZE_BYTES, INLINE_OBJECTS_MAX_SIZE_BYTES};

/// Files of definitions that are still on their way when the root is there are waited for as long as the root took, and
/// at least so long.
const PATIENCE_MILLIS: u64 = 1000;

/// May a root hold these files? Elsewhere than on a remote store files are made durable together, and nothing would be won.
pub(super) fn fit_in_root(storage: &dyn Storage, files: &[(String, Bytes)]) -> bool {
    let fits = |(path, bytes): &(String, Bytes)| {
        bytes.len() <= INLINE_OBJECT_MAX_SIZE_BYTES && definition_id(path).is_some()
    };
    !files.is_empty() && is_remote(storage) && files.iter().all(fits)
}

/// So much of them may wait for one root, or be those of its leader.
pub(super) fn max_size_bytes(config: &TreeConfig) -> usize {
    INLINE_OBJECTS_MAX_SIZE_BYTES.min(config.node_max_size_bytes / 4)
}

pub(super) fn size_bytes(files: &[(String, Bytes)]) -> usize {
    files.iter().map(|(path, bytes)| path.len() + bytes.len()).sum()
}

/// The definitions that the next root holds.
#[derive(Debug)]
pub(super) struct Inline {
    /// Those of the group.
    own: Vec<(String, Bytes)>,
    /// Those of the version before whose files may not be there: another process died, or writes them at this moment.
    taken_over: Vec<(String, Bytes)>,
}

impl Inline {
    /// What the next root holds, and the files that have to be there before it.
    pub fn of(
        storage: &dyn Storage,
        previous: &Version,
        group: &[Submission],
    ) -> (Inline, Vec<(String, Bytes)>) {
        let files = |is_inline: bool| -> Vec<(String, Bytes)> {
            let members = group.iter().filter(|member| member.fits_in_root == is_inline);
            members.flat_map(|member| member.files.iter().cloned()).collect()
        };
        let (own, mut ahead) = (files(true), files(false));
        let mut taken_over: Vec<_> = previous.unwritten_definitions().into_iter().collect();
        let fits = size_bytes(&own) + size_bytes(&taken_over) <= 3 * max_size_bytes(&previous.config);
        if !is_remote(storage) || !fits {
            ahead.append(&mut taken_over);
        }
        (Inline { own, taken_over }, ahead)
    }

    /// Are all files of the group there before the root is?
    pub fn is_all_ahead(&self) -> bool {
        self.own.is_empty()
    }

    pub fn definitions(&self) -> BTreeMap<String, Bytes> {
        self.own.iter().chain(&self.taken_over).cloned().collect()
    }

    async fn write(&self, storage: &dyn Storage) -> Result<()> {
        // Mostly their writer has come to it.
        let missing = self.taken_over.iter().map(|file| async move {
            let is_there = storage.exists(&file.0).await?;
            Result::Ok((!is_there).then(|| file.clone()))
        });
        let write_missing = async {
            let missing: Result<Vec<_>> = join_all(missing).await.into_iter().collect();
            make_files_durable(storage, missing?.into_iter().flatten().collect(), &[]).await
        };
        let write_own = make_files_durable(storage, self.own.clone(), &[]);
        futures::future::try_join(write_own, write_missing).await.map(drop)
    }
}

/// Creates the root that holds them and writes their files at the same time. Returns whether these are there: what fails
/// here is for whoever makes the next version, since the root holds them.
pub(super) async fn write_beside<T>(
    lakehouse: &Lakehouse,
    inline: &Inline,
    claim: impl Future<Output = T>,
) -> (T, bool) {
    if inline.own.is_empty() && inline.taken_over.is_empty() {
        return (claim.await, true);
    }
    let environment = lakehouse.environment();
    let started = environment.elapsed_millis();
    let write = std::pin::pin!(inline.write(lakehouse.storage().as_ref()));
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

/// Writes the files of what the root of a version holds, for whoever goes on from that version without a transaction.
pub(crate) async fn write_definitions_of(storage: &dyn Storage, version: &Version) -> Result<()> {
    let missing: Vec<_> = version.unwritten_definitions().into_iter().collect();
    if !missing.is_empty() {
        make_files_durable(storage, missing, &[]).await?;
        version.definitions_are_written();
    }
    Ok(())
}

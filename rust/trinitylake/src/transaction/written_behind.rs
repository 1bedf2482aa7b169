//! The barrier: what a root, a saved state or an intent refers to is made to last before that is created.
//!
//! Files are written at once and wait for nothing but this. What a statement has written behind
//! ([`BackgroundUploads`]) is waited for, what only the commit knows (definitions, nodes, the running root of a save) is
//! written in the same round, and then [`Storage::sync`] makes all of it last together. Which crash leaves what is told
//! in docs/decisions/0033.

use bytes::Bytes;
use futures::future::{ready, try_join_all, try_join3};
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::Result;
use crate::storage::{BackgroundUploads, Storage};
use crate::tree::nodes::PARALLEL_REQUESTS;

/// Writes `files`, runs `others`, which writes some more and says what they are called, and waits for all that is pending.
/// When this returns without an error all of it is durable, and what refers to it may be created.
pub(super) async fn make_durable(
    storage: &dyn Storage,
    files: Vec<(String, Bytes)>,
    pending: &[&BackgroundUploads],
    others: impl Future<Output = Result<Vec<String>>>,
) -> Result<()> {
    let written_behind = try_join_all(pending.iter().map(|pending| pending.written()));
    let (mut paths, others, written_behind) =
        try_join3(write_ahead(storage, files), others, written_behind).await?;
    paths.extend(others);
    paths.extend(written_behind.iter().flatten().cloned());
    storage.sync(&paths).await?;
    for (pending, written) in pending.iter().zip(&written_behind) {
        pending.synced(written);
    }
    Ok(())
}

/// The same for files alone.
pub(super) async fn make_files_durable(
    storage: &dyn Storage,
    files: Vec<(String, Bytes)>,
    pending: &[&BackgroundUploads],
) -> Result<()> {
    make_durable(storage, files, pending, ready(Ok(Vec::new()))).await
}

async fn write_ahead(storage: &dyn Storage, files: Vec<(String, Bytes)>) -> Result<Vec<String>> {
    stream::iter(files)
        .map(|(path, bytes)| async move {
            storage.write_ahead(&path, bytes).await?;
            Ok(path)
        })
        .buffer_unordered(PARALLEL_REQUESTS)
        .try_collect()
        .await
}

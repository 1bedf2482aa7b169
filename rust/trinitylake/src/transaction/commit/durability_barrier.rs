//! Durability barrier: waits until every file that a root, a saved state or an intent refers to is durable.
//!
//! The barrier waits for the background uploads of statements ([`BackgroundUploads`]) and at the same time writes the
//! files that a commit or a save creates (definitions, nodes, the root of a saved transaction). One [`Storage::sync`]
//! then makes all of them durable. docs/decisions/0033 lists which files remain after each crash.

use bytes::Bytes;
use futures::future::{ready, try_join_all, try_join3};
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::Result;
use crate::storage::{BackgroundUploads, Storage};
use crate::tree::node_source::PARALLEL_REQUESTS;

/// Writes `files`, runs `others`, which writes more files and returns their paths, and waits for background uploads.
/// After success all of them are durable.
pub(crate) async fn flush_all(
    storage: &dyn Storage,
    files: Vec<(String, Bytes)>,
    pending: &[&BackgroundUploads],
    others: impl Future<Output = Result<Vec<String>>>,
) -> Result<()> {
    let uploads = try_join_all(pending.iter().map(|pending| pending.written()));
    let (mut paths, others, uploads) = try_join3(write_unsynced(storage, files), others, uploads).await?;
    paths.extend(others);
    paths.extend(uploads.iter().flatten().cloned());
    storage.sync(&paths).await?;
    for (pending, written) in pending.iter().zip(&uploads) {
        pending.synced(written);
    }
    Ok(())
}

/// Like [`flush_all`], but without `others`.
pub(crate) async fn flush_files(
    storage: &dyn Storage,
    files: Vec<(String, Bytes)>,
    pending: &[&BackgroundUploads],
) -> Result<()> {
    flush_all(storage, files, pending, ready(Ok(Vec::new()))).await
}

async fn write_unsynced(storage: &dyn Storage, files: Vec<(String, Bytes)>) -> Result<Vec<String>> {
    stream::iter(files)
        .map(|(path, bytes)| async move {
            storage.write_unsynced(&path, bytes).await?;
            Ok(path)
        })
        .buffer_unordered(PARALLEL_REQUESTS)
        .try_collect()
        .await
}

//! Markers of garbage collections that may still delete files (format §7).
//!
//! A collection creates a marker below `_collecting/` before it publishes its fence, and removes it after the store has
//! answered all deletions. If no marker exists, all collections whose fences are known have ended, and cannot delete a
//! file that exists at that time.

use bytes::Bytes;

use trinitylake_base::environment::Environment;
use trinitylake_base::error::Result;
use trinitylake_format::file_names::{GC_MARKER_PREFIX, gc_marker, gc_marker_path};
use trinitylake_storage::Storage;

/// A collection that may still delete files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collecting {
    pub path: String,
    /// Unreferenced files older than this time of the store are deleted.
    pub before_millis: u64,
}

/// Lists the collections that have published their fence or are about to.
pub async fn under_way(storage: &dyn Storage) -> Result<Vec<Collecting>> {
    let files = storage.list(GC_MARKER_PREFIX).await?;
    let collecting = files.into_iter().filter_map(|file| {
        let (before_millis, _) = gc_marker(&file.path)?;
        Some(Collecting { path: file.path, before_millis })
    });
    Ok(collecting.collect())
}

/// Creates the marker of a collection; returns its path.
pub async fn announce(storage: &dyn Storage, environment: &dyn Environment, before_millis: u64) -> Result<String> {
    let path = gc_marker_path(before_millis, environment.uuid());
    storage.put_unique(&path, Bytes::new()).await?;
    Ok(path)
}

//! Markers of garbage collections that may still delete files (format §7).
//!
//! A collection creates a file below `_collecting/` before it makes its version, and removes it once the store has
//! answered all that it asked to delete. So what is there, after no such file was found, is taken by no collection whose
//! version was known by then: those are over, and left it.

use bytes::Bytes;

use trinitylake_base::environment::Environment;
use trinitylake_base::error::Result;
use trinitylake_format::path::{GC_MARKER_PREFIX, gc_marker, gc_marker_path};
use trinitylake_storage::Storage;

/// A collection that may still delete files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collecting {
    pub path: String,
    /// By the store's clock: what is younger it leaves.
    pub before_millis: u64,
}

/// Collections that have made a version, or are about to.
pub async fn under_way(storage: &dyn Storage) -> Result<Vec<Collecting>> {
    let files = storage.list(GC_MARKER_PREFIX).await?;
    let collecting = files.into_iter().filter_map(|file| {
        let (before_millis, _) = gc_marker(&file.path)?;
        Some(Collecting { path: file.path, before_millis })
    });
    Ok(collecting.collect())
}

/// Says that one is under way; returns the path of the file.
pub async fn announce(
    storage: &dyn Storage,
    environment: &dyn Environment,
    before_millis: u64,
) -> Result<String> {
    let path = gc_marker_path(before_millis, environment.uuid());
    storage.put_unique(&path, Bytes::new()).await?;
    Ok(path)
}

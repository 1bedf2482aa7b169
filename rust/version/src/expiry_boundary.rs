//! The expiry boundary: versions below it have expired, and their roots are deleted or will be soon (format §7).
//!
//! The boundary is the highest name under `_expired/`. It therefore only rises, and publishing a boundary needs no
//! coordination.

use bytes::Bytes;

use trinitylake_base::error::Result;
use trinitylake_format::file_names::{EXPIRED_PREFIX, boundary_path, boundary_version};
use trinitylake_storage::Storage;

/// The lowest version that may be read; 0 if no version ever expired.
pub async fn boundary(storage: &dyn Storage) -> Result<u64> {
    Ok(published(storage).await?.map_or(0, |(version, _)| version))
}

/// The boundary, and its time of publication by the store's clock, in milliseconds since 1970.
pub async fn published(storage: &dyn Storage) -> Result<Option<(u64, u64)>> {
    let files = storage.list(EXPIRED_PREFIX).await?;
    let boundaries = files.iter().filter_map(|file| Some((boundary_version(&file.path)?, file.modified_millis)));
    Ok(boundaries.max())
}

/// Publishes a boundary, which must precede the deletion of a file below it. Does not overwrite an existing file.
pub async fn publish(storage: &dyn Storage, version: u64) -> Result<()> {
    storage.put_if_absent(&boundary_path(version), Bytes::new()).await.map(drop)
}

/// Deletes older boundaries, which the newest one supersedes.
pub async fn forget_older(storage: &dyn Storage, version: u64) -> Result<()> {
    for file in storage.list(EXPIRED_PREFIX).await? {
        if boundary_version(&file.path).is_some_and(|older| older < version) {
            storage.delete(&file.path).await?;
        }
    }
    Ok(())
}

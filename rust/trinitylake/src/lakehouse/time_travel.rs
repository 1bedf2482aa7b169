//! Which version was the latest at a moment. `created_at_millis` rises with the version, so it is found
//! by bisection over the contiguous versions.

use std::sync::Arc;

use super::Lakehouse;
use crate::error::{Error, Result};
use crate::version::Version;
use crate::version::boundary::boundary;

/// The newest version created at or before `timestamp_millis`.
pub async fn version_at(lakehouse: &Lakehouse, timestamp_millis: u64) -> Result<Arc<Version>> {
    let latest = lakehouse.latest().await?;
    if latest.metadata.created_at_millis <= timestamp_millis {
        return Ok(latest);
    }
    let oldest_number = boundary(lakehouse.storage().as_ref()).await?;
    let oldest = lakehouse.version(oldest_number).await?;
    if oldest.metadata.created_at_millis > timestamp_millis {
        let created = oldest.metadata.created_at_millis;
        return Err(if oldest_number == 0 {
            Error::VersionNotFound(format!(
                "no version is as old as {timestamp_millis}: the lakehouse was created at {created} (milliseconds)"
            ))
        } else {
            Error::VersionExpired(format!(
                "versions as old as {timestamp_millis} have expired; the oldest kept is {oldest_number}, created at \
                 {created} (milliseconds)"
            ))
        });
    }
    // `low` is old enough, `high` is not.
    let (mut low, mut high) = (oldest, latest.number);
    while high - low.number > 1 {
        let middle = lakehouse.version(low.number + (high - low.number) / 2).await?;
        if middle.metadata.created_at_millis <= timestamp_millis {
            low = middle;
        } else {
            high = middle.number;
        }
    }
    Ok(low)
}

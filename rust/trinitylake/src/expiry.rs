//! Expiring old versions (format §7): publish the boundary, delete the roots below it, delete older
//! boundaries, and remove from the tree the records of transaction ids that were committed there. Roots are
//! the only files of the lakehouse that are deleted here, not the nodes and definitions that no version
//! reaches any more.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::path::root_path;
use crate::transaction::distributed::saved;
use crate::transaction::records::forget_before;
use crate::tree::node_store::PARALLEL_REQUESTS;
use crate::version::{Version, boundary, discovery};

/// Expires the versions below `before`, or, without it, those that the retention of the lakehouse no
/// longer keeps. Saved transactions that can still be resumed keep the version that they began on, and all
/// that follow. Returns the versions that were (or with `dry_run` would be) deleted, ascending.
pub async fn expire(lakehouse: &Arc<Lakehouse>, before: Option<u64>, dry_run: bool) -> Result<Vec<u64>> {
    let latest = lakehouse.latest().await?;
    lakehouse.placement().check_writable()?;
    let storage = lakehouse.storage();
    let current = boundary::boundary(storage.as_ref()).await?;
    let target = match before {
        Some(version) if version > latest.number => {
            return Err(Error::InvalidArgument(format!(
                "versions below {version} cannot expire: the latest is {}, and it stays",
                latest.number
            )));
        }
        Some(version) => version,
        None => retained_from(lakehouse, &latest, current).await?,
    };
    if target <= current {
        return Ok(Vec::new());
    }
    let began = saved(lakehouse).await?.into_iter().map(|transaction| transaction.base_version);
    let target = began.fold(target, u64::min);
    if target <= current {
        return Ok(Vec::new());
    }
    let kept: HashSet<&str> = latest.definition.exported_snapshots().values().map(String::as_str).collect();
    // Also what an earlier expiry that was interrupted, or a writer whose commit was void, left behind.
    let mut expired = discovery::list_roots(storage.as_ref()).await?;
    expired.retain(|version| *version < target && !kept.contains(root_path(*version).as_str()));
    if dry_run {
        return Ok(expired);
    }
    boundary::publish(storage.as_ref(), target).await?;
    if !expired.is_empty() {
        // Quick discovery reads the boundary only once. So roots are deleted when all those that may have missed
        // the new boundary are over.
        let all_looks = Duration::from_millis(discovery::QUICK_LOOK_MILLIS);
        lakehouse.environment().sleep(all_looks).await;
    }
    let doomed: Vec<String> = expired.iter().map(|version| root_path(*version)).collect();
    stream::iter(doomed)
        .map(|path| async move { storage.delete(&path).await })
        .buffer_unordered(PARALLEL_REQUESTS)
        .try_collect::<()>()
        .await?;
    lakehouse.forget(&expired);
    boundary::forget_older(storage.as_ref(), target).await?;
    forget_before(lakehouse, target).await?;
    Ok(expired)
}

/// The lowest version to keep: by its age, as one of the latest versions, or by an override.
async fn retained_from(lakehouse: &Lakehouse, latest: &Version, current: u64) -> Result<u64> {
    let definition = &latest.definition;
    let now = lakehouse.environment().now_millis();
    let by_count = (latest.number + 1).saturating_sub(definition.minimum_versions_to_keep());
    let oldest_kept = now.saturating_sub(definition.maximum_version_age_millis());
    let (mut low, mut high) = (current, by_count.max(current));
    // The first version in low..high that is young enough; creation times ascend.
    while low < high {
        let middle = low + (high - low) / 2;
        if lakehouse.version(middle).await?.metadata.created_at_millis < oldest_kept {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let mut target = low;
    for (version, age_millis) in definition.maximum_version_age_overrides() {
        // Versions stay contiguous, so one that is kept longer keeps all that follow.
        if (current..target).contains(version) {
            let created = lakehouse.version(*version).await?.metadata.created_at_millis;
            if created.saturating_add(*age_millis) >= now {
                target = *version;
            }
        }
    }
    Ok(target)
}

//! Expiring old versions (format §7): publish the boundary, delete the roots below it, delete older
//! boundaries, remove from the tree the records of transaction ids that were committed there, and give up saved
//! transactions that nobody can resume any more. Of files, roots are deleted here and those of saved transactions,
//! not the nodes and definitions that no version reaches any more.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::path::root_path;
use crate::transaction::records::forget_before;
use crate::transaction::saved_files::give_up_abandoned;
use crate::transaction::saved_list::SavedWalk;
use crate::tree::node_store::PARALLEL_REQUESTS;
use crate::version::store_time::StoreTime;
use crate::version::{Version, boundary, discovery};

/// Expires the versions below `before`, or, without it, those that the retention of the lakehouse no
/// longer keeps: how old they are is told by the store, not by this machine. Saved transactions that can still be
/// resumed keep the version that they began on, and all that follow. Returns the versions that were (or with `dry_run` would be) deleted, ascending.
pub async fn expire(lakehouse: &Arc<Lakehouse>, before: Option<u64>, dry_run: bool) -> Result<Vec<u64>> {
    let latest = lakehouse.latest().await?;
    lakehouse.check_intact()?;
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
        None => (latest.number + 1).saturating_sub(latest.definition.minimum_versions_to_keep()),
    };
    if target <= current {
        return Ok(Vec::new());
    }
    let time = StoreTime::ask(storage.as_ref(), lakehouse.environment().as_ref()).await?;
    let target = match before {
        Some(_) => target,
        None => retained_from(lakehouse, &latest, current..target, time).await?,
    };
    let target = first_needed(lakehouse, target, time).await?;
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
    if current > 0 {
        // What an expiry that was interrupted has left.
        forget_before(lakehouse, current).await?;
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
    give_up_abandoned(lakehouse, target, time).await?;
    Ok(expired)
}

/// No version expires that a saved transaction began on which can still be resumed.
async fn first_needed(lakehouse: &Arc<Lakehouse>, target: u64, time: StoreTime) -> Result<u64> {
    let mut walk = SavedWalk::begin(lakehouse, Some(time)).await?;
    let mut first = target;
    while let Some(page) = walk.next().await? {
        let resumable = page.iter().filter(|one| one.is_resumable);
        first = resumable.map(|one| one.transaction.base_version).fold(first, u64::min);
    }
    Ok(first)
}

/// The lowest version of a range to keep: by its age, or by an override.
async fn retained_from(
    lakehouse: &Lakehouse,
    latest: &Version,
    range: Range<u64>,
    time: StoreTime,
) -> Result<u64> {
    let definition = &latest.definition;
    let age_millis =
        async |version: u64| Ok::<_, Error>(time.age_millis(&lakehouse.root_file(version).await?));
    let (current, mut low, mut high) = (range.start, range.start, range.end);
    // The first one that is young enough: each root was created after those before it.
    while low < high {
        let middle = low + (high - low) / 2;
        if age_millis(middle).await? > definition.maximum_version_age_millis() {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let mut target = low;
    for (version, maximum_millis) in definition.maximum_version_age_overrides() {
        // Versions stay contiguous, so one that is kept longer keeps all that follow.
        if (current..target).contains(version) && age_millis(*version).await? <= *maximum_millis {
            target = *version;
        }
    }
    Ok(target)
}

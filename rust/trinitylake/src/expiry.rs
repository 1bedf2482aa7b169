//! Expiry of old versions (format §7): publishes the boundary, deletes the roots and boundaries below it, removes the
//! records of transaction ids that were committed in expired versions, and aborts saved transactions that can no longer
//! be resumed. Garbage collection deletes the nodes and definitions that no retained version references.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file_names::root_path;
use crate::lakehouse::Lakehouse;
use crate::storage::{Storage, delete_all};
use crate::transaction::Note;
use crate::transaction::saved::cleanup::{abort_abandoned, forget_before};
use crate::transaction::saved::list::SavedWalk;
use crate::version::store_clock::StoreTime;
use crate::version::{Version, discovery, expiry_boundary, wait_before_deleting};

/// Rules for the versions to retain. The latest version is always retained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    /// Expire all versions below this number, regardless of their age.
    pub before: Option<u64>,
    /// Maximum age instead of `maximum_version_age_millis` of the lakehouse.
    pub maximum_age_millis: Option<u64>,
    /// Minimum number instead of `minimum_versions_to_keep` of the lakehouse.
    pub minimum_versions: Option<u64>,
}

/// Result of an expiry or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Deleted versions, ascending.
    pub versions: Vec<u64>,
    /// Size of the deleted roots.
    pub size_bytes: u64,
    /// The oldest retained version, apart from tagged ones.
    pub oldest: u64,
    /// Size of the retained roots.
    pub kept_size_bytes: u64,
}

/// Expires the versions below `before`. If `before` is `None`, expires versions by the retention settings of the
/// lakehouse and the clock of the store. A saved transaction that can be resumed retains its base version and all later
/// versions. Returns the versions that were deleted, or with `dry_run` would be deleted, ascending.
pub async fn expire(lakehouse: &Arc<Lakehouse>, before: Option<u64>, dry_run: bool) -> Result<Vec<u64>> {
    let retention = Retention { before, ..Retention::default() };
    expire_by(lakehouse, retention, &Note::default(), dry_run).await.map(|expired| expired.versions)
}

/// Like [`expire`], but with `retention` instead of the settings of the lakehouse. `note` has the commit message of a
/// version that removes records of transactions.
pub async fn expire_by(
    lakehouse: &Arc<Lakehouse>,
    retention: Retention,
    note: &Note,
    dry_run: bool,
) -> Result<Expired> {
    let before = retention.before;
    let latest = lakehouse.latest().await?;
    lakehouse.check_intact()?;
    lakehouse.placement().check_writable()?;
    let storage = lakehouse.storage();
    let current = expiry_boundary::boundary(storage.as_ref()).await?;
    let target = match before {
        Some(version) if version > latest.number => {
            return Err(Error::InvalidArgument(format!(
                "versions below {version} cannot expire: the latest version, {}, is always retained",
                latest.number
            )));
        }
        Some(version) => version,
        None => {
            let kept = retention.minimum_versions.unwrap_or(latest.definition.minimum_versions_to_keep());
            (latest.number + 1).saturating_sub(kept.max(1))
        }
    };
    let nothing = Expired { oldest: current, ..Expired::default() };
    if target <= current {
        return Ok(nothing);
    }
    let time = StoreTime::ask(storage.as_ref(), lakehouse.environment().as_ref()).await?;
    let target = match before {
        Some(_) => target,
        None => {
            let maximum_millis = retention.maximum_age_millis.unwrap_or(latest.definition.maximum_version_age_millis());
            retained_from(lakehouse, &latest, current..target, time, maximum_millis).await?
        }
    };
    let target = first_needed(lakehouse, target, time).await?;
    if target <= current {
        return Ok(nothing);
    }
    if dry_run {
        return expired_roots(storage.as_ref(), &latest, target).await;
    }
    if current > 0 {
        // Complete an earlier expiry that was interrupted.
        forget_before(lakehouse, current, note).await?;
    }
    expiry_boundary::publish(storage.as_ref(), target).await?;
    // Other processes rely on a recent observation of the boundary for some seconds. Wait until every observation from
    // before this boundary is too old, and then delete roots.
    wait_before_deleting::wait_for_older_observations(storage.as_ref(), lakehouse.environment().as_ref()).await;
    // If a process tags an expired version from now on, it reads the boundary afterwards and removes the tag again.
    // Earlier tags are in the latest version.
    let latest = lakehouse.latest().await?;
    let expired = expired_roots(storage.as_ref(), &latest, target).await?;
    let paths: Vec<String> = expired.versions.iter().map(|version| root_path(*version)).collect();
    delete_all(storage.as_ref(), paths).await?;
    lakehouse.forget(&expired.versions);
    expiry_boundary::forget_older(storage.as_ref(), target).await?;
    forget_before(lakehouse, target, note).await?;
    abort_abandoned(lakehouse, target, time, note).await?;
    Ok(expired)
}

/// Returns the roots below `target` without a tag, also roots that an interrupted expiry or a void commit has left.
async fn expired_roots(storage: &dyn Storage, latest: &Version, target: u64) -> Result<Expired> {
    let pinned: HashSet<u64> = latest.definition.pinned_versions().collect();
    let mut expired = Expired { oldest: target, ..Expired::default() };
    for (version, file) in discovery::list_root_files(storage).await? {
        if version < target && !pinned.contains(&version) {
            expired.versions.push(version);
            expired.size_bytes += file.size_bytes;
        } else {
            expired.kept_size_bytes += file.size_bytes;
        }
    }
    expired.versions.dedup();
    Ok(expired)
}

/// Lowers `target` to the base version of the oldest saved transaction that can be resumed.
async fn first_needed(lakehouse: &Arc<Lakehouse>, target: u64, time: StoreTime) -> Result<u64> {
    let mut walk = SavedWalk::begin(lakehouse, Some(time)).await?;
    let mut first = target;
    while let Some(page) = walk.next().await? {
        let resumable = page.iter().filter(|one| one.is_resumable);
        first = resumable.map(|one| one.transaction.base_version).fold(first, u64::min);
    }
    Ok(first)
}

/// Returns the first version to retain, by its age or by an override of the maximum age for this version.
async fn retained_from(
    lakehouse: &Lakehouse,
    latest: &Version,
    range: Range<u64>,
    time: StoreTime,
    maximum_age_millis: u64,
) -> Result<u64> {
    let definition = &latest.definition;
    let age_millis = async |version: u64| Ok::<_, Error>(time.age_millis(&lakehouse.root_file(version).await?));
    let (current, mut low, mut high) = (range.start, range.start, range.end);
    // Binary search for the first version that is young enough. Ages descend, because roots are created in order.
    while low < high {
        let middle = low + (high - low) / 2;
        if age_millis(middle).await? > maximum_age_millis {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let mut target = low;
    for (version, maximum_millis) in definition.maximum_version_age_overrides() {
        // Retained versions are contiguous, so an override also retains all later versions.
        if (current..target).contains(version) && age_millis(*version).await? <= *maximum_millis {
            target = *version;
        }
    }
    Ok(target)
}

//! Finding the latest version (format §7).
//!
//! The search starts at the hint, which may be stale, damaged or missing, and continues with a [`GallopingSearch`].
//!
//! A hint is written after the root that it names was created, and the newest root is never deleted. So a hint above
//! all roots shows that roots were lost ([`Found::missing`]). Such a hint is read again before the loss is reported.

use bytes::Bytes;
use futures::future::{join, try_join, try_join_all};

use super::expiry_boundary::boundary;
use super::galloping_search::{GallopingSearch, version_of_hint};
use super::wait_before_deleting::QUICK_LOOK_MILLIS;
use trinitylake_base::environment::{Environment, Moment};
use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::{LATEST_HINT_PATH, root_path, root_path_000, root_version};
use trinitylake_storage::{FileInfo, Storage};

/// Returns the version that the hint file names; `None` if the file is missing or contains no number.
pub async fn read_hint(storage: &dyn Storage) -> Option<u64> {
    let bytes = storage.get(LATEST_HINT_PATH).await.ok()?;
    version_of_hint(&bytes)
}

/// Writes the hint. Best effort: if it fails, or if an older hint overwrites this one, readers send more requests.
pub async fn write_hint(storage: &dyn Storage, version: u64) {
    let _ = storage.put_hint(LATEST_HINT_PATH, Bytes::from(version.to_string())).await;
}

/// The newest version whose root exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub version: u64,
    pub root: Bytes,
    /// A higher version that the hint names, whose root was deleted or lost.
    pub missing: Option<u64>,
}

/// Finds the latest version. Takes two rounds of dependent requests if the hint is up to date.
pub async fn latest(storage: &dyn Storage, environment: &dyn Environment) -> Result<Found> {
    latest_by(storage, Some(environment)).await
}

/// Like [`latest`], but without a clock: one more request checks whether the version has expired during the search.
pub async fn latest_without_clock(storage: &dyn Storage) -> Result<Found> {
    latest_by(storage, None).await
}

async fn latest_by(storage: &dyn Storage, clock: Option<&dyn Environment>) -> Result<Found> {
    let mut suspected = None;
    for look in 1..=MAX_SEARCHES {
        let started = clock.map(Moment::now);
        let found = match look_for_latest(storage).await {
            // The version may expire before it is read. Then the boundary is above it, and the search starts again.
            Err(Error::FileNotFound { .. }) if look < MAX_SEARCHES => continue,
            Err(Error::FileNotFound { path }) => {
                return Err(Error::corrupt(
                    path,
                    "this root node file is missing, and all later ones are missing as well",
                ));
            }
            look => look?,
        };
        // If versions expire during the search, the version after the found one may have been deleted.
        let was_quick = clock.zip(started).is_some_and(|(clock, started)| started.is_within(QUICK_LOOK_MILLIS, clock));
        if !(found.hint.is_some() && was_quick) && boundary(storage).await? > found.version {
            continue;
        }
        let missing = found.hint.filter(|hint| *hint > found.version);
        // Read the hint twice before reporting a loss: on a local disk it is overwritten in place, so a reader may see
        // parts of two hints.
        if missing.is_some() && missing != suspected {
            suspected = missing;
            continue;
        }
        return Ok(Found { version: found.version, root: found.root, missing });
    }
    Err(Error::VersionExpired("versions expire faster than they can be read; try again".into()))
}

/// Maximum number of searches while versions expire.
const MAX_SEARCHES: u32 = 5;
struct Look {
    hint: Option<u64>,
    version: u64,
    root: Bytes,
}

async fn look_for_latest(storage: &dyn Storage) -> Result<Look> {
    let (hint, boundary) = join(read_hint(storage), boundary(storage)).await;
    let boundary = boundary?;
    let look = |(version, root): (u64, Bytes)| Look { hint, version, root };
    let start = hint.unwrap_or(0).max(boundary);
    let next = start.saturating_add(1);
    let (root_file, next_file) = (root_path(start), root_path(next));
    let (root, next_exists) = join(storage.get(&root_file), storage.exists(&next_file)).await;
    match root {
        Ok(root) if !next_exists? => return Ok(look((start, root))),
        Ok(_) => {
            let version = last_existing_far(storage, next).await?;
            return root_of(storage, version).await.map(look);
        }
        Err(error) if !error.is_file_not_found() => return Err(error),
        Err(_) => {}
    }
    // The root that the hint names does not exist, so list the roots. Roots below the boundary are not the latest
    // version.
    let Some(highest) = list_roots(storage).await?.last().copied() else {
        return Err(Error::NotALakehouse("there is no root node file: no lakehouse was created here".into()));
    };
    if highest < boundary {
        return Err(Error::FileNotFound { path: root_file });
    }
    root_of(storage, last_existing(storage, highest).await?).await.map(look)
}

/// The versions whose root files exist, ascending.
pub async fn list_roots(storage: &dyn Storage) -> Result<Vec<u64>> {
    let mut versions: Vec<u64> = list_root_files(storage).await?.into_iter().map(|(version, _)| version).collect();
    versions.dedup();
    Ok(versions)
}

/// The existing root files, by version.
pub async fn list_root_files(storage: &dyn Storage) -> Result<Vec<(u64, FileInfo)>> {
    let (zeros, ones) = try_join(storage.list("_0"), storage.list("_1")).await?;
    let with_version = |file: FileInfo| root_version(&file.path).map(|version| (version, file));
    let mut files: Vec<_> = zeros.into_iter().chain(ones).filter_map(with_version).collect();
    files.sort_unstable_by(|left, right| (left.0, &left.1.path).cmp(&(right.0, &right.1.path)));
    Ok(files)
}

async fn root_of(storage: &dyn Storage, version: u64) -> Result<(u64, Bytes)> {
    root(storage, version).await.map(|root| (version, root))
}

/// The root file of a version.
pub async fn root(storage: &dyn Storage, version: u64) -> Result<Bytes> {
    match storage.get(&root_path(version)).await {
        Ok(root) => Ok(root),
        // The root may have the name of format revision 000.
        Err(error) => storage.get(&root_path_000(version)).await.or(Err(error)),
    }
}

/// Returns the highest existing version, searched from `known`, which is probably a little lower.
pub async fn last_existing(storage: &dyn Storage, known: u64) -> Result<u64> {
    ascend(storage, GallopingSearch::near(known)).await
}

/// Returns the highest existing version, searched from `known`, which may be hundreds of versions lower.
pub async fn last_existing_far(storage: &dyn Storage, known: u64) -> Result<u64> {
    ascend(storage, GallopingSearch::far(known)).await
}

async fn ascend(storage: &dyn Storage, mut galloping_search: GallopingSearch) -> Result<u64> {
    loop {
        let probes = galloping_search.probes();
        if probes.is_empty() {
            return Ok(galloping_search.last());
        }
        galloping_search.learn(&exist_all(storage, &probes).await?);
    }
}

async fn exist_all(storage: &dyn Storage, versions: &[u64]) -> Result<Vec<bool>> {
    try_join_all(versions.iter().map(|version| async move { storage.exists(&root_path(*version)).await })).await
}

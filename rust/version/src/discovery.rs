//! Finding the latest version (format §7).
//!
//! The hint is only a place to start: it may be stale, ahead, damaged or missing. From the boundary on,
//! versions are contiguous: if one is missing, so are all above it. So the latest is found by galloping
//! (steps that double) and bisection.

use bytes::Bytes;
use futures::future::{join, try_join, try_join_all};

use super::boundary::boundary;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::path::{LATEST_HINT_PATH, root_path, root_path_000, root_version};
use trinitylake_storage::Storage;

/// A hint is one number; a longer file is not a hint.
const HINT_MAX_SIZE_BYTES: usize = 20;
/// Probes that are sent at once while galloping: rounds cost time, probes only a cheap request each.
const PROBES: u32 = 6;

/// The version that the hint file names, if the file is there and holds a number.
pub async fn read_hint(storage: &dyn Storage) -> Option<u64> {
    let bytes = storage.get(LATEST_HINT_PATH).await.ok()?;
    if bytes.len() > HINT_MAX_SIZE_BYTES {
        return None;
    }
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

/// Writes the hint. Best effort: if that fails, or an older hint overwrites it, later readers need some more
/// requests.
pub async fn write_hint(storage: &dyn Storage, version: u64) {
    let _ = storage.put_hint(LATEST_HINT_PATH, Bytes::from(version.to_string())).await;
}

/// The latest version and the bytes of its root: two dependent rounds when the hint is right.
pub async fn latest(storage: &dyn Storage, environment: &dyn Environment) -> Result<(u64, Bytes)> {
    let mut looks = 1;
    loop {
        let started = environment.elapsed_millis();
        let hint = match look_for_latest(storage).await {
            // What was found may expire before it is read. Then the boundary is above it, and discovery begins again.
            Err(error) if error.is_file_not_found() && looks < LOOKS => None,
            Err(error) => return Err(error),
            Ok(found) => {
                // Where versions expire while one looks, the next one may be missing because it is gone.
                let was_quick = environment.elapsed_millis() - started < QUICK_LOOK_MILLIS;
                if (found.hint.is_some() && was_quick) || boundary(storage).await? <= found.version {
                    return Ok((found.version, found.root));
                }
                found.hint
            }
        };
        looks += 1;
        if looks > LOOKS {
            return Err(Error::VersionExpired(format!(
                "versions expire faster than they can be read (the hint says {hint:?}); try again"
            )));
        }
    }
}

/// How often to begin again when versions expire meanwhile.
const LOOKS: u32 = 5;
/// Discovery that takes less time than this need not read the boundary again: expiry waits as long between
/// publishing the boundary and deleting the first root.
pub const QUICK_LOOK_MILLIS: u64 = 1000;

struct Found {
    hint: Option<u64>,
    version: u64,
    root: Bytes,
}

async fn look_for_latest(storage: &dyn Storage) -> Result<Found> {
    let (hint, boundary) = join(read_hint(storage), boundary(storage)).await;
    let found = |(version, root): (u64, Bytes)| Found { hint, version, root };
    let start = hint.unwrap_or(0).max(boundary?);
    let next = start.saturating_add(1);
    let (root_file, next_file) = (root_path(start), root_path(next));
    let (root, next_exists) = join(storage.get(&root_file), storage.exists(&next_file)).await;
    match root {
        Ok(root) if !next_exists? => return Ok(found((start, root))),
        Ok(_) => {
            let version = last_existing(storage, next).await?;
            return root_of(storage, version).await.map(found);
        }
        Err(error) if !error.is_file_not_found() => return Err(error),
        Err(_) => {}
    }
    // There is nothing where the hint pointed: list the roots.
    let Some(highest) = list_roots(storage).await?.last().copied() else {
        return Err(Error::NotALakehouse("there is no root node file: no lakehouse was created here".into()));
    };
    root_of(storage, last_existing(storage, highest).await?).await.map(found)
}

/// The versions whose root files are there, ascending.
pub async fn list_roots(storage: &dyn Storage) -> Result<Vec<u64>> {
    let (zeros, ones) = try_join(storage.list("_0"), storage.list("_1")).await?;
    let mut versions: Vec<u64> =
        zeros.iter().chain(&ones).filter_map(|file| root_version(&file.path)).collect();
    versions.sort_unstable();
    versions.dedup();
    Ok(versions)
}

async fn root_of(storage: &dyn Storage, version: u64) -> Result<(u64, Bytes)> {
    root(storage, version).await.map(|root| (version, root))
}

/// The root file of a version.
pub async fn root(storage: &dyn Storage, version: u64) -> Result<Bytes> {
    match storage.get(&root_path(version)).await {
        Ok(root) => Ok(root),
        // Of revision 000, or gone in this very moment.
        Err(error) => storage.get(&root_path_000(version)).await.or(Err(error)),
    }
}

/// The highest version that exists, given one that does: gallop upwards, then bisect.
pub async fn last_existing(storage: &dyn Storage, known: u64) -> Result<u64> {
    let (mut low, mut step) = (known, 1u64);
    let high = loop {
        let probes: Vec<u64> = (0..PROBES).map(|i| low.saturating_add(step.saturating_mul(1 << i))).collect();
        let exist = exist_all(storage, &probes).await?;
        match exist.iter().rposition(|exists| *exists) {
            None => break probes[0],
            Some(i) => {
                low = probes[i];
                match probes.get(i + 1) {
                    Some(next) => break *next,
                    None => step = step.saturating_mul(1 << PROBES),
                }
            }
        }
    };
    let mut high = high;
    while high - low > 1 {
        let gap = high - low;
        let cuts = u64::from(PROBES).min(gap - 1);
        let probes: Vec<u64> = (1..=cuts).map(|i| low + gap * i / (cuts + 1)).collect();
        let exist = exist_all(storage, &probes).await?;
        // Versions appear while one looks: a lower probe may have come too early and a higher one not.
        let highest = probes.iter().zip(&exist).rfind(|(_, exists)| **exists).map(|(probe, _)| *probe);
        low = highest.unwrap_or(low);
        let above = probes.into_iter().find(|probe| *probe > low);
        high = above.unwrap_or(high);
    }
    Ok(low)
}

async fn exist_all(storage: &dyn Storage, versions: &[u64]) -> Result<Vec<bool>> {
    try_join_all(versions.iter().map(|version| async move { storage.exists(&root_path(*version)).await }))
        .await
}

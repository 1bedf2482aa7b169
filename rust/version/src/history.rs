//! The history of a lakehouse: its versions from the newest downwards, and by the moment of their creation.

use std::sync::Arc;

use futures::future::join_all;

use super::Version;
use super::boundary::boundary;
use super::versions::Versions;
use trinitylake_base::error::{Error, Result};

/// Roots that `log` reads at once.
const LOG_BATCH: u64 = 32;
/// Versions that are looked through for a transaction before more are read.
const LOG_PAGE: usize = 64;

/// A version as the log shows it: one that cannot be read is a gap, not the end.
#[derive(Clone, Debug)]
pub struct Past {
    pub number: u64,
    pub version: Result<Arc<Version>>,
}

impl Versions {
    /// Newest first: the version before `before` (or the latest) and those below it, `limit` of them. `CorruptFile`
    /// if one of them cannot be read.
    pub async fn log(&self, limit: Option<usize>, before: Option<u64>) -> Result<Vec<Arc<Version>>> {
        self.history(limit, before).await?.into_iter().map(|past| past.version).collect()
    }

    /// [`Versions::log`], which shows what cannot be read as a gap.
    pub async fn history(&self, limit: Option<usize>, before: Option<u64>) -> Result<Vec<Past>> {
        let newest = match &self.damage {
            Some(damage) => damage.newest,
            None => self.latest().await?.number,
        };
        let mut next = before.map_or(newest + 1, |before| before.min(newest + 1));
        let mut oldest = self.oldest_version().await?;
        let mut past: Vec<Past> = Vec::new();
        let limit = limit.unwrap_or(usize::MAX);
        while next > oldest && past.len() < limit {
            let wanted = LOG_BATCH.min((limit - past.len()) as u64).min(next - oldest);
            let loads = join_all((next - wanted..next).rev().map(|number| self.load_version(number)));
            let (batch, boundary) = self.with_boundary(loads).await?;
            // Some may expire while one looks: then nothing older is left either.
            oldest = boundary;
            for (number, version) in (next - wanted..next).rev().zip(batch) {
                match version {
                    _ if number < oldest => {}
                    Ok(_) | Err(Error::CorruptFile { .. }) => past.push(Past { number, version }),
                    Err(error) => return Err(error),
                }
            }
            next -= wanted;
        }
        Ok(past)
    }

    /// The newest version that committed a transaction, as far as the log goes back.
    pub async fn committed_by(&self, id: &str) -> Result<Option<Arc<Version>>> {
        let mut before = None;
        loop {
            let versions = self.log(Some(LOG_PAGE), before).await?;
            if let Some(version) = versions.iter().find(|version| version.metadata.commits(id)) {
                return Ok(Some(version.clone()));
            }
            match versions.last() {
                Some(oldest) if oldest.number > 0 => before = Some(oldest.number),
                _ => return Ok(None),
            }
        }
    }

    /// The newest version created at or before `timestamp_millis`.
    /// `created_at_millis` rises with the version, so it is found by bisection.
    pub async fn version_at(&self, timestamp_millis: u64) -> Result<Arc<Version>> {
        let latest = self.latest().await?;
        if latest.metadata.created_at_millis <= timestamp_millis {
            return Ok(latest);
        }
        let oldest_number = boundary(self.storage().as_ref()).await?;
        let oldest = self.version(oldest_number).await?;
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
            let middle = self.version(low.number + (high - low.number) / 2).await?;
            if middle.metadata.created_at_millis <= timestamp_millis {
                low = middle;
            } else {
                high = middle.number;
            }
        }
        Ok(low)
    }
}

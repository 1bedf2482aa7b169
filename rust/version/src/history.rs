//! The history of a lakehouse: versions from the newest downwards, and the version at a given time.

use std::sync::Arc;

use futures::future::join_all;

use super::expiry_boundary::boundary;
use super::time_travel::AtMoment;
use super::version::Version;
use super::versions::Versions;
use trinitylake_base::error::{Error, Result};

/// Number of roots of the history that are read at the same time and kept in memory.
pub const PAGE: u64 = 32;
/// Number of versions per page when the log is searched for a transaction.
const LOG_PAGE: usize = 64;

/// A version of the history. An unreadable version is a gap and does not end the history.
#[derive(Clone, Debug)]
pub struct Past {
    pub number: u64,
    pub version: Result<Arc<Version>>,
}

/// Iterator over the history, newest first, page by page.
#[derive(Debug)]
pub struct History<'a> {
    versions: &'a Versions,
    /// Remaining versions: `oldest..next`.
    next: u64,
    oldest: u64,
    /// The newest lost version, which the first page returns.
    lost: Option<Past>,
}

impl History<'_> {
    /// Returns the next versions, at most `limit` and at most [`PAGE`]; none at the end.
    pub async fn page(&mut self, limit: usize) -> Result<Vec<Past>> {
        if limit > 0
            && let Some(lost) = self.lost.take()
        {
            return Ok(vec![lost]);
        }
        let next = self.next;
        let wanted = PAGE.min(limit as u64).min(next.saturating_sub(self.oldest));
        let mut page = Vec::with_capacity(wanted as usize);
        if wanted == 0 {
            return Ok(page);
        }
        let loads = join_all((next - wanted..next).rev().map(|number| self.versions.load_version(number)));
        let (versions, boundary) = self.versions.with_boundary(loads).await?;
        // Versions below the boundary have expired meanwhile, so the history ends there.
        self.oldest = boundary;
        for (number, version) in (next - wanted..next).rev().zip(versions) {
            match version {
                _ if number < self.oldest => {}
                Ok(_) | Err(Error::CorruptFile { .. }) => page.push(Past { number, version }),
                Err(error) => return Err(error),
            }
        }
        self.next = next - wanted;
        Ok(page)
    }
}

impl Versions {
    /// Returns the history downwards from the version before `before`, or from the latest version.
    pub async fn history(&self, before: Option<u64>) -> Result<History<'_>> {
        let (newest, lost) = match (self.damage(), self.latest().await) {
            (Some(damage), _) if !damage.is_missing => (damage.newest, None),
            // The search for the latest version detects lost versions.
            (_, latest) => (latest?.number, self.damage()),
        };
        let lost = lost
            .filter(|lost| before.is_none_or(|before| before > lost.newest))
            .map(|lost| Past { number: lost.newest, version: Err(lost.error) });
        let next = before.map_or(newest + 1, |before| before.min(newest + 1));
        Ok(History { versions: self, next, oldest: self.oldest_version().await?, lost })
    }

    /// Returns at most `limit` versions, newest first, from the version before `before` or from the latest version.
    /// `CorruptFile` if one of them is unreadable.
    pub async fn log(&self, limit: usize, before: Option<u64>) -> Result<Vec<Arc<Version>>> {
        let mut history = self.history(before).await?;
        let mut log: Vec<Arc<Version>> = Vec::new();
        loop {
            let page = history.page(limit - log.len()).await?;
            if page.is_empty() {
                return Ok(log);
            }
            for past in page {
                log.push(past.version?);
            }
        }
    }

    /// Returns the newest version in the log that committed the transaction.
    pub async fn committed_by(&self, id: &str) -> Result<Option<Arc<Version>>> {
        let mut before = None;
        loop {
            let versions = self.log(LOG_PAGE, before).await?;
            if let Some(version) = versions.iter().find(|version| version.metadata.commits(id)) {
                return Ok(Some(version.clone()));
            }
            match versions.last() {
                Some(oldest) if oldest.number > 0 => before = Some(oldest.number),
                _ => return Ok(None),
            }
        }
    }

    /// Returns the newest version created at or before a given time, in milliseconds since 1970. `VersionNotFound` if
    /// the lakehouse is younger, `VersionExpired` if that version is not retained.
    pub async fn version_at(&self, moment_millis: i64) -> Result<Arc<Version>> {
        let latest = self.latest().await?;
        let answer = |version: Arc<Version>| {
            let created = version.metadata.created_at_millis;
            (version, created)
        };
        let mut search = AtMoment::up_to(latest.number, moment_millis);
        search.learn(Some(answer(latest)));
        if search.probe().is_some() {
            search.expired_below(boundary(self.storage().as_ref()).await?);
        }
        while let Some(probe) = search.probe() {
            match self.version(probe).await {
                Ok(version) => search.learn(Some(answer(version))),
                // The version has expired since the boundary was read.
                Err(Error::VersionExpired(_)) => search.learn(None),
                Err(error) => return Err(error),
            }
        }
        search.found()
    }
}

//! What a transaction may not commit any more, because garbage collection may have deleted it (format §7).
//!
//! A collection is a version. Its root says before which time of the store it deletes what no version reaches. A
//! transaction that is held against such a version has to prove that its own files are younger, or it has expired:
//! nobody else knows of them, so they may be gone.
//!
//! Invariants:
//! - Both sides compare times of the store. How long ago the transaction began is told by the dates of the store's
//!   answers, since a machine that stood still has clocks that stood still with it; and by its clocks, if they say more.
//! - What a transaction takes over from a version that is kept is no file of its own: the collection kept it.

use futures::future::try_join_all;

use super::Transaction;
use super::life::Failure;
use crate::environment::Moment;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::store_clock::{APART_MILLIS, StoreMoment, dated_last};
use crate::version::Version;
use crate::version::kept::check_kept;
use crate::version::store_time::StoreTime;

/// Stores date files by whole seconds, and their machines may differ a little.
pub(crate) const STORE_CLOCK_STEP_MILLIS: u64 = 2000;
/// Files that are asked for at once.
const FILES_AT_ONCE: usize = 64;

/// What is known of the age of a transaction's own files.
#[derive(Debug)]
pub(super) struct Fence {
    /// It wrote none before, by the clocks of this machine.
    began: Moment,
    /// Nor before the store answered this look for a version.
    heard: Option<StoreMoment>,
    /// Nor before this time of the store, if it was saved: others wrote some of them.
    pub since_millis: Option<u64>,
    /// They are younger than this, or nothing was collected since.
    proven_millis: u64,
    /// Written by others before it began; each has to prove its age by itself.
    adopted: Vec<String>,
}

impl Fence {
    pub(super) fn of(base: &Version, lakehouse: &Lakehouse) -> Fence {
        Fence {
            began: Moment::now(lakehouse.environment().as_ref()),
            heard: lakehouse.last_heard(),
            since_millis: None,
            proven_millis: base.metadata.gc_before_millis.unwrap_or_default(),
            adopted: Vec::new(),
        }
    }
}

impl Transaction {
    /// The transaction refers to files that were written before it began, by an engine or a client: perhaps before its
    /// base, too, unless they are `since_base`. `TransactionExpired` if one of them is so old that it may have been
    /// collected.
    pub async fn adopt(&mut self, paths: Vec<String>, since_base: bool) -> Result<()> {
        if self.fence.proven_millis > 0 && !since_base {
            self.check_ages(&paths, self.fence.proven_millis).await?;
        }
        self.fence.adopted.extend(paths);
        Ok(())
    }

    /// Asked when a file is missing that this transaction reads, which may be no damage: `VersionExpired` if its base is
    /// not kept any more, `TransactionExpired` if its own files may have been collected.
    pub async fn check_kept(&self) -> Result<()> {
        check_kept(self.base.nodes(), self.base.number).await?;
        let collected_millis = self.lakehouse.latest().await?.metadata.gc_before_millis.unwrap_or_default();
        if collected_millis > self.fence.proven_millis {
            self.prove_younger_than(collected_millis).await?;
        }
        Ok(())
    }

    /// The transaction is held against versions of which one collects what is older than `before_millis`.
    pub(super) async fn pass_collection(&mut self, before_millis: u64) -> Result<(), Failure> {
        if before_millis <= self.fence.proven_millis {
            return Ok(());
        }
        self.prove_younger_than(before_millis).await.map_err(Failure::before_sending)?;
        self.fence.proven_millis = before_millis;
        Ok(())
    }

    async fn prove_younger_than(&self, before_millis: u64) -> Result<()> {
        let since_millis = match self.fence.since_millis {
            Some(since_millis) => since_millis,
            None => self.began_at_store().await?,
        };
        if since_millis < before_millis {
            return Err(self.collected("it began before files that nobody referred to were collected"));
        }
        self.check_ages(&self.fence.adopted, before_millis).await
    }

    /// A time of the store before which this transaction wrote no file.
    pub(super) async fn began_at_store(&self) -> Result<u64> {
        let environment = self.lakehouse.environment().as_ref();
        let asked = StoreTime::ask(self.lakehouse.storage().as_ref(), environment);
        let (time, answered) = dated_last(asked).await;
        let time = time?;
        let age_millis = match (self.fence.heard, answered) {
            (Some(heard), Some(answered)) => {
                // Two that are dated by whole seconds may lie further apart than they show.
                let by_dates = answered.millis_since(heard).saturating_add(APART_MILLIS);
                by_dates.max(self.fence.began.elapsed_millis(environment))
            }
            // A disk, whose clock may be that of this machine; or a store that does not date its answers.
            (None, _) => self.fence.began.most_passed_millis(environment),
            // Some proxy may have answered in its place.
            (Some(_), None) => {
                let message = "the store did not say when it answered, so nobody can tell how old the files of the \
                               transaction are; try again";
                return Err(Error::Storage { message: message.into(), retryable: true });
            }
        };
        Ok(time.millis_before(age_millis.saturating_add(STORE_CLOCK_STEP_MILLIS)))
    }

    /// When the first of its own files was written, at the earliest, by the store: also of those that it adopted.
    pub(super) async fn files_since(&self) -> Result<u64> {
        let began_millis = match self.fence.since_millis {
            Some(since_millis) => since_millis,
            None => self.began_at_store().await?,
        };
        let adopted = ages(self.lakehouse.storage().as_ref(), &self.fence.adopted).await?;
        Ok(adopted.into_iter().map(|(_, modified)| modified.unwrap_or_default()).fold(began_millis, u64::min))
    }

    async fn check_ages(&self, paths: &[String], before_millis: u64) -> Result<()> {
        for (path, modified_millis) in ages(self.lakehouse.storage().as_ref(), paths).await? {
            match modified_millis {
                Some(millis) if millis >= before_millis => {}
                Some(_) => {
                    return Err(self.collected(&format!(
                        "{path} is older than what was collected since, and no version refers to it"
                    )));
                }
                None => return Err(self.collected(&format!("{path} is gone"))),
            }
        }
        Ok(())
    }

    pub(super) fn collected(&self, why: &str) -> Error {
        Error::TransactionExpired(format!(
            "transaction {} has expired: {why}, so its files may be gone; begin again",
            self.info.id
        ))
    }
}

/// When the store says that each of the files was written; `None` for those that are not there.
async fn ages(storage: &dyn Storage, paths: &[String]) -> Result<Vec<(String, Option<u64>)>> {
    let mut ages = Vec::with_capacity(paths.len());
    for some in paths.chunks(FILES_AT_ONCE) {
        let age = async |path: &String| match storage.head(path).await {
            Ok(file) => Ok((path.clone(), Some(file.modified_millis))),
            Err(Error::FileNotFound { .. }) => Ok((path.clone(), None)),
            Err(error) => Err(error),
        };
        ages.extend(try_join_all(some.iter().map(age)).await?);
    }
    Ok(ages)
}

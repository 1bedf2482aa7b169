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
//! - A file that was there long before, as of a table that is registered again, proves instead that no collection is
//!   under way that may mean it: it is looked for after that was asked (`version::gc_markers`).

use futures::future::try_join_all;

use super::Transaction;
use super::life::Failure;
use crate::environment::Moment;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::store_clock::{APART_MILLIS, StoreMoment, dated_last};
use crate::version::Version;
use crate::version::gc_markers::under_way;
use crate::version::retention::check_retained;
use crate::version::root_metadata::RootMetadata;
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
    /// Written by others before it began; each has to prove by itself that it stays.
    adopted: Vec<String>,
}

/// What some versions that others committed say of garbage collections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Collected {
    /// The highest time of any collection up to these versions.
    highest_millis: u64,
    /// That of a collection among these versions.
    among_them_millis: Option<u64>,
}

impl Collected {
    pub fn add(&mut self, version: &RootMetadata) {
        self.highest_millis = self.highest_millis.max(version.gc_before_millis.unwrap_or_default());
        self.among_them_millis = self.among_them_millis.max(version.collects_before_millis());
    }
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
    /// base, too, unless they are `since_base`. `TransactionExpired` if one of them is gone, or is so old that a
    /// collection that is under way may delete it.
    pub async fn adopt(&mut self, paths: Vec<String>, since_base: bool) -> Result<()> {
        if self.fence.proven_millis > 0 && !since_base {
            self.check_stay(&paths, self.fence.proven_millis).await?;
        }
        self.fence.adopted.extend(paths);
        Ok(())
    }

    /// Asked when a file is missing that this transaction reads, which may be no damage: `VersionExpired` if its base is
    /// not kept any more, `TransactionExpired` if its own files may have been collected.
    pub async fn check_retained(&self) -> Result<()> {
        check_retained(self.base.nodes(), self.base.number).await?;
        let collected_millis = self.lakehouse.latest().await?.metadata.gc_before_millis.unwrap_or_default();
        if collected_millis > self.fence.proven_millis {
            self.prove_younger_than(collected_millis).await?;
        }
        Ok(())
    }

    /// The transaction is held against versions that say this.
    pub(super) async fn pass_collections(&mut self, passed: Collected) -> Result<(), Failure> {
        let before_millis = passed.highest_millis;
        if before_millis > self.fence.proven_millis {
            self.prove_younger_than(before_millis).await.map_err(Failure::before_sending)?;
            self.fence.proven_millis = before_millis;
        } else if let Some(before_millis) = passed.among_them_millis {
            // One with a longer grace. What was written here is younger; what was there before may not be.
            self.prove_stay(self.fence.since_millis, before_millis).await.map_err(Failure::before_sending)?;
        }
        Ok(())
    }

    async fn prove_younger_than(&self, before_millis: u64) -> Result<()> {
        let since_millis = match self.fence.since_millis {
            Some(since_millis) => since_millis,
            None => self.began_at_store().await?,
        };
        self.prove_stay(Some(since_millis), before_millis).await
    }

    async fn prove_stay(&self, since_millis: Option<u64>, before_millis: u64) -> Result<()> {
        if since_millis.is_some_and(|since_millis| since_millis < before_millis) {
            return Err(self.collected("it began before files that nobody referred to were collected"));
        }
        self.check_stay(&self.fence.adopted, before_millis).await
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

    /// That files which were there before stay, although what is older than `before_millis` was collected up to a version
    /// that is known: they are younger; or they are there although no collection is under way that may delete them. In
    /// this order: what is there after the others are over stays.
    async fn check_stay(&self, paths: &[String], before_millis: u64) -> Result<()> {
        let storage = self.lakehouse.storage().as_ref();
        let gone = |path: &str| self.collected(&format!("{path} is gone"));
        let mut old = Vec::new();
        for (path, modified_millis) in ages(storage, paths).await? {
            match modified_millis {
                Some(millis) if millis >= before_millis => {}
                Some(_) => old.push(path),
                None => return Err(gone(&path)),
            }
        }
        if old.is_empty() {
            return Ok(());
        }
        let collecting = under_way(storage).await?;
        for (path, modified_millis) in ages(storage, &old).await? {
            let Some(millis) = modified_millis else { return Err(gone(&path)) };
            if let Some(one) = collecting.iter().find(|one| millis < one.before_millis) {
                return Err(self.collected(&format!(
                    "{path} is older than what a garbage collection deletes that is under way, or was broken off ({})",
                    one.path
                )));
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

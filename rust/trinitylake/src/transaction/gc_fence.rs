//! Checks that garbage collection has not deleted files of the transaction (format §7).
//!
//! A garbage collection publishes a version, its fence, which records a time of the store: unreferenced files older
//! than this time are deleted. No version references the files of an open transaction. So a transaction that is
//! validated against a fence has to prove that its files are younger than this time; otherwise it has expired.
//!
//! Invariants:
//! - Collection and transaction compare times of the store. The age of the transaction is measured twice, by the dates
//!   in the store's answers and by the machine's clocks, and the larger value counts: the machine's clocks stop while
//!   the machine is suspended. On a local disk, each statement observes the wall clock, which dates the files there.
//! - A file that a retained version references needs no proof, because garbage collection retains it.
//! - A file that existed before the transaction, e.g. of a table that is registered again, needs a different proof: the
//!   file still exists after a listing found no running collection that may delete it (`version::gc_markers`).

use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::try_join_all;

use crate::environment::{Environment, Moment, wall_clock_lead_millis};
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::response_dates::{APART_MILLIS, StoreMoment, dated_last};
use crate::transaction::handle::Transaction;
use crate::transaction::state_machine::Failure;
use crate::version::Version;
use crate::version::expired_versions::check_retained;
use crate::version::gc_markers::under_way;
use crate::version::root_metadata::RootMetadata;
use crate::version::store_clock::{FILE_TIME_PRECISION_MILLIS, StoreTime};

/// Maximum number of files whose age is requested at the same time.
const FILES_AT_ONCE: usize = 64;

/// Lower bounds of the times at which the files of a transaction were written.
#[derive(Debug)]
pub(crate) struct FileAge {
    /// Time of this machine before which no file was written.
    pub(super) began: Moment,
    /// Lowest lead of the wall clock over the monotonic clock since then. A local disk dates files by the wall clock, so
    /// a file has a date before the transaction began if the wall clock was set back while the file was written.
    lowest_lead_millis: AtomicI64,
    /// Answer of the store before which no file was written.
    pub(super) heard: Option<StoreMoment>,
    /// Time of the store before which no file was written. Set for a saved transaction only, because its files come
    /// from several processes.
    pub since_millis: Option<u64>,
    /// It is proven that no collection of files older than this time has deleted a file of the transaction.
    pub(super) proven_millis: u64,
    /// Files that other clients wrote before the transaction began. Each of them is checked separately.
    pub(super) adopted: Vec<String>,
}

/// Garbage collections recorded in a range of versions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Collected {
    /// The latest time of all collections up to the last version of the range.
    pub(super) highest_millis: u64,
    /// The latest time of the collections whose fences are in the range.
    pub(super) among_them_millis: Option<u64>,
}

impl Collected {
    pub fn add(&mut self, version: &RootMetadata) {
        self.highest_millis = self.highest_millis.max(version.gc_before_millis.unwrap_or_default());
        self.among_them_millis = self.among_them_millis.max(version.collects_before_millis());
    }
}

impl FileAge {
    pub(crate) fn of(base: &Version, lakehouse: &Lakehouse) -> FileAge {
        let environment = lakehouse.environment().as_ref();
        FileAge {
            began: Moment::now(environment),
            lowest_lead_millis: AtomicI64::new(wall_clock_lead_millis(environment)),
            heard: lakehouse.last_heard(),
            since_millis: None,
            proven_millis: base.metadata.gc_before_millis.unwrap_or_default(),
            adopted: Vec::new(),
        }
    }

    /// Observes the wall clock. Called by each statement, because each may write files.
    pub(super) fn observe_clock(&self, environment: &dyn Environment) {
        self.lowest_lead_millis.fetch_min(wall_clock_lead_millis(environment), Ordering::Relaxed);
    }

    /// Upper bound of the age of the transaction's files on a disk that dates files by the clock of this machine.
    fn most_millis_on_disk(&self, environment: &dyn Environment) -> u64 {
        self.observe_clock(environment);
        let set_forward = wall_clock_lead_millis(environment) - self.lowest_lead_millis.load(Ordering::Relaxed);
        self.began.elapsed_millis(environment).saturating_add_signed(set_forward)
    }
}

impl Transaction {
    /// Adds files that an engine or a client wrote before the transaction began. `since_base`: the files were written
    /// after the base version, so they are not checked now. Otherwise returns `TransactionExpired` if a file is missing
    /// or a running garbage collection may delete it.
    pub async fn adopt(&mut self, paths: Vec<String>, since_base: bool) -> Result<()> {
        if self.file_age.proven_millis > 0 && !since_base {
            self.check_stay(&paths, self.file_age.proven_millis).await?;
        }
        self.file_age.adopted.extend(paths);
        Ok(())
    }

    /// Explains a missing file: `VersionExpired` if the base version is no longer retained, `TransactionExpired` if
    /// garbage collection may have deleted the files of the transaction.
    pub async fn check_retained(&self) -> Result<()> {
        check_retained(self.base.nodes(), self.base.number).await?;
        let collected_millis = self.lakehouse.latest().await?.metadata.gc_before_millis.unwrap_or_default();
        if collected_millis > self.file_age.proven_millis {
            self.prove_younger_than(collected_millis).await?;
        }
        Ok(())
    }

    /// Checks the transaction against the fences among the versions that it was compared with.
    pub(crate) async fn pass_collections(&mut self, passed: Collected) -> Result<(), Failure> {
        let before_millis = passed.highest_millis;
        if before_millis > self.file_age.proven_millis {
            self.prove_younger_than(before_millis).await.map_err(Failure::before_sending)?;
            self.file_age.proven_millis = before_millis;
        } else if let Some(before_millis) = passed.among_them_millis {
            // The time of this fence is not later than a time that is proven already. So the files that this
            // transaction wrote are younger, unless the clock of a disk was set back. Adopted files may be older.
            let proof = match self.file_age.heard {
                Some(_) => self.prove_stay(self.file_age.since_millis, before_millis).await,
                None => self.prove_younger_than(before_millis).await,
            };
            proof.map_err(Failure::before_sending)?;
        }
        Ok(())
    }

    async fn prove_younger_than(&self, before_millis: u64) -> Result<()> {
        self.prove_stay(Some(self.wrote_since().await?), before_millis).await
    }

    /// Returns a time of the store before which no process wrote a file for this transaction.
    async fn wrote_since(&self) -> Result<u64> {
        match self.file_age.since_millis {
            // The clock of a remote store is not set back, so the files after that time are younger.
            Some(since_millis) if self.file_age.heard.is_some() => Ok(since_millis),
            since_millis => Ok(self.began_at_store().await?.min(since_millis.unwrap_or(u64::MAX))),
        }
    }

    async fn prove_stay(&self, since_millis: Option<u64>, before_millis: u64) -> Result<()> {
        if since_millis.is_some_and(|since_millis| since_millis < before_millis) {
            return Err(self.collected("it began before a garbage collection deleted unreferenced files"));
        }
        self.check_stay(&self.file_age.adopted, before_millis).await
    }

    /// Returns a time of the store before which this process wrote no file of the transaction.
    async fn began_at_store(&self) -> Result<u64> {
        let environment = self.lakehouse.environment().as_ref();
        let asked = StoreTime::ask(self.lakehouse.storage().as_ref(), environment);
        let (time, answered) = dated_last(asked).await;
        let time = time?;
        let age_millis = match (self.file_age.heard, answered) {
            (Some(heard), Some(answered)) => {
                // The dates have whole seconds, so the real difference may be larger than the difference of the dates.
                let by_dates = answered.millis_since(heard).saturating_add(APART_MILLIS);
                by_dates.max(self.file_age.began.elapsed_millis(environment))
            }
            // A local disk, whose file times may come from this machine's clock, or a store without dates in its
            // answers.
            (None, _) => self.file_age.most_millis_on_disk(environment),
            // The answer may come from a proxy.
            (Some(_), None) => {
                let message =
                    "the answer of the store has no date, so the age of the transaction's files is unknown; try again";
                return Err(Error::Storage { message: message.into(), retryable: true });
            }
        };
        Ok(time.millis_before(age_millis.saturating_add(FILE_TIME_PRECISION_MILLIS)))
    }

    /// Returns a time of the store before which no file of the transaction was written, including adopted files.
    pub(crate) async fn files_since(&self) -> Result<u64> {
        let wrote_millis = self.wrote_since().await?;
        let adopted = ages(self.lakehouse.storage().as_ref(), &self.file_age.adopted).await?;
        Ok(adopted.into_iter().map(|(_, modified)| modified.unwrap_or_default()).fold(wrote_millis, u64::min))
    }

    /// Proves that no collection of files older than `before_millis` deletes these files: they are younger, or they
    /// exist and no running collection may delete them. The order of the requests matters: a file that exists after all
    /// earlier collections have ended is retained.
    async fn check_stay(&self, paths: &[String], before_millis: u64) -> Result<()> {
        let storage = self.lakehouse.storage().as_ref();
        let gone = |path: &str| self.collected(&format!("{path} is missing"));
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
                    "{path} may be deleted by a garbage collection that is running or was interrupted ({})",
                    one.path
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn collected(&self, why: &str) -> Error {
        Error::TransactionExpired(format!(
            "transaction {} has expired: {why}, so its files may have been deleted; begin again",
            self.info.id
        ))
    }
}

/// Returns the modification time of each file by the store's clock; `None` for a missing file.
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

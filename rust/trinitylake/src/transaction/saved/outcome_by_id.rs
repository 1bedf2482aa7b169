//! Outcome of a transaction id, from its record in the tree and from the log.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::transaction::commit::conflict::winner;
use crate::transaction::saved::transaction_record::{Record, recorded};
use crate::transaction_id::check_transaction_id;
use crate::version::Version;
use crate::version::root_metadata::LastRollback;

/// Number of versions per page of the log.
const LOG_PAGE: usize = 64;

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// Committed in this version; `None` if the version has expired.
    Committed(Option<u64>),
    /// Committed in `version`, and undone by the rollback in version `by`.
    Undone { version: u64, by: u64 },
    /// Aborted: no version contains it, and none ever will.
    RolledBack,
    /// The log does not contain the transaction, which may still be open.
    NotCommitted,
    /// Versions that may contain it have expired.
    Unknown,
}

/// Position of a transaction in the log.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub version: u64,
    /// The rollback that removed it from the latest tree.
    pub undone_by: Option<Arc<Version>>,
}

/// Returns the outcome of a transaction. If its id has no record, searches the log from the newest version backwards.
pub async fn outcome_of(lakehouse: &Arc<Lakehouse>, id: &str) -> Result<TransactionOutcome> {
    let latest = lakehouse.latest().await?;
    let record = match check_transaction_id(id) {
        Ok(()) => recorded(lakehouse, &latest, id).await?,
        Err(_) => None,
    };
    let entry = match &record {
        Some(Record::RolledBack { .. }) => return Ok(TransactionOutcome::RolledBack),
        Some(Record::Committed { base, .. }) => find_by_record(lakehouse, &latest, id, *base).await?,
        // A transaction that expiry aborted may have been committed before, and the log may still contain it.
        Some(Record::Abandoned { .. }) | None => find_in_log(lakehouse, id).await?,
    };
    Ok(match entry {
        Some(LogEntry { version, undone_by: Some(rollback) }) => {
            TransactionOutcome::Undone { version, by: rollback.number }
        }
        Some(LogEntry { version, undone_by: None }) => TransactionOutcome::Committed(Some(version)),
        None if matches!(record, Some(Record::Committed { .. })) => TransactionOutcome::Committed(None),
        None if lakehouse.oldest_version().await? > 0 => TransactionOutcome::Unknown,
        // The log is complete, so no version contains the transaction, and the record prevents a later commit.
        None if record.is_some() => TransactionOutcome::RolledBack,
        None => TransactionOutcome::NotCommitted,
    })
}

/// Returns the version that committed an id whose record is in the latest tree; `None` if it has expired. Reads about
/// log n versions, where n is the number of versions since the transaction began.
async fn find_by_record(
    lakehouse: &Lakehouse,
    latest: &Arc<Version>,
    id: &str,
    base: Option<u64>,
) -> Result<Option<LogEntry>> {
    let key = latest.config.names.transaction_key(id)?;
    let Some(version) = first_with_record(lakehouse, latest, id, &key, base).await? else { return Ok(None) };
    if !version.metadata.commits(id) {
        // The first record is not the one of this commit, e.g. because the id was rolled back and restarted.
        return find_in_log(lakehouse, id).await;
    }
    match undone_by(lakehouse, latest, version.number).await? {
        Some(undone_by) => Ok(Some(LogEntry { version: version.number, undone_by })),
        None => find_in_log(lakehouse, id).await,
    }
}

/// Returns the first version whose tree has the record, by a galloping search upwards from a version without it and a
/// bisection. This is correct because a record stays in the tree until its first version expires.
async fn first_with_record(
    lakehouse: &Lakehouse,
    latest: &Arc<Version>,
    id: &str,
    key: &str,
    base: Option<u64>,
) -> Result<Option<Arc<Version>>> {
    let read = async |number: u64| match number == latest.number {
        true => Ok(latest.clone()),
        false => lakehouse.version(number).await,
    };
    let oldest = lakehouse.oldest_version().await?;
    if oldest > latest.number {
        // All known versions have expired in the meantime, including the version that committed the id.
        return Ok(None);
    }
    // Invariant: the record is absent in `low` and present in `high`.
    let mut low = match base {
        // The commit required that the id had no record in this version, unless it replaced the record of a rollback.
        Some(base) if base >= oldest => base,
        _ => {
            let version = read(oldest).await?;
            if version.get(key).await?.is_some() {
                return Ok(version.metadata.commits(id).then_some(version));
            }
            oldest
        }
    };
    let (mut high, mut step) = (latest.clone(), 1);
    while low + step < high.number {
        let version = read(low + step).await?;
        if version.get(key).await?.is_some() {
            high = version;
            break;
        }
        (low, step) = (version.number, step * 2);
    }
    while high.number - low > 1 {
        let version = read(low + (high.number - low) / 2).await?;
        if version.get(key).await?.is_some() {
            high = version;
        } else {
            low = version.number;
        }
    }
    Ok(Some(high))
}

/// Returns the rollback that undid a version, if any. The outer `None` means that the roots do not record rollbacks.
async fn undone_by(lakehouse: &Lakehouse, latest: &Arc<Version>, number: u64) -> Result<Option<Option<Arc<Version>>>> {
    let mut from = latest.clone();
    loop {
        let rollback = match from.metadata.last_rollback {
            LastRollback::Unknown => return Ok(None),
            LastRollback::Version(rollback) if rollback > number => lakehouse.version(rollback).await?,
            LastRollback::Never | LastRollback::Version(_) => return Ok(Some(None)),
        };
        let Some(target) = rollback.metadata.rollback_target() else { return Ok(None) };
        if target < number {
            return Ok(Some(Some(rollback)));
        }
        from = lakehouse.version(target).await?;
    }
}

/// Searches the log for the version that committed a transaction.
pub(crate) async fn find_in_log(lakehouse: &Lakehouse, id: &str) -> Result<Option<LogEntry>> {
    let mut before = None;
    // `rollback` undid all versions above `target` that follow in this search.
    let mut target = u64::MAX;
    let mut rollback: Option<Arc<Version>> = None;
    loop {
        let versions = lakehouse.log(LOG_PAGE, before).await?;
        for version in &versions {
            let is_undone = version.number > target;
            if version.metadata.commits(id) {
                let undone_by = rollback.filter(|_| is_undone);
                return Ok(Some(LogEntry { version: version.number, undone_by }));
            }
            // A rollback that was itself undone has no effect.
            if !is_undone && let Some(number) = version.metadata.rollback_target() {
                target = number;
                rollback = Some(version.clone());
            }
        }
        match versions.last() {
            Some(oldest) if oldest.number > 0 => before = Some(oldest.number),
            _ => return Ok(None),
        }
    }
}

/// Returns the version that committed a transaction whose record is in the tree. `CommitConflict` if that version was
/// undone, `VersionExpired` if it has expired.
pub(crate) async fn committed_version(lakehouse: &Lakehouse, latest: &Arc<Version>, id: &str) -> Result<u64> {
    let base = match recorded(lakehouse, latest, id).await? {
        Some(Record::Committed { base, .. }) => base,
        Some(Record::RolledBack { .. } | Record::Abandoned { .. }) | None => None,
    };
    match find_by_record(lakehouse, latest, id, base).await? {
        Some(LogEntry { version, undone_by: None }) => Ok(version),
        Some(LogEntry { version, undone_by: Some(rollback) }) => Err(Error::CommitConflict {
            message: format!(
                "transaction {id} was committed in version {version} and undone by the rollback in version {}; \
                 to repeat it, begin a transaction with another id",
                rollback.number
            ),
            keys: Vec::new(),
            winners: vec![winner(&rollback, 0)],
        }),
        None => {
            Err(Error::VersionExpired(format!("transaction {id} was committed before, in a version that has expired")))
        }
    }
}

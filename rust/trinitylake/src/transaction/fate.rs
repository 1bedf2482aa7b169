//! What became of a transaction, as the log tells.

use std::sync::Arc;

use super::conflict::winner;
use crate::error::{Error, Result};
use crate::key::check_transaction_id;
use crate::lakehouse::Lakehouse;
use crate::version::Version;

/// Versions that are looked at before more are read.
const LOG_PAGE: usize = 64;

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// In that version, or in one that has expired.
    Committed(Option<u64>),
    /// In `version`; version `by` went back to before it.
    Undone { version: u64, by: u64 },
    /// Not in the log. It may still be under way.
    NotCommitted,
    /// Whatever could tell has expired.
    Unknown,
}

/// Where a transaction is in the log.
#[derive(Clone, Debug)]
pub(crate) struct Landing {
    pub version: u64,
    /// The rollback that took it out of the latest tree.
    pub undone_by: Option<Arc<Version>>,
}

/// What became of a transaction, chosen id or not. Looks through the log, newest first.
pub async fn fate(lakehouse: &Arc<Lakehouse>, id: &str) -> Result<Fate> {
    let latest = lakehouse.latest().await?;
    let is_recorded = check_transaction_id(id).is_ok()
        && latest.get(&latest.config.names.transaction_key(id)?).await?.is_some();
    Ok(match find_in_log(lakehouse, id).await? {
        Some(Landing { version, undone_by: Some(rollback) }) => Fate::Undone { version, by: rollback.number },
        Some(Landing { version, undone_by: None }) => Fate::Committed(Some(version)),
        None if is_recorded => Fate::Committed(None),
        None if lakehouse.oldest_version().await? == 0 => Fate::NotCommitted,
        None => Fate::Unknown,
    })
}

/// The version that committed a transaction, as far as the log goes back.
pub(crate) async fn find_in_log(lakehouse: &Lakehouse, id: &str) -> Result<Option<Landing>> {
    let mut before = None;
    // Versions above it, as far as they are not looked at yet, were undone by `rollback`.
    let mut target = u64::MAX;
    let mut rollback: Option<Arc<Version>> = None;
    loop {
        let versions = lakehouse.log(Some(LOG_PAGE), before).await?;
        for version in &versions {
            let is_undone = version.number > target;
            if version.metadata.committed.iter().any(|transaction| transaction.id == id) {
                let undone_by = rollback.filter(|_| is_undone);
                return Ok(Some(Landing { version: version.number, undone_by }));
            }
            // A rollback that was undone itself undoes nothing.
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

/// The version of a transaction whose record is in the tree. `CommitConflict` if that version was undone:
/// then it is neither to be committed again unseen nor to be taken for done. `VersionExpired` if it is gone.
pub(super) async fn committed_version(lakehouse: &Lakehouse, id: &str) -> Result<u64> {
    match find_in_log(lakehouse, id).await? {
        Some(Landing { version, undone_by: None }) => Ok(version),
        Some(Landing { version, undone_by: Some(rollback) }) => Err(Error::CommitConflict {
            message: format!(
                "transaction {id} was committed in version {version} and undone by the rollback in version {}; if \
                 that is to be done again, begin another transaction, under another id",
                rollback.number
            ),
            keys: Vec::new(),
            winners: vec![winner(&rollback, 0)],
        }),
        None => Err(Error::VersionExpired(format!(
            "transaction {id} was committed before, in a version that has expired"
        ))),
    }
}

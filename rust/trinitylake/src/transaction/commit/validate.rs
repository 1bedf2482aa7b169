//! Validation: compares a transaction with every version that was committed since it was last validated.

use std::sync::Arc;

use super::limits::{CommitLimits, Effort, VERSIONS_AT_ONCE};
use super::outcome::{Conflicts, Outcome};
use crate::error::{Error, Result};
use crate::transaction::gc_fence::Collected;
use crate::transaction::handle::Transaction;
use crate::transaction::state_machine::{Failure, Proof};
use crate::version::Version;

/// Result of comparing a transaction with newer versions.
enum Check {
    Valid,
    Conflicts(Conflicts),
    /// This version contains the transaction: the answer to its commit was lost, or its id was committed before.
    Committed(u64),
}

/// Result of a validation.
pub(super) enum Validated {
    Ended(Outcome),
    /// The transaction is compatible with the newest version.
    Fit(Fit),
}

pub(super) struct Fit {
    /// Set if the newest known version is not yet checked against the expiry boundary: the version on which the
    /// transaction was validated before.
    pub(super) unconfirmed: Option<Arc<Version>>,
}

impl Transaction {
    /// Compares the transaction with all versions since it was last validated.
    pub(super) async fn validate(&mut self, limits: CommitLimits, effort: &mut Effort) -> Result<Validated, Failure> {
        let lakehouse = self.lakehouse.clone();
        // A root that this handle has just created is not yet checked against the expiry boundary, so it may be void.
        // The transaction may be based on it, but a conflict with it is not final.
        let confirmed = self.validated.clone();
        let tip = lakehouse.commits().tip(lakehouse.publisher());
        let is_confirmed = tip.number <= lakehouse.known().number;
        let caught_up = match self.catch_up(tip).await {
            Ok(Check::Valid) => Check::Valid,
            other if is_confirmed => other?,
            _ => {
                self.validated = confirmed.clone();
                let latest = lakehouse.latest().await?;
                self.catch_up(latest).await?
            }
        };
        match caught_up {
            Check::Committed(version) => Ok(Validated::Ended(Outcome::Committed(version))),
            Check::Conflicts(conflicts) => {
                effort.redone += 1;
                self.effort = Some(*effort);
                if effort.is_spent(limits, lakehouse.environment().as_ref()) && effort.redone > 1 {
                    let error = effort.limit_error(conflicts.names(), &lakehouse.known());
                    return Err(Failure::Certain(Proof::Overtaken, error));
                }
                Ok(Validated::Ended(Outcome::Conflicts(conflicts)))
            }
            Check::Valid => Ok(Validated::Fit(Fit { unconfirmed: (!is_confirmed).then_some(confirmed) })),
        }
    }

    /// Compares the transaction with all versions after `validated`, up to `tip`.
    async fn catch_up(&mut self, tip: Arc<Version>) -> Result<Check, Failure> {
        if tip.number <= self.validated.number {
            return Ok(Check::Valid);
        }
        let lakehouse = self.lakehouse.clone();
        let mut review = self.review(tip.clone());
        let mut passed = Collected::default();
        let mut next = self.validated.number + 1;
        while next <= tip.number {
            let last = tip.number.min(next + VERSIONS_AT_ONCE - 1);
            // Versions are read in chunks, because only their changes stay in memory.
            let versions = match lakehouse.versions(next, last, &tip).await {
                Ok(versions) => versions,
                Err(Error::VersionExpired(message)) => {
                    return Err(Failure::before_sending(Error::TransactionExpired(format!(
                        "transaction {} began at version {} and was open for too long: {message}. Begin a \
                         new transaction",
                        self.info.id, self.base.number
                    ))));
                }
                Err(error) => return Err(Failure::before_sending(error)),
            };
            for version in &versions {
                if let Some(version) = self.find_itself(version).await? {
                    return Ok(Check::Committed(version));
                }
                self.check_companions(version)?;
                passed.add(&version.metadata);
                self.check_version(&mut review, version).await?;
            }
            next = last + 1;
        }
        let conflicts = self.conclude(review).await.map_err(|error| match error {
            error @ Error::CommitConflict { .. } => Failure::Certain(Proof::Overtaken, error),
            error => Failure::before_sending(error),
        })?;
        self.pass_collections(passed).await?;
        self.validated = tip;
        Ok(if conflicts.is_empty() { Check::Valid } else { Check::Conflicts(conflicts) })
    }

    /// Returns `CommitConflict` if `version` contains or aborts a companion: another process has decided its outcome.
    fn check_companions(&self, version: &Version) -> Result<(), Failure> {
        let is_settled = |id: &str| version.metadata.commits(id) || version.metadata.gives_up(id);
        match self.companions.iter().find(|companion| is_settled(&companion.id)) {
            Some(companion) => Err(Failure::Certain(
                Proof::Overtaken,
                Error::conflict(format!(
                    "version {} already contains or aborts transaction {}, whose rows this transaction also appends",
                    version.number, companion.id
                )),
            )),
            None => Ok(()),
        }
    }

    /// Returns the number of `version` if it contains this transaction. `CommitConflict` if it aborts the transaction,
    /// or if another process resumed and committed the transaction. Companions that `version` does not contain are
    /// removed: another process has then committed the id of this transaction without them.
    async fn find_itself(&mut self, version: &Version) -> Result<Option<u64>, Failure> {
        if version.metadata.gives_up(&self.info.id) {
            return Err(Failure::Certain(Proof::RolledBack, self.continued_elsewhere("rolled back")));
        }
        if !version.metadata.commits(&self.info.id) {
            return Ok(None);
        }
        if self.saved.sequence > 0
            && let Ok(key) = self.record_key()
            && let Some(record) = version.get(&key).await?
            && !self.saved.is_own(&record, &self.info.id)
        {
            return Err(Failure::before_sending(self.continued_elsewhere("committed")));
        }
        self.companions.retain(|companion| version.metadata.commits(&companion.id));
        Ok(Some(version.number))
    }
}

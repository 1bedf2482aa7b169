//! Rollback of a transaction. If another process may still commit the transaction, the rollback is a commit itself: it
//! writes the record of the id as "rolled back" (format §8). Every later root or intent with the id requires that there
//! is no record, and therefore fails.
//!
//! After the rollback nothing can commit the transaction:
//! - A root that was sent without an answer cannot become a version: the version with the record has the same number or
//!   a higher one, so the number of that root is taken, and all versions before the record were searched for the
//!   transaction.
//! - An intent in the queue, a process that resumed the saved transaction, and another user of the id cannot commit:
//!   the record prevents that.
//! - A group of this handle in which the transaction still waits cannot commit it: [`Submission::aborts`] prevents
//!   that.

use std::sync::Arc;

use crate::definition_file::encode_file;
use crate::error::{Error, Result};
use crate::lakehouse_definition::proto::DistributedTransactionState;
use crate::node::mutable_node::Message;
use crate::storage::retry_policy::within;
use crate::transaction::changes::{Changes, NewValue};
use crate::transaction::commit::durability_barrier::flush_files;
use crate::transaction::commit::group::Verdict;
use crate::transaction::commit::limits::{CommitLimits, VERSIONS_AT_ONCE};
use crate::transaction::commit::submission::Submission;
use crate::transaction::footprint::{Footprint, Requirement};
use crate::transaction::handle::Transaction;
use crate::transaction::options::Isolation;
use crate::transaction::saved::outcome_by_id::committed_version;
use crate::transaction::saved::state_file::newest_sequence;
use crate::transaction::saved::transaction_record::{Record, recorded};
use crate::transaction::state_machine::{Abort, Failure, Files, already_committed};
use crate::version::Version;
use crate::version::root_metadata::{CommittedTransaction, ROLLED_BACK_PROPERTY};
use crate::version::summary_format::Summary;

impl Transaction {
    /// Rolls the transaction back for all processes. If it is in flight or was saved, this creates a version; otherwise
    /// no request is sent.
    ///
    /// `CommitConflict` if it was committed, or if another process resumed and saved it since. `CommitStateUnknown` if
    /// the outcome cannot be determined.
    pub async fn rollback(&mut self) -> Result<Files> {
        match self.state.abort()? {
            Abort::Done => {}
            Abort::TakesRecord => match self.record_rollback_in_time().await? {
                Record::RolledBack { .. } | Record::Abandoned { .. } => {
                    self.state.rolled_back();
                    self.remove_states_before(self.saved.sequence.saturating_add(1)).await;
                }
                Record::Committed { .. } => {
                    let latest = self.lakehouse.latest().await?;
                    let version = match committed_version(&self.lakehouse, &latest, &self.info.id).await {
                        Err(Error::VersionExpired(_)) => None,
                        version => Some(version?),
                    };
                    return Err(already_committed(&self.info.id, version));
                }
            },
        }
        self.end_turn().await;
        self.changes = Changes::default();
        self.pending.cancel();
        Ok(self.files())
    }

    async fn record_rollback_in_time(&mut self) -> Result<Record> {
        let limits = CommitLimits::default();
        let deadline_millis = self.lakehouse.environment().elapsed_millis() + limits.timeout_millis;
        within(deadline_millis, self.record_rollback(limits, deadline_millis)).await
    }

    /// Commits the record of this id unless the tree has one. Returns the record in the tree.
    async fn record_rollback(&mut self, limits: CommitLimits, deadline_millis: u64) -> Result<Record> {
        let lakehouse = self.lakehouse.clone();
        let environment = lakehouse.environment();
        let saved = newest_sequence(&lakehouse, &self.info.id).await?;
        if saved.is_some_and(|newest| newest > self.saved.sequence) {
            return Err(self.continued_elsewhere("saved"));
        }
        let mut written: Option<(NewValue, Option<u64>)> = None;
        let mut attempt = 0;
        loop {
            let latest = lakehouse.latest().await?;
            let record = recorded(&lakehouse, &latest, &self.info.id).await?;
            if let Some(record) = self.saved.of_this_attempt(record) {
                return Ok(record);
            }
            self.find_own_commit(&latest).await?;
            attempt += 1;
            let collected_millis = latest.metadata.gc_before_millis;
            let value = match written.take() {
                Some((value, since)) if since == collected_millis => value,
                // Write the first record, or write it again under a new name if gc may have deleted its file.
                _ => self.write_rollback_record().await?,
            };
            let submission = self.abort_submission(&latest, &value, attempt)?;
            written = Some((value, collected_millis));
            match lakehouse.commits().commit(lakehouse.publisher(), submission, deadline_millis).await {
                Ok(Verdict::Committed(_)) => {
                    let location = written.and_then(|(value, _)| value.location().map(str::to_string));
                    return Ok(Record::RolledBack { location: location.unwrap_or_default() });
                }
                Ok(Verdict::Again { .. } | Verdict::WriteFirst) => {}
                Err(Failure::Certain(_, error)) => return Err(error),
                // The next attempt determines whether it was committed.
                Err(Failure::InDoubt { error, .. }) if environment.elapsed_millis() >= deadline_millis => {
                    return Err(error);
                }
                Err(Failure::InDoubt { .. }) => {}
            }
            if attempt >= limits.max_attempts || environment.elapsed_millis() >= deadline_millis {
                return Err(Error::conflict(format!(
                    "transaction {} was not rolled back: others committed first {attempt} times; try again",
                    self.info.id
                )));
            }
        }
    }

    async fn write_rollback_record(&self) -> Result<NewValue> {
        let value = self.new_record(DistributedTransactionState::RolledBack);
        if let NewValue::Staged { path, bytes, .. } = &value {
            let record = vec![(path.clone(), encode_file(path, bytes))];
            flush_files(self.lakehouse.storage().as_ref(), record, &[]).await?;
        }
        Ok(value)
    }

    /// Searches the log after `validated` for this transaction, because a commit without a record is only in the log.
    /// `CommitConflict` if it was committed, `CommitStateUnknown` if versions that may contain it have expired.
    async fn find_own_commit(&mut self, latest: &Arc<Version>) -> Result<()> {
        let lakehouse = self.lakehouse.clone();
        let oldest = lakehouse.oldest_version().await?;
        if oldest > self.validated.number + 1 {
            return Err(Error::CommitStateUnknown(format!(
                "transaction {}: versions below {oldest} have expired, so it is unknown whether it was committed; no \
                 file was deleted",
                self.info.id
            )));
        }
        while self.validated.number < latest.number {
            let from = self.validated.number + 1;
            let to = latest.number.min(from + VERSIONS_AT_ONCE - 1);
            for version in lakehouse.versions(from, to, latest).await? {
                if version.metadata.commits(&self.info.id) {
                    self.state.committed(version.number);
                    return Err(already_committed(&self.info.id, Some(version.number)));
                }
                self.validated = version;
            }
        }
        Ok(())
    }

    /// Returns the submission of the transaction that commits the record.
    fn abort_submission(&self, latest: &Version, value: &NewValue, attempt: u32) -> Result<Submission> {
        let (key, id) = (self.record_key()?, self.lakehouse.environment().uuid().to_string());
        let message = Message::new(key.as_str().into(), value.location().map(Into::into), id.as_str().into());
        let mut footprint = Footprint::default();
        if self.saved.restarted_from.is_none() {
            footprint.require(Requirement::Absent(key));
        }
        Ok(Submission {
            info: CommittedTransaction {
                id,
                isolation: Isolation::Snapshot.word().into(),
                message: format!("roll back transaction {}", self.info.id),
                author: self.info.author.clone(),
                began_at_version: latest.number,
                properties: [(ROLLED_BACK_PROPERTY.to_string(), self.info.id.clone())].into(),
                summary: Summary::plain(format!("roll back transaction {}", self.info.id)),
            },
            footprint: Arc::new(footprint),
            messages: vec![message],
            validated: latest.number,
            attempt,
            aborts: Some(self.info.id.clone()),
            ..Submission::default()
        })
    }
}

#[cfg(test)]
impl Transaction {
    /// The submission that aborts this transaction.
    pub(crate) fn abort_submission_for_test(&self, latest: &Version) -> Submission {
        let value = self.new_record(DistributedTransactionState::RolledBack);
        self.abort_submission(latest, &value, 1).unwrap()
    }
}

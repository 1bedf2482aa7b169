//! Rollback of a transaction. If another process may still commit it, the rollback is itself a commit: it
//! writes the record of the id as "rolled back" (format §8). Every later root or queued intent with the id
//! requires that there is no record, and so fails.
//!
//! Whatever could still commit the transaction is stopped as follows:
//! - a root that was sent and not answered, by its slot: the record is in a version above it, so another
//!   root has the slot, and all versions up to there were examined;
//! - an intent in the queue, a process that resumed the saved transaction, or another user of the same id,
//!   by the record;
//! - a transaction that waits in the queue of this handle, or was taken into a group, by
//!   [`Submission::gives_up`].

use std::sync::Arc;

use super::changes::NewValue;
use super::commit::VERSIONS_AT_ONCE;
use super::distributed::newest_sequence;
use super::fate::committed_version;
use super::footprint::{Footprint, Requirement};
use super::group_commit::Verdict;
use super::life::{Failure, Files, GivingUp, already_committed};
use super::records::{Record, recorded};
use super::shared_root::Submission;
use super::written_behind::make_files_durable;
use super::{Changes, CommitLimits, Coordination, Isolation, Transaction};
use crate::definition::proto::DistributedTransactionState;
use crate::definition_file::encode_file;
use crate::error::{Error, Result};
use crate::node::draft::Message;
use crate::storage::retry::within;
use crate::version::Version;
use crate::version::root_metadata::{CommittedTransaction, ROLLED_BACK_PROPERTY};
use crate::version::summary::Summary;

impl Transaction {
    /// Gives the transaction up, for everybody. Where it is in flight or was saved this makes a version, and is
    /// only done when that is there; else nothing is asked of the store.
    ///
    /// `CommitConflict` if it was committed, or if somebody who resumed it saved it since: then it is theirs.
    /// `CommitStateUnknown` if whether it was committed, or rolled back, cannot be told.
    pub async fn rollback(&mut self) -> Result<Files> {
        match self.life.give_up()? {
            GivingUp::Done => {}
            GivingUp::TakesRecord => match self.record_rollback_in_time().await? {
                Record::RolledBack | Record::Abandoned => {
                    self.life.rolled_back();
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
        self.changes = Changes::default();
        self.pending.cancel();
        Ok(self.files())
    }

    async fn record_rollback_in_time(&mut self) -> Result<Record> {
        let limits = CommitLimits::default();
        let deadline_millis = self.lakehouse.environment().elapsed_millis() + limits.timeout_millis;
        within(deadline_millis, self.record_rollback(limits, deadline_millis)).await
    }

    /// Sees to it that the tree has a record of this id, and says which.
    async fn record_rollback(&mut self, limits: CommitLimits, deadline_millis: u64) -> Result<Record> {
        let lakehouse = self.lakehouse.clone();
        let environment = lakehouse.environment();
        let saved = newest_sequence(&lakehouse, &self.info.id).await?;
        if saved.is_some_and(|newest| newest > self.saved.sequence) {
            return Err(self.went_on_elsewhere("saved"));
        }
        let mut written: Option<(NewValue, Option<u64>)> = None;
        let mut attempt = 0;
        loop {
            let latest = lakehouse.latest().await?;
            if let Some(record) = recorded(&lakehouse, &latest, &self.info.id).await? {
                return Ok(record);
            }
            self.look_for_itself(&latest).await?;
            attempt += 1;
            let collected_millis = latest.metadata.gc_before_millis;
            let value = match written.take() {
                Some((value, since)) if since == collected_millis => value,
                // The first one, or one that may have been collected since: it takes a name of its own.
                _ => self.write_rollback_record().await?,
            };
            let submission = self.giving_up(&latest, &value, attempt)?;
            written = Some((value, collected_millis));
            match lakehouse.commits().commit(&lakehouse, submission, None, deadline_millis).await {
                Ok(Verdict::Committed(_)) => return Ok(Record::RolledBack),
                Ok(Verdict::Again { .. } | Verdict::WriteFirst) => {}
                Err(Failure::Certain(_, error)) => return Err(error),
                // Whether it was done shows at the next look.
                Err(Failure::InDoubt { error, .. }) if environment.elapsed_millis() >= deadline_millis => {
                    return Err(error);
                }
                Err(Failure::InDoubt { .. }) => {}
            }
            if attempt >= limits.max_attempts || environment.elapsed_millis() >= deadline_millis {
                return Err(Error::CommitConflict {
                    message: format!(
                        "transaction {} was not rolled back: others committed first {attempt} times; try again",
                        self.info.id
                    ),
                    keys: Vec::new(),
                    winners: Vec::new(),
                });
            }
        }
    }

    async fn write_rollback_record(&self) -> Result<NewValue> {
        let value = self.new_record(DistributedTransactionState::RolledBack);
        if let NewValue::Staged { path, bytes, .. } = &value {
            let record = vec![(path.clone(), encode_file(path, bytes))];
            make_files_durable(self.lakehouse.storage().as_ref(), record, &[]).await?;
        }
        Ok(value)
    }

    /// Looks through the versions since the last one that this transaction was held against: an id without a
    /// record is found in the log alone. `CommitConflict` if it was committed, `CommitStateUnknown` if versions
    /// have expired that could tell.
    async fn look_for_itself(&mut self, latest: &Arc<Version>) -> Result<()> {
        let lakehouse = self.lakehouse.clone();
        let oldest = lakehouse.oldest_version().await?;
        if oldest > self.validated.number + 1 {
            return Err(Error::CommitStateUnknown(format!(
                "transaction {}: versions below {oldest} have expired, which might have told whether it was \
                 committed; nothing was deleted",
                self.info.id
            )));
        }
        while self.validated.number < latest.number {
            let from = self.validated.number + 1;
            let to = latest.number.min(from + VERSIONS_AT_ONCE - 1);
            for version in lakehouse.glance(from, to, latest).await? {
                if version.metadata.commits(&self.info.id) {
                    self.life.committed(version.number);
                    return Err(already_committed(&self.info.id, Some(version.number)));
                }
                self.validated = version;
            }
        }
        Ok(())
    }

    /// The transaction that writes the record.
    fn giving_up(&self, latest: &Version, value: &NewValue, attempt: u32) -> Result<Submission> {
        let (key, id) = (self.record_key()?, self.lakehouse.environment().uuid().to_string());
        let message = Message::new(key.as_str().into(), value.location().map(Into::into), id.as_str().into());
        let mut footprint = Footprint::default();
        footprint.require(Requirement::Absent(key));
        Ok(Submission {
            info: CommittedTransaction {
                id,
                isolation: Isolation::Snapshot.word().into(),
                message: format!("roll back transaction {}", self.info.id),
                author: self.info.author.clone(),
                began_at_version: latest.number,
                properties: [(ROLLED_BACK_PROPERTY.to_string(), self.info.id.clone())].into(),
                summary: Summary::plain(format!("give up transaction {}", self.info.id)),
            },
            isolation: Isolation::Snapshot,
            footprint: Arc::new(footprint),
            messages: vec![message],
            definition: None,
            files: Vec::new(),
            fits_in_root: false,
            pending: None,
            validated: latest.number,
            coordination: Coordination::None,
            attempt,
            rests_on_past: false,
            last_version: None,
            gives_up: Some(self.info.id.clone()),
        })
    }
}

#[cfg(test)]
impl Transaction {
    /// Who gives this transaction up, as a root sees it.
    pub(super) fn giving_up_submission(&self, latest: &Version) -> Submission {
        let value = self.new_record(DistributedTransactionState::RolledBack);
        self.giving_up(latest, &value, 1).unwrap()
    }
}

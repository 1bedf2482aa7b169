//! Commit: makes a transaction the next version of the lakehouse (format §8).
//!
//! [`Transaction::commit`] reads from top to bottom:
//!
//! 1. `validate`: compare the transaction with every version since its last validation. `conflict` decides which
//!    changes are compatible, which ones the caller has to rebase, and which ones are final conflicts.
//! 2. `submission`: everything that a root has to record about the transaction.
//! 3. `group`: transactions of this handle that wait at the same time share one root. `group_admission` decides which
//!    of them the root may contain.
//! 4. `intent_queue` (optional): transactions of other processes join that root. Transactions that change the same
//!    table wait for each other (`turn`).
//! 5. `publish`: write the nodes, wait for all files (`durability_barrier`), and create the root. The creation of the
//!    root decides whether the group is committed. Small definitions may be stored in the root (`inline_definitions`).
//!
//! After a lost race this starts again at step 1, as long as the limits allow.

pub(crate) mod conflict;
pub(crate) mod durability_barrier;
pub(crate) mod group;
pub(crate) mod group_admission;
pub(crate) mod inline_definitions;
pub(crate) mod intent_queue;
pub(crate) mod limits;
pub(crate) mod outcome;
mod publish;
pub(crate) mod submission;
mod turn;
mod validate;

use bytes::Bytes;

use crate::config::Coordination;
use crate::error::{Error, Result};
use crate::file_names::transaction_path;
use crate::storage::create_readback::is_refusal;
use crate::storage::retry_policy::within;
use crate::transaction::changes::Write;
use crate::transaction::commit::durability_barrier::flush_files;
use crate::transaction::commit::group::Verdict;
use crate::transaction::commit::inline_definitions::{fit_in_root, max_size_bytes};
use crate::transaction::commit::outcome::ConflictingTable;
use crate::transaction::commit::publish::remove_files;
use crate::transaction::commit::submission::{Submission, files_size_bytes};
use crate::transaction::footprint::Requirement;
use crate::transaction::handle::Transaction;
use crate::transaction::state_machine::{Failure, Files, Proof};
use crate::version::root_metadata::CommittedTransaction;
use limits::{CommitLimits, Effort};
use outcome::Outcome;
use validate::{Fit, Validated};

impl Transaction {
    /// Commits the transaction, or returns the conflicts that the caller has to resolve. Without writes and without a
    /// chosen id, the outcome is the base version. If the transaction is committed already, the outcome is its version.
    ///
    /// After an error the transaction has ended, and [`Transaction::files`] says whether its files may be deleted. The
    /// error is `CommitStateUnknown` unless it is certain that nothing was committed.
    pub async fn commit(&mut self, limits: CommitLimits) -> Result<Outcome> {
        if let Some(version) = self.state.begin_commit()? {
            return Ok(Outcome::Committed(version));
        }
        let outcome = self.commit_within_limits(limits).await;
        if !matches!(outcome, Ok(Outcome::Conflicts(_))) {
            self.end_turn().await;
        }
        match outcome {
            Ok(Outcome::Committed(version)) => {
                self.state.committed(version);
                let recorded = || transaction_path(&self.info.id, self.saved.sequence);
                if self.saved.record.as_ref().is_some_and(|record| *record == recorded()) {
                    self.remove_states_before(self.saved.sequence).await;
                }
                Ok(Outcome::Committed(version))
            }
            Ok(Outcome::Conflicts(conflicts)) => {
                self.state.conflict(conflicts.clone());
                Ok(Outcome::Conflicts(conflicts))
            }
            Err(failure) => {
                let error = self.state.fail(failure, self.validated.number);
                self.remove_refused_files(&error).await;
                Err(error)
            }
        }
    }

    /// Removes the files of the transaction after the store has refused a write (disk full, no permission), if no
    /// version can ever refer to them. After other failures, garbage collection removes them.
    async fn remove_refused_files(&self, error: &Error) {
        if is_refusal(error) && matches!(self.files(), Files::Unreachable(_)) {
            remove_files(self.lakehouse.storage().as_ref(), self.changes.own_files()).await;
        }
    }

    /// Resolves a conflict on a table. `definition` is the winner's definition with this transaction's change applied.
    pub fn rebase(&mut self, conflict: &ConflictingTable, definition: Bytes) -> Result<()> {
        self.state.take_table_conflict(conflict)?;
        let value = self.stage(crate::key::ObjectKind::Table, &conflict.namespace, &conflict.name, definition);
        let renamed_from = self.changes.writes.get(&conflict.key).and_then(|write| write.renamed_from.clone());
        let base = Some(conflict.winner_location.clone());
        let write = Write { base, value, checked: conflict.version, renamed_from };
        self.changes.writes.insert(conflict.key.clone(), write);
        self.saved.is_changed = true;
        self.rebase_base();
        Ok(())
    }

    /// Repeats [`Transaction::try_once`] as long as the limits allow.
    async fn commit_within_limits(&mut self, limits: CommitLimits) -> Result<Outcome, Failure> {
        if !self.has_writes() && !self.saved.has_record {
            return Ok(Outcome::Committed(self.base.number));
        }
        let effort = self.effort.unwrap_or_else(|| Effort::begin(limits, self.lakehouse.environment().as_ref()));
        within(effort.deadline_millis, self.try_until_committed(limits, effort)).await
    }

    async fn try_until_committed(&mut self, limits: CommitLimits, mut effort: Effort) -> Result<Outcome, Failure> {
        if let Some(version) = self.record_chosen_id().await? {
            return Ok(Outcome::Committed(version));
        }
        self.wait_for_turn(limits, effort).await;
        loop {
            let tried = self.try_once(limits, &mut effort).await;
            let is_spent = effort.is_spent(limits, self.lakehouse.environment().as_ref());
            match tried {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) if is_spent => {
                    let error = effort.limit_error(Vec::new(), &self.lakehouse.known());
                    return Err(Failure::Certain(Proof::RacesLost, error));
                }
                // The next validation shows which root was created.
                Err(Failure::InDoubt { version, .. }) if !is_spent => self.state.in_doubt(version),
                Ok(None) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Makes one attempt. Returns `None` if another one is needed.
    async fn try_once(&mut self, limits: CommitLimits, effort: &mut Effort) -> Result<Option<Outcome>, Failure> {
        let lakehouse = self.lakehouse.clone();
        // The handle of a forked child may not know the base version yet. The next root must come after it.
        lakehouse.learn(self.base.clone());
        let is_busy = lakehouse.commits().is_busy();
        let mut missing = None;
        // An intent may reference only files that exist.
        let may_wait = is_busy && self.waits_in_queue(limits.coordination);
        let fits_in_root = || self.fits_in_root(&self.changes.unwritten_files());
        if self.writes_first || may_wait || (is_busy && !fits_in_root()) {
            // The leader of the current group creates its root at the same time.
            missing = self.write_files().await.err();
            match &missing {
                // Learn the newest version: if a garbage collection deleted the file, the validation against its fence
                // reports that.
                Some(Error::FileNotFound { .. }) => drop(lakehouse.latest().await?),
                Some(error) => return Err(error.clone().into()),
                None => {}
            }
        }
        let fit = match self.validate(limits, effort).await? {
            Validated::Ended(outcome) => return Ok(Some(outcome)),
            Validated::Fit(fit) => missing.map_or(Ok(fit), Err)?,
        };
        effort.attempts += 1;
        let submission = self.submit(limits.coordination, effort.attempts)?;
        let verdict = lakehouse.commits().commit(lakehouse.publisher(), submission, effort.deadline_millis).await?;
        if matches!(verdict, Verdict::WriteFirst) {
            effort.attempts -= 1;
        }
        Ok(self.apply(verdict, fit))
    }

    /// Applies the answer of the group. `None` if the transaction has to try again.
    fn apply(&mut self, verdict: Verdict, fit: Fit) -> Option<Outcome> {
        match verdict {
            Verdict::Committed(version) => return Some(Outcome::Committed(version.number)),
            Verdict::Again { files_are_written: true } => self.changes.mark_written(),
            Verdict::Again { files_are_written: false } => {}
            Verdict::WriteFirst => self.writes_first = true,
        }
        if let Some(confirmed) = fit.unconfirmed {
            self.validated = confirmed;
        }
        None
    }

    /// Marks the transaction as in flight, and returns everything that a root has to record about it.
    pub(crate) fn submit(&mut self, coordination: Option<Coordination>, attempt: u32) -> Result<Submission> {
        let waits_in_queue = self.waits_in_queue(coordination);
        let coordination = coordination.unwrap_or(self.base.config.coordination);
        let mut last_version = None;
        if waits_in_queue {
            // An abort writes this record, so that no process can commit the intent afterwards.
            let record = Requirement::Absent(self.record_key()?);
            self.footprint_mut().require(record);
            last_version = Some(self.validated.number + intent_queue::QUEUED_VERSIONS);
        }
        self.state.sending(last_version);
        let submission = self.submission();
        let fits_in_root = submission.fits_in_root && last_version.is_none();
        Ok(Submission { coordination, attempt, last_version, fits_in_root, ..submission })
    }

    /// Whether the transaction joins the intent queue. A transaction that had to rebase does not: its competitors
    /// usually commit again, so its intent would conflict with the next version as well.
    fn waits_in_queue(&self, coordination: Option<Coordination>) -> bool {
        coordination.unwrap_or(self.base.config.coordination) == Coordination::Queue
            && self.changes.definition.is_none()
            && !self.depends_on_past
            && self.shares_roots
            && self.effort.is_none_or(|effort| effort.redone == 0)
            && self.lakehouse.commits().is_contended()
    }

    pub(crate) fn submission(&self) -> Submission {
        let files = self.changes.unwritten_files();
        let fits_in_root = self.fits_in_root(&files);
        Submission {
            info: CommittedTransaction { summary: self.summary(), ..self.info.clone() },
            companions: self.companions.clone(),
            isolation: self.isolation,
            footprint: self.footprint.clone(),
            messages: self.changes.messages(&self.info.id),
            definition: self.changes.definition.clone(),
            files,
            written: self.changes.object_files(true).collect(),
            fits_in_root,
            pending: Some(self.pending.clone()),
            validated: self.validated.number,
            depends_on_past: self.depends_on_past,
            ..Submission::default()
        }
    }

    /// Whether the root can hold all files of the transaction.
    fn fits_in_root(&self, files: &[(String, Bytes)]) -> bool {
        self.changes.definition.is_none()
            && fit_in_root(self.lakehouse.storage().as_ref(), files)
            && self.lakehouse.commits().has_room_for_all(files_size_bytes(files), max_size_bytes(&self.base.config))
            && self.pending.is_settled()
    }

    pub(crate) async fn write_files(&mut self) -> Result<()> {
        let (storage, files) = (self.lakehouse.storage().as_ref(), self.changes.unwritten_files());
        if files.is_empty() && self.pending.is_settled() {
            return Ok(());
        }
        flush_files(storage, files, &[&self.pending]).await?;
        self.changes.mark_written();
        Ok(())
    }
}

/// An error of any request other than the creation of a root: nothing was committed.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::before_sending(error)
    }
}

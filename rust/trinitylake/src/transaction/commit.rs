//! Making a transaction a version (format §8): look at what others committed, join the next root, and begin
//! again if others were faster. From top to bottom: [`Transaction::commit`], its loop, one round of it.

use std::sync::Arc;

use bytes::Bytes;

use super::changes::Write;
use super::fence::Collected;
use super::footprint::Requirement;
use super::group_commit::Verdict;
use super::inline_definitions::{fit_in_root, size_bytes};
use super::life::{Failure, Files, Proof};
use super::next_root::remove_files;
use super::shared_root::Submission;
use super::written_behind::make_files_durable;
use super::{Clash, Clashes, Transaction};
use crate::config::Coordination;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::path::transaction_path;
use crate::storage::retry::within;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

/// For so many versions others may put a waiting transaction into a root.
const QUEUED_VERSIONS: u64 = 64;
/// Versions that a commit that comes late reads at once.
pub(crate) const VERSIONS_AT_ONCE: u64 = 32;

/// How long to go on when others keep winning, or the store fails. Both bound all that a commit does, from its first
/// call to the last one after clashes were resolved; one root is tried for in any case, and a request that was sent is
/// waited for.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    /// Roots that are tried for, and times that clashes are handed up.
    pub max_attempts: u32,
    pub timeout_millis: u64,
    /// As the lakehouse is set to, if not given.
    pub coordination: Option<Coordination>,
}

impl Default for CommitLimits {
    fn default() -> Self {
        CommitLimits { max_attempts: 200, timeout_millis: 120_000, coordination: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed(u64),
    /// Tables that the table format must put on their newer definitions, and what was watched and has to be
    /// looked at again: resolve all of it, then commit again.
    Clashes(Clashes),
}

/// What others committed since the last look, for a transaction.
enum CaughtUp {
    Unharmed,
    Clashes(Clashes),
    /// One of the versions is its own: an answer was lost, or its id was committed before.
    Committed(u64),
}

/// What a look at what others committed came to.
enum Looked {
    Ended(Outcome),
    /// It fits on the newest version.
    Fit(Fit),
}

struct Fit {
    /// That version may turn out to be void: the one up to which it was looked for sure.
    unconfirmed: Option<Arc<Version>>,
}

/// What a commit has tried so far, and how long it may go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    deadline_millis: u64,
    /// Roots that it tried to be in.
    attempts: u32,
    /// How often clashes were handed up to be resolved.
    redone: u32,
}

impl Effort {
    fn begin(limits: CommitLimits, environment: &dyn Environment) -> Effort {
        let deadline_millis = environment.elapsed_millis().saturating_add(limits.timeout_millis);
        Effort { deadline_millis, attempts: 0, redone: 0 }
    }

    fn is_spent(self, limits: CommitLimits, environment: &dyn Environment) -> bool {
        let has_tried = self.attempts > 0 || self.redone > 0;
        self.attempts >= limits.max_attempts.max(1)
            || self.redone > limits.max_attempts.max(1)
            || (has_tried && environment.elapsed_millis() >= self.deadline_millis)
    }

    fn gave_up(self, keys: Vec<String>) -> Error {
        let how_often = match self.redone {
            0 => format!("{} attempts", self.attempts),
            redone => format!("{} attempts, redone {redone} times", self.attempts),
        };
        let why = match keys.is_empty() {
            true => "others committed first every time, though nothing this transaction touched".into(),
            false => format!("others changed {} first every time", keys.join(", ")),
        };
        Error::CommitConflict {
            message: format!(
                "gave up after {how_often}: {why}; try again, or raise max_attempts or the timeout"
            ),
            keys,
            winners: Vec::new(),
        }
    }
}

impl Transaction {
    /// Commits, or says what stands in the way. A transaction without writes or a chosen id commits to its
    /// base; one that is committed says so again.
    ///
    /// After an error it is over, and [`Transaction::files`] says what may become of its files. The error is
    /// `CommitStateUnknown` unless it is certain that nothing was committed.
    pub async fn commit(&mut self, limits: CommitLimits) -> Result<Outcome> {
        if let Some(version) = self.life.begin_commit()? {
            return Ok(Outcome::Committed(version));
        }
        match self.go_for_version(limits).await {
            Ok(Outcome::Committed(version)) => {
                self.life.committed(version);
                let recorded = || transaction_path(&self.info.id, self.saved.sequence);
                if self.saved.record.as_ref().is_some_and(|record| *record == recorded()) {
                    self.remove_states_before(self.saved.sequence).await;
                }
                Ok(Outcome::Committed(version))
            }
            Ok(Outcome::Clashes(clashes)) => {
                self.life.clash(clashes.clone());
                Ok(Outcome::Clashes(clashes))
            }
            Err(failure) => {
                let error = self.life.fail(failure, self.validated.number);
                self.remove_what_was_refused(&error).await;
                Err(error)
            }
        }
    }

    /// A store that has no space left, or denies to be written, has taken a part of the files before it did: they are
    /// removed, if no version can ever refer to them. The rest of what failed is for garbage collection.
    async fn remove_what_was_refused(&self, error: &Error) {
        if error.is_refusal() && matches!(self.files(), Files::Unreachable(_)) {
            remove_files(self.lakehouse.storage().as_ref(), self.changes.own_files()).await;
        }
    }

    /// A clash resolved: `definition` holds this transaction's change on top of the winner's.
    pub fn reapply(&mut self, clash: &Clash, definition: Bytes) -> Result<()> {
        self.life.take_table_clash(clash)?;
        let value = self.stage(crate::key::ObjectKind::Table, &clash.namespace, &clash.name, definition);
        let renamed_from = self.changes.writes.get(&clash.key).and_then(|write| write.renamed_from.clone());
        let base = Some(clash.winner_location.clone());
        let write = Write { base, value, checked: clash.version, renamed_from };
        self.changes.writes.insert(clash.key.clone(), write);
        self.saved.is_changed = true;
        self.go_on();
        Ok(())
    }

    /// The loop of a commit: look, try, and begin again as long as the limits allow.
    async fn go_for_version(&mut self, limits: CommitLimits) -> Result<Outcome, Failure> {
        if !self.has_writes() && !self.saved.has_record {
            return Ok(Outcome::Committed(self.base.number));
        }
        let effort =
            self.effort.unwrap_or_else(|| Effort::begin(limits, self.lakehouse.environment().as_ref()));
        within(effort.deadline_millis, self.go_on_trying(limits, effort)).await
    }

    async fn go_on_trying(&mut self, limits: CommitLimits, mut effort: Effort) -> Result<Outcome, Failure> {
        if let Some(version) = self.record_chosen_id().await? {
            return Ok(Outcome::Committed(version));
        }
        loop {
            let tried = self.look_and_try(limits, &mut effort).await;
            let is_spent = effort.is_spent(limits, self.lakehouse.environment().as_ref());
            match tried {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) if is_spent => {
                    return Err(Failure::Certain(Proof::SlotsTaken, effort.gave_up(Vec::new())));
                }
                // Whose the slot is, and whether this transaction is in it, shows at the next look.
                Err(Failure::InDoubt { version, .. }) if !is_spent => self.life.in_doubt(version),
                Ok(None) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// One round: `None` if another one is needed.
    async fn look_and_try(
        &mut self,
        limits: CommitLimits,
        effort: &mut Effort,
    ) -> Result<Option<Outcome>, Failure> {
        let lakehouse = self.lakehouse.clone();
        // A child that was forked meanwhile knows less: no root is ever created below a base.
        lakehouse.learn(self.base.clone());
        let arrival = lakehouse.commits().announce(lakehouse.environment().elapsed_millis());
        let mut missing = None;
        // An intent names what is there.
        let may_wait = arrival.is_some() && self.waits_in_queue(limits.coordination);
        let fits_in_root = || self.fits_in_root(&self.changes.unwritten_files());
        if self.writes_first || may_wait || (arrival.is_some() && !fits_in_root()) {
            // Written while one waits anyway.
            missing = self.write_files().await.err();
            match &missing {
                // If garbage collection took it, the newest version says so.
                Some(Error::FileNotFound { .. }) => drop(lakehouse.latest().await?),
                Some(error) => return Err(error.clone().into()),
                None => {}
            }
        }
        let fit = match self.look(limits, effort).await? {
            Looked::Ended(outcome) => return Ok(Some(outcome)),
            Looked::Fit(fit) => missing.map_or(Ok(fit), Err)?,
        };
        effort.attempts += 1;
        let submission = self.submit(limits.coordination, effort.attempts)?;
        let verdict =
            lakehouse.commits().commit(&lakehouse, submission, arrival, effort.deadline_millis).await?;
        if matches!(verdict, Verdict::WriteFirst) {
            effort.attempts -= 1;
        }
        Ok(self.hear(verdict, fit))
    }

    /// Looks at what others have committed: is this transaction among it, or does something stand in its way?
    async fn look(&mut self, limits: CommitLimits, effort: &mut Effort) -> Result<Looked, Failure> {
        let lakehouse = self.lakehouse.clone();
        // What was created here a moment ago may turn out to be void: good enough to go on from, and no
        // reason to give up.
        let confirmed = self.validated.clone();
        let tip = lakehouse.commits().tip(&lakehouse);
        let is_confirmed = tip.number <= lakehouse.known().number;
        let caught_up = match self.catch_up(tip).await {
            Ok(CaughtUp::Unharmed) => CaughtUp::Unharmed,
            harmed if is_confirmed => harmed?,
            _ => {
                self.validated = confirmed.clone();
                let latest = lakehouse.latest().await?;
                self.catch_up(latest).await?
            }
        };
        match caught_up {
            CaughtUp::Committed(version) => Ok(Looked::Ended(Outcome::Committed(version))),
            CaughtUp::Clashes(clashes) => {
                effort.redone += 1;
                self.effort = Some(*effort);
                if effort.is_spent(limits, lakehouse.environment().as_ref()) && effort.redone > 1 {
                    return Err(Failure::Certain(Proof::Overtaken, effort.gave_up(clashes.names())));
                }
                Ok(Looked::Ended(Outcome::Clashes(clashes)))
            }
            CaughtUp::Unharmed => Ok(Looked::Fit(Fit { unconfirmed: (!is_confirmed).then_some(confirmed) })),
        }
    }

    /// What became of a root that it was to be in; `None` if it has to try again.
    fn hear(&mut self, verdict: Verdict, fit: Fit) -> Option<Outcome> {
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

    /// Looks at everything up to `tip`: is this transaction in there, and does it still hold?
    async fn catch_up(&mut self, tip: Arc<Version>) -> Result<CaughtUp, Failure> {
        if tip.number <= self.validated.number {
            return Ok(CaughtUp::Unharmed);
        }
        let lakehouse = self.lakehouse.clone();
        let mut review = self.review(tip.clone());
        let mut passed = Collected::default();
        let mut next = self.validated.number + 1;
        while next <= tip.number {
            let last = tip.number.min(next + VERSIONS_AT_ONCE - 1);
            // Only what they changed is kept of them.
            let versions = match lakehouse.glance(next, last, &tip).await {
                Ok(versions) => versions,
                Err(Error::VersionExpired(message)) => {
                    return Err(Failure::before_sending(Error::TransactionExpired(format!(
                        "transaction {} began at version {} and slept too long: {message}, so nobody can tell \
                         what it missed",
                        self.info.id, self.base.number
                    ))));
                }
                Err(error) => return Err(Failure::before_sending(error)),
            };
            for version in &versions {
                if let Some(version) = self.find_itself(version).await? {
                    return Ok(CaughtUp::Committed(version));
                }
                passed.add(&version.metadata);
                self.look_at(&mut review, version).await?;
            }
            next = last + 1;
        }
        let clashes = self.conclude(review).await.map_err(|error| match error {
            error @ Error::CommitConflict { .. } => Failure::Certain(Proof::Overtaken, error),
            error => Failure::before_sending(error),
        })?;
        self.pass_collections(passed).await?;
        self.validated = tip;
        Ok(if clashes.is_empty() { CaughtUp::Unharmed } else { CaughtUp::Clashes(clashes) })
    }

    /// The version, if it committed this transaction. `CommitConflict` if it committed what somebody else who
    /// resumed it made of it, or gave it up.
    async fn find_itself(&self, version: &Version) -> Result<Option<u64>, Failure> {
        if version.metadata.gives_up(&self.info.id) {
            return Err(Failure::Certain(Proof::RolledBack, self.went_on_elsewhere("rolled back")));
        }
        if !version.metadata.commits(&self.info.id) {
            return Ok(None);
        }
        if self.saved.sequence > 0
            && let Ok(key) = self.record_key()
            && let Some(record) = version.get(&key).await?
            && !self.saved.is_own(&record, &self.info.id)
        {
            return Err(Failure::before_sending(self.went_on_elsewhere("committed")));
        }
        Ok(Some(version.number))
    }

    /// All that a root needs to know of it, which is about to be sent.
    pub(super) fn submit(&mut self, coordination: Option<Coordination>, attempt: u32) -> Result<Submission> {
        let waits_in_queue = self.waits_in_queue(coordination);
        let coordination = coordination.unwrap_or(self.base.config.coordination);
        let mut last_version = None;
        if waits_in_queue {
            // Whoever gives it up writes the record, and so stops whoever would carry it.
            let record = Requirement::Absent(self.record_key()?);
            self.footprint_mut().require(record);
            last_version = Some(self.validated.number + QUEUED_VERSIONS);
        }
        self.life.sending(last_version);
        let submission = self.submission();
        let fits_in_root = submission.fits_in_root && last_version.is_none();
        Ok(Submission { coordination, attempt, last_version, fits_in_root, ..submission })
    }

    pub(super) fn submission(&self) -> Submission {
        let files = self.changes.unwritten_files();
        let fits_in_root = self.fits_in_root(&files);
        Submission {
            info: CommittedTransaction { summary: self.summary(), ..self.info.clone() },
            isolation: self.isolation,
            footprint: self.footprint.clone(),
            messages: self.changes.messages(&self.info.id),
            definition: self.changes.definition.clone(),
            files,
            fits_in_root,
            pending: Some(self.pending.clone()),
            validated: self.validated.number,
            rests_on_past: self.rests_on_past,
            coordination: Coordination::None,
            attempt: 0,
            last_version: None,
            gives_up: None,
        }
    }

    /// Would it wait for others to put it into their roots?
    fn waits_in_queue(&self, coordination: Option<Coordination>) -> bool {
        coordination.unwrap_or(self.base.config.coordination) == Coordination::Queue
            && self.changes.definition.is_none()
            && !self.rests_on_past
            && self.lakehouse.commits().is_contended()
    }

    /// May a root hold what is to be written, and is there nothing else to wait for?
    fn fits_in_root(&self, files: &[(String, Bytes)]) -> bool {
        self.changes.definition.is_none()
            && fit_in_root(self.lakehouse.storage().as_ref(), files)
            && self.lakehouse.commits().has_room_for_all(size_bytes(files), &self.base.config)
            && self.pending.is_settled()
    }

    pub(super) async fn write_files(&mut self) -> Result<()> {
        let (storage, files) = (self.lakehouse.storage().as_ref(), self.changes.unwritten_files());
        if files.is_empty() && self.pending.is_settled() {
            return Ok(());
        }
        make_files_durable(storage, files, &[&self.pending]).await?;
        self.changes.mark_written();
        Ok(())
    }
}

/// What fails on the way to a request, or between two, has committed nothing.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::before_sending(error)
    }
}

//! Making a transaction a version (format §8): validate, join the next root, and begin again if others were
//! faster.

use std::sync::Arc;

use bytes::Bytes;

use super::group_commit::{Submission, Verdict, write_files};
use super::{Clash, Clashes, NewValue, State, Transaction, Write};
use crate::error::{Error, Result};
use crate::node::draft::{Message, Text};
use crate::version::Version;

/// For so many versions others may put a waiting transaction into a root.
const QUEUED_VERSIONS: u64 = 64;

/// How long to go on when others keep winning.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    pub max_attempts: u32,
    pub timeout_millis: u64,
    /// As the lakehouse is set to, if not given.
    pub coordination: Option<Coordination>,
}

/// How writers that know nothing of each other come to terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// Each tries for the next root.
    #[default]
    None,
    /// Who has lost a race lines up; one of those who wait puts all into one root (`intents`).
    Queue,
}

impl Coordination {
    pub fn parse(name: &str) -> Result<Coordination> {
        match name {
            "none" => Ok(Coordination::None),
            "queue" => Ok(Coordination::Queue),
            _ => Err(Error::InvalidArgument(format!(
                "coordination {name:?} is not one of \"none\", \"queue\""
            ))),
        }
    }
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

/// What became of a transaction's validity while others committed.
enum CaughtUp {
    Unharmed,
    Clashes(Clashes),
    /// One of the versions is its own: an answer was lost, or its id was committed before.
    Committed(u64),
}

impl Transaction {
    /// Commits, or says what stands in the way. A transaction without writes or a chosen id commits to its
    /// base; one that is committed says so again.
    pub async fn commit(&mut self, limits: CommitLimits) -> Result<Outcome> {
        if let State::Committed(version) = self.state {
            return Ok(Outcome::Committed(version));
        }
        self.check_open()?;
        if let Some(watched) = self.unresolved.watched.first() {
            return Err(Error::InvalidArgument(format!(
                "{watched}, which was watched, was changed by another transaction: look at it again first"
            )));
        }
        if let Some(clash) = self.unresolved.tables.first() {
            return Err(Error::InvalidArgument(format!(
                "table {}.{} was changed by another transaction: apply the changes to its newer definition first",
                clash.namespace, clash.name
            )));
        }
        if !self.has_writes() && !self.has_chosen_id {
            self.state = State::Committed(self.base.number);
            return Ok(Outcome::Committed(self.base.number));
        }
        match self.try_commit(limits).await {
            Ok(Outcome::Committed(version)) => {
                self.state = State::Committed(version);
                Ok(Outcome::Committed(version))
            }
            Ok(Outcome::Clashes(clashes)) => {
                self.unresolved.clone_from(&clashes);
                Ok(Outcome::Clashes(clashes))
            }
            Err(error) => {
                self.state = State::Closed;
                Err(self.in_doubt(error))
            }
        }
    }

    /// What failed here may still be put into a root by another, if it waits in the queue.
    fn in_doubt(&self, error: Error) -> Error {
        let is_certain = match &error {
            Error::CommitConflict { keys, .. } => !keys.is_empty(),
            _ => false,
        };
        if is_certain || self.queued_until <= self.validated.number {
            return error;
        }
        Error::CommitStateUnknown(format!(
            "{error}; yet another writer may still commit it from the queue, up to version {}",
            self.queued_until
        ))
    }

    /// A clash resolved: `definition` holds this transaction's change on top of the winner's.
    pub fn reapply(&mut self, clash: &Clash, definition: Bytes) -> Result<()> {
        self.check_open()?;
        let Some(position) = self.unresolved.tables.iter().position(|unresolved| unresolved.key == clash.key)
        else {
            return Err(Error::InvalidArgument(format!(
                "there is no clash on table {}.{}",
                clash.namespace, clash.name
            )));
        };
        let value = self.stage(crate::key::ObjectKind::Table, &clash.namespace, &clash.name, definition);
        let write = Write { base: Some(clash.winner_location.clone()), value, checked: clash.version };
        self.writes.insert(clash.key.clone(), write);
        self.is_changed_since_save = true;
        self.unresolved.tables.remove(position);
        Ok(())
    }

    async fn try_commit(&mut self, limits: CommitLimits) -> Result<Outcome> {
        if let Some(version) = self.record_chosen_id().await? {
            return Ok(Outcome::Committed(version));
        }
        let lakehouse = self.lakehouse.clone();
        let environment = lakehouse.environment();
        let deadline = environment.elapsed_millis().saturating_add(limits.timeout_millis);
        let coordination = limits.coordination.unwrap_or(self.base.config.coordination);
        let mut attempt = 0;
        loop {
            let arrival = lakehouse.commits().announce(environment.elapsed_millis());
            if arrival.is_some() {
                // Written while one waits anyway.
                write_files(lakehouse.storage().as_ref(), self.unwritten_files()).await?;
                self.mark_written();
            }
            // What was created here a moment ago may turn out to be void: good enough to go on from, and no
            // reason to give up.
            let confirmed = self.validated.clone();
            let tip = lakehouse.commits().tip(&lakehouse);
            let is_confirmed = tip.number <= lakehouse.known().number;
            let caught_up = match self.catch_up(tip).await {
                Ok(CaughtUp::Unharmed) => Ok(CaughtUp::Unharmed),
                harmed if is_confirmed => harmed,
                _ => {
                    self.validated = confirmed.clone();
                    let latest = lakehouse.latest().await?;
                    self.catch_up(latest).await
                }
            };
            match caught_up? {
                CaughtUp::Committed(version) => return Ok(Outcome::Committed(version)),
                CaughtUp::Clashes(clashes) => return Ok(Outcome::Clashes(clashes)),
                CaughtUp::Unharmed => {}
            }
            attempt += 1;
            let mut submission = self.submission();
            submission.coordination = coordination;
            submission.attempt = attempt;
            if coordination == Coordination::Queue
                && self.new_definition.is_none()
                && lakehouse.commits().is_contended()
            {
                self.queued_until = self.validated.number + QUEUED_VERSIONS;
                submission.last_version = Some(self.queued_until);
            }
            match lakehouse.commits().commit(&lakehouse, submission, arrival, deadline).await? {
                Verdict::Committed(version) => return Ok(Outcome::Committed(version.number)),
                Verdict::Again { files_are_written: true } => self.mark_written(),
                Verdict::Again { files_are_written: false } => {}
            }
            if !is_confirmed {
                self.validated = confirmed;
            }
            if attempt >= limits.max_attempts || environment.elapsed_millis() >= deadline {
                return Err(Error::CommitConflict {
                    message: format!(
                        "gave up after {attempt} attempts: others committed first every time, though nothing this \
                         transaction touched; try again, or raise max_attempts or the timeout"
                    ),
                    keys: Vec::new(),
                    winners: Vec::new(),
                });
            }
        }
    }

    /// Validates against everything up to `tip`.
    async fn catch_up(&mut self, tip: Arc<Version>) -> Result<CaughtUp> {
        if tip.number <= self.validated.number {
            return Ok(CaughtUp::Unharmed);
        }
        let between = self.lakehouse.versions(self.validated.number + 1, tip.number - 1).await;
        let mut versions = match between {
            Ok(versions) => versions,
            Err(Error::VersionExpired(message)) => {
                return Err(Error::TransactionExpired(format!(
                    "transaction {} began at version {} and slept too long: {message}, so nobody can tell what it \
                     missed",
                    self.info.id, self.base.number
                )));
            }
            Err(error) => return Err(error),
        };
        versions.push(tip);
        let is_own =
            |version: &&Arc<Version>| version.metadata.committed.iter().any(|txn| txn.id == self.info.id);
        if let Some(own) = versions.iter().find(is_own) {
            let key = self.base.config.names.transaction_key(&self.info.id);
            if let (true, Ok(key)) = (self.sequence > 0, key)
                && let Some(record) = own.get(&key).await?
            {
                self.check_is_record(&record)?;
            }
            return Ok(CaughtUp::Committed(own.number));
        }
        let clashes = self.validate(&versions).await?;
        Ok(if clashes.is_empty() { CaughtUp::Unharmed } else { CaughtUp::Clashes(clashes) })
    }

    pub(super) fn submission(&self) -> Submission {
        Submission {
            info: self.info.clone(),
            isolation: self.isolation,
            footprint: self.footprint.clone(),
            messages: self.messages(),
            definition: self.new_definition.clone(),
            files: self.unwritten_files(),
            validated: self.validated.number,
            coordination: Coordination::None,
            attempt: 0,
            last_version: None,
        }
    }

    pub(super) fn messages(&self) -> Vec<Message> {
        let txn: Text = self.info.id.as_str().into();
        self.writes
            .iter()
            .map(|(key, write)| Message {
                key: key.as_str().into(),
                value: write.value.location().map(Into::into),
                txn: txn.clone(),
            })
            .collect()
    }

    /// The definition files of this transaction that no attempt has written.
    pub(super) fn unwritten_files(&self) -> Vec<(String, Bytes)> {
        let definition = self.new_definition.iter().filter(|_| !self.is_definition_written);
        let definition = definition.map(|(path, definition)| (path.clone(), definition.bytes().clone()));
        let staged = self.writes.values().filter_map(|write| match &write.value {
            NewValue::Staged { path, bytes, written: false } => Some((path.clone(), bytes.clone())),
            _ => None,
        });
        definition.chain(staged).collect()
    }

    pub(super) fn mark_written(&mut self) {
        self.is_definition_written = true;
        for write in self.writes.values_mut() {
            if let NewValue::Staged { written, .. } = &mut write.value {
                *written = true;
            }
        }
    }
}

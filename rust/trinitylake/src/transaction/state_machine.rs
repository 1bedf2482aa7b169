//! State machine of a transaction: what its owner knows about the outcome, and which steps that allows.
//!
//! ```text
//!            statements          resolved
//!               ┌─┐     ┌────────────────────────┐
//!               │ ▼     ▼                        │
//!   begin ────▶ Open ── commit ──▶ Ending ──▶ Conflicting
//!                │                 │ │ │         │
//!                │   ┌─────────────┘ │ └──────┐  │
//!                │   ▼               ▼        ▼  │
//!                │ Committed      Unknown     NotCommitted(proof)
//!                │   ▲               │        ▲  │
//!                │   └── rollback ───┴────────┤  │
//!                └────── rollback ────────────┴──┘
//! ```
//!
//! Invariants:
//! - If a request was sent that could commit the transaction, a commit ends as `Committed`, as `NotCommitted` with a
//!   proof, or as `Unknown`. [`Failure`] decides which of them, not the error alone.
//! - `in_flight_until` is the last version that such a request may still create. The request is in flight until the
//!   owner has validated that version, or until no version can admit the transaction any more.
//! - Another process may commit the transaction if it was saved or if a request is in flight. Only the record of its id
//!   in the tree prevents that (`saved::abort`). Files are deleted only if no version can ever refer to them
//!   ([`Files`]).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::transaction::commit::outcome::{ConflictingTable, Conflicts};
use crate::version::publisher::Unpublished;

/// Why a transaction is certainly not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No request was sent that could commit it.
    NothingSent,
    /// The store refused the root that was sent (`create_readback::is_refusal`).
    Refused,
    /// Each root that contained it lost its race.
    RacesLost,
    /// A version wrote a key on which the transaction depends. The transaction is in no version up to that one, and no
    /// later version may contain it.
    Overtaken,
    /// The version number of its root had expired before, so no reader uses that root.
    VoidRoot,
    /// The tree has a record of the transaction's id. Every root and every intent with the transaction requires that
    /// the tree has no such record.
    RolledBack,
}

/// Whether the files that a transaction wrote may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// No version refers to the files, and no version ever will.
    Unreachable(Proof),
    /// A version refers to the files or may still do so. Only garbage collection may delete them.
    Kept,
}

/// Failure of a step of a commit.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The step certainly committed nothing.
    Certain(Proof, Error),
    /// The step may have committed the transaction in this version, or may still commit it.
    InDoubt { error: Error, version: u64 },
}

impl Failure {
    /// An error before the first request that could commit.
    pub(crate) fn before_sending(error: Error) -> Failure {
        Failure::Certain(Proof::NothingSent, error)
    }
}

impl From<Unpublished> for Failure {
    fn from(unpublished: Unpublished) -> Failure {
        match unpublished {
            Unpublished::NotSent(error) => Failure::before_sending(error),
            Unpublished::Refused(error) => Failure::Certain(Proof::Refused, error),
            Unpublished::NameTaken(error) => Failure::Certain(Proof::RacesLost, error),
            Unpublished::Void(error) => Failure::Certain(Proof::VoidRoot, error),
            Unpublished::InDoubt { error, version } => Failure::InDoubt { error, version },
        }
    }
}

/// Conflicts that the caller has to resolve, in any order.
#[derive(Debug)]
struct Unresolved {
    /// Tables that both sides changed, by key.
    tables: BTreeMap<String, ConflictingTable>,
    watched: Vec<String>,
}

impl Unresolved {
    fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.watched.is_empty()
    }
}

#[derive(Debug)]
enum Phase {
    /// Accepts statements.
    Open,
    /// The commit found conflicts. It can continue after the caller has resolved them.
    Conflicting(Unresolved),
    /// A commit is running, or was cancelled.
    Ending,
    Committed(u64),
    NotCommitted(Proof),
    Unknown,
}

#[derive(Debug)]
pub(crate) struct TransactionState {
    id: String,
    phase: Phase,
    /// Whether a root or an intent that contains the transaction was sent.
    has_sent: bool,
    in_flight_until: u64,
    /// Whether the transaction was saved, so that another process may commit it.
    is_shared: bool,
    /// Id of the process that began the transaction. A forked child does not receive the outcome, so it must not delete
    /// the files.
    process: u32,
}

/// Work that an abort needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// No further step.
    Done,
    /// Write a record of the id into the tree, because another process or a request in flight may commit it.
    TakesRecord,
}

impl TransactionState {
    pub(crate) fn new(id: &str) -> TransactionState {
        TransactionState {
            id: id.to_string(),
            phase: Phase::Open,
            has_sent: false,
            in_flight_until: 0,
            is_shared: false,
            process: std::process::id(),
        }
    }

    pub(crate) fn committed_version(&self) -> Option<u64> {
        match self.phase {
            Phase::Committed(version) => Some(version),
            Phase::Open | Phase::Conflicting(_) | Phase::Ending | Phase::NotCommitted(_) | Phase::Unknown => None,
        }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        match self.phase {
            Phase::Ending | Phase::Unknown => true,
            Phase::Open | Phase::Conflicting(_) | Phase::Committed(_) | Phase::NotCommitted(_) => false,
        }
    }

    pub(crate) fn files(&self) -> Files {
        let is_its_own = !self.is_shared && self.process == std::process::id();
        match self.phase {
            Phase::NotCommitted(Proof::RolledBack) => Files::Unreachable(Proof::RolledBack),
            Phase::NotCommitted(proof) if is_its_own => Files::Unreachable(proof),
            Phase::NotCommitted(_)
            | Phase::Open
            | Phase::Conflicting(_)
            | Phase::Ending
            | Phase::Committed(_)
            | Phase::Unknown => Files::Kept,
        }
    }

    /// Records that the transaction was saved or resumed.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Returns `TransactionClosed` unless the transaction accepts statements.
    pub(crate) fn check_open(&self) -> Result<()> {
        let why = match &self.phase {
            Phase::Open => return Ok(()),
            Phase::Conflicting(conflicts) => {
                format!("has unresolved conflicts: {}", describe_unresolved(conflicts))
            }
            Phase::Ending => {
                "is being committed, or its commit was cancelled: query its outcome, or roll it back".into()
            }
            Phase::Committed(version) => format!("has ended: it was committed as version {version}"),
            Phase::NotCommitted(Proof::RolledBack) => "has ended: it was rolled back".into(),
            Phase::NotCommitted(_) => "has ended: it was rolled back, or its commit failed".into(),
            Phase::Unknown => "has ended with an unknown outcome: query its outcome, or roll it back".into(),
        };
        Err(Error::TransactionClosed(format!("transaction {} {why}", self.id)))
    }

    /// Begins a commit; returns the version if the transaction is committed already. `TransactionClosed` if it has
    /// ended otherwise, or has unresolved conflicts.
    pub(crate) fn begin_commit(&mut self) -> Result<Option<u64>> {
        if let Some(version) = self.committed_version() {
            return Ok(Some(version));
        }
        self.check_open()?;
        self.phase = Phase::Ending;
        Ok(None)
    }

    /// Records that a root, or an intent for versions up to `queued_until`, is about to be sent.
    pub(crate) fn sending(&mut self, queued_until: Option<u64>) {
        self.has_sent = true;
        self.in_flight_until = self.in_flight_until.max(queued_until.unwrap_or_default());
    }

    /// Records that a request that was sent may still create that version.
    pub(crate) fn in_doubt(&mut self, version: u64) {
        self.in_flight_until = self.in_flight_until.max(version);
    }

    pub(crate) fn committed(&mut self, version: u64) {
        self.phase = Phase::Committed(version);
    }

    /// Takes over the outcome of `leader`, which commits this transaction as its companion. If `leader` certainly
    /// committed nothing, this transaction stays open.
    pub(crate) fn follow(&mut self, leader: &TransactionState) {
        self.phase = match leader.phase {
            Phase::Committed(version) => Phase::Committed(version),
            Phase::Ending | Phase::Unknown => Phase::Unknown,
            Phase::Open | Phase::Conflicting(_) | Phase::NotCommitted(_) => return,
        };
        self.has_sent = leader.has_sent;
        self.in_flight_until = leader.in_flight_until;
    }

    /// Stops the commit until the conflicts are resolved. A conflict proves that no request in flight can commit: a
    /// version wrote a key on which the transaction depends, and no version up to that one contains the transaction.
    pub(crate) fn conflict(&mut self, conflicts: Conflicts) {
        self.in_flight_until = 0;
        let tables = conflicts.tables.into_iter().map(|conflict| (conflict.key.clone(), conflict)).collect();
        self.phase = Phase::Conflicting(Unresolved { tables, watched: conflicts.watched });
    }

    /// Ends the commit with a failure; `seen` is the newest version that was validated. Returns the error for the
    /// caller.
    pub(crate) fn fail(&mut self, failure: Failure, seen: u64) -> Error {
        let (proof, error) = match failure {
            Failure::Certain(proof @ (Proof::Overtaken | Proof::RolledBack), error) => (proof, error),
            Failure::Certain(proof, error) if self.in_flight_until <= seen => {
                let lost_before = proof == Proof::NothingSent && self.has_sent;
                (if lost_before { Proof::RacesLost } else { proof }, error)
            }
            Failure::Certain(_, error) => {
                self.phase = Phase::Unknown;
                return Error::CommitStateUnknown(format!(
                    "{error}; a late request, or another writer from the queue, up to version {}, may still \
                     commit it",
                    self.in_flight_until
                ));
            }
            Failure::InDoubt { error, .. } => {
                self.phase = Phase::Unknown;
                return match error {
                    error @ Error::CommitStateUnknown(_) => error,
                    error => Error::CommitStateUnknown(error.to_string()),
                };
            }
        };
        self.phase = Phase::NotCommitted(proof);
        error
    }

    /// Removes the conflict on a table, which the caller has resolved by a rebase.
    pub(crate) fn take_table_conflict(&mut self, conflict: &ConflictingTable) -> Result<()> {
        let Phase::Conflicting(conflicts) = &mut self.phase else {
            self.check_open()?;
            return Err(no_conflict(conflict));
        };
        conflicts.tables.remove(&conflict.key).map(drop).ok_or_else(|| no_conflict(conflict))
    }

    /// Resolves the conflicts on watched reads. Conflicts on tables must have been resolved before.
    pub(crate) fn watch_again(&mut self) -> Result<()> {
        if let Phase::Conflicting(conflicts) = &mut self.phase
            && conflicts.tables.is_empty()
        {
            conflicts.watched.clear();
        }
        self.reopen_if_resolved();
        self.check_open()
    }

    /// Accepts statements again if no conflict is left.
    pub(crate) fn reopen_if_resolved(&mut self) {
        if let Phase::Conflicting(conflicts) = &self.phase
            && conflicts.is_empty()
        {
            self.phase = Phase::Open;
        }
    }

    /// Aborts the transaction if no request is needed for that; otherwise returns the step that is needed.
    /// `CommitConflict` if it was committed.
    pub(crate) fn abort(&mut self) -> Result<Abort> {
        match self.phase {
            Phase::Committed(version) => return Err(already_committed(&self.id, Some(version))),
            Phase::NotCommitted(Proof::RolledBack) => return Ok(Abort::Done),
            _ if self.is_shared => return Ok(Abort::TakesRecord),
            Phase::NotCommitted(_) => {}
            Phase::Open | Phase::Conflicting(_) if self.has_sent => {
                self.phase = Phase::NotCommitted(Proof::Overtaken);
            }
            Phase::Ending | Phase::Unknown if self.has_sent => return Ok(Abort::TakesRecord),
            Phase::Open | Phase::Conflicting(_) | Phase::Ending | Phase::Unknown => {
                self.phase = Phase::NotCommitted(Proof::NothingSent);
            }
        }
        Ok(Abort::Done)
    }

    pub(crate) fn rolled_back(&mut self) {
        self.phase = Phase::NotCommitted(Proof::RolledBack);
    }
}

pub(crate) fn already_committed(id: &str, version: Option<u64>) -> Error {
    let place = version.map_or("in a version that has expired".into(), |version| format!("as version {version}"));
    Error::conflict(format!("transaction {id} was committed {place}: it cannot be rolled back any more"))
}

fn no_conflict(conflict: &ConflictingTable) -> Error {
    Error::InvalidArgument(format!("there is no conflict on table {}.{}", conflict.namespace, conflict.name))
}

fn describe_unresolved(conflicts: &Unresolved) -> String {
    match (conflicts.tables.values().next(), conflicts.watched.first()) {
        (Some(conflict), _) => format!(
            "table {}.{} was changed by another transaction: rebase the changes on its newer definition first",
            conflict.namespace, conflict.name
        ),
        (None, Some(watched)) => {
            format!("{watched}, which was watched, was changed by another transaction: read it again first")
        }
        (None, None) => "nothing is left to resolve".into(),
    }
}

//! The life of a transaction: what its owner knows of whether it is committed, and which steps that allows.
//!
//! ```text
//!            statements          resolved
//!               ┌─┐     ┌────────────────────────┐
//!               │ ▼     ▼                        │
//!   begin ────▶ Open ── commit ──▶ Ending ──▶ Clashing
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
//! - Once a request that could commit it was sent, the answer is `Committed`, `NotCommitted` with its proof, or
//!   `Unknown`. What failed is none of these by itself: [`Failure`] says which.
//! - `in_flight_until` is the last version that such a request may still put it into. It is settled when the
//!   owner has looked at that version, or when no version can admit the transaction any more.
//! - Another process that may commit it, because it was saved or a request is in flight, is stopped only by the
//!   record of its id in the tree (`give_up`). Its files may be deleted only if it is known that no version can
//!   ever refer to them ([`Files`]).

use std::collections::BTreeMap;

use super::Clashes;
use super::conflict::Clash;
use crate::error::{Error, Result};
use crate::version::publisher::Unpublished;

/// Why a transaction is certainly not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing that could commit it was ever sent.
    NothingSent,
    /// The store refused the root that was sent ([`Error::is_refusal`]).
    Refused,
    /// Every slot that a root with it was sent for holds the root of another.
    SlotsTaken,
    /// A version wrote what it depends on: no later one admits it, and it is in none up to there.
    Overtaken,
    /// The slot of its root had expired before: nobody reads it there.
    VoidSlot,
    /// The record of its id in the tree says so; every root and every intent with it requires that there is
    /// none.
    RolledBack,
}

/// May the files that a transaction wrote be deleted?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// No version refers to them, or ever will.
    Unreachable(Proof),
    /// A version refers to them, or may: they are for garbage collection to judge.
    Kept,
}

/// How a step of a commit failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The step certainly committed nothing.
    Certain(Proof, Error),
    /// It may have, in that version, or may yet.
    InDoubt { error: Error, version: u64 },
}

impl Failure {
    /// For what failed before anything was sent that could commit.
    pub(crate) fn before_sending(error: Error) -> Failure {
        Failure::Certain(Proof::NothingSent, error)
    }
}

impl From<Unpublished> for Failure {
    fn from(unpublished: Unpublished) -> Failure {
        match unpublished {
            Unpublished::NotSent(error) => Failure::before_sending(error),
            Unpublished::Refused(error) => Failure::Certain(Proof::Refused, error),
            Unpublished::SlotTaken(error) => Failure::Certain(Proof::SlotsTaken, error),
            Unpublished::Void(error) => Failure::Certain(Proof::VoidSlot, error),
            Unpublished::InDoubt { error, version } => Failure::InDoubt { error, version },
        }
    }
}

/// Clashes that wait to be resolved, one after the other, in any order.
#[derive(Debug)]
struct Unresolved {
    /// By key.
    tables: BTreeMap<String, Clash>,
    watched: Vec<String>,
}

impl Unresolved {
    fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.watched.is_empty()
    }
}

#[derive(Debug)]
enum State {
    /// Takes statements.
    Open,
    /// Its commit found that others changed what it rests on; it goes on when that is resolved.
    Clashing(Unresolved),
    /// A commit is under way, or was cancelled half-way.
    Ending,
    Committed(u64),
    NotCommitted(Proof),
    Unknown,
}

#[derive(Debug)]
pub(super) struct Life {
    id: String,
    state: State,
    /// Was a root or an intent with it ever sent?
    has_sent: bool,
    in_flight_until: u64,
    /// It was saved, so that others may commit it.
    is_shared: bool,
    /// A forked child has the transaction of its parent, but not its knowledge of what becomes of it.
    process: u32,
}

/// What it takes to give a transaction up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivingUp {
    /// It is over.
    Done,
    /// Another party may commit it: the record of its id decides.
    TakesRecord,
}

impl Life {
    pub(super) fn new(id: &str) -> Life {
        Life {
            id: id.to_string(),
            state: State::Open,
            has_sent: false,
            in_flight_until: 0,
            is_shared: false,
            process: std::process::id(),
        }
    }

    pub(super) fn committed_version(&self) -> Option<u64> {
        match self.state {
            State::Committed(version) => Some(version),
            State::Open | State::Clashing(_) | State::Ending | State::NotCommitted(_) | State::Unknown => {
                None
            }
        }
    }

    pub(super) fn is_unknown(&self) -> bool {
        match self.state {
            State::Ending | State::Unknown => true,
            State::Open | State::Clashing(_) | State::Committed(_) | State::NotCommitted(_) => false,
        }
    }

    pub(super) fn files(&self) -> Files {
        let is_its_own = !self.is_shared && self.process == std::process::id();
        match self.state {
            State::NotCommitted(Proof::RolledBack) => Files::Unreachable(Proof::RolledBack),
            State::NotCommitted(proof) if is_its_own => Files::Unreachable(proof),
            State::NotCommitted(_)
            | State::Open
            | State::Clashing(_)
            | State::Ending
            | State::Committed(_)
            | State::Unknown => Files::Kept,
        }
    }

    /// It was saved, or taken over from whoever saved it.
    pub(super) fn share(&mut self) {
        self.is_shared = true;
    }

    /// May it take a statement? `TransactionClosed` if not.
    pub(super) fn check_open(&self) -> Result<()> {
        let why = match &self.state {
            State::Open => return Ok(()),
            State::Clashing(clashes) => format!("cannot go on yet: {}", what_to_resolve(clashes)),
            State::Ending => {
                "is being committed, or its commit was cancelled half-way: ask for its outcome, or \
                              roll it back"
                    .into()
            }
            State::Committed(version) => format!("is over: it was committed as version {version}"),
            State::NotCommitted(Proof::RolledBack) => "is over: it was rolled back".into(),
            State::NotCommitted(_) => "is over: it was rolled back, or its commit failed".into(),
            State::Unknown => {
                "is over, and whether it was committed is not known: ask for its outcome, or roll \
                               it back"
                    .into()
            }
        };
        Err(Error::TransactionClosed(format!("transaction {} {why}", self.id)))
    }

    /// A commit begins, unless the transaction is committed: then the version. `TransactionClosed` if
    /// it is over otherwise or cannot go on yet.
    pub(super) fn begin_commit(&mut self) -> Result<Option<u64>> {
        if let Some(version) = self.committed_version() {
            return Ok(Some(version));
        }
        self.check_open()?;
        self.state = State::Ending;
        Ok(None)
    }

    /// A root, or an intent for versions up to `queued_until`, is about to be sent.
    pub(super) fn sending(&mut self, queued_until: Option<u64>) {
        self.has_sent = true;
        self.in_flight_until = self.in_flight_until.max(queued_until.unwrap_or_default());
    }

    /// What was sent may still come to be, in that version.
    pub(super) fn in_doubt(&mut self, version: u64) {
        self.in_flight_until = self.in_flight_until.max(version);
    }

    pub(super) fn committed(&mut self, version: u64) {
        self.state = State::Committed(version);
    }

    /// The commit stops here until the clashes are resolved. They are the proof that nothing in flight can
    /// commit: a version wrote what the transaction depends on, and it is in none up to there.
    pub(super) fn clash(&mut self, clashes: Clashes) {
        self.in_flight_until = 0;
        let tables = clashes.tables.into_iter().map(|clash| (clash.key.clone(), clash)).collect();
        self.state = State::Clashing(Unresolved { tables, watched: clashes.watched });
    }

    /// The commit failed, when the owner had looked at all versions up to `seen`. Returns what to tell.
    pub(super) fn fail(&mut self, failure: Failure, seen: u64) -> Error {
        let (proof, error) = match failure {
            Failure::Certain(proof @ (Proof::Overtaken | Proof::RolledBack), error) => (proof, error),
            Failure::Certain(proof, error) if self.in_flight_until <= seen => {
                let lost_before = proof == Proof::NothingSent && self.has_sent;
                (if lost_before { Proof::SlotsTaken } else { proof }, error)
            }
            Failure::Certain(_, error) => {
                self.state = State::Unknown;
                return Error::CommitStateUnknown(format!(
                    "{error}; yet a late request, or another writer from the queue, up to version {}, may still \
                     commit it",
                    self.in_flight_until
                ));
            }
            Failure::InDoubt { error, .. } => {
                self.state = State::Unknown;
                return match error {
                    error @ Error::CommitStateUnknown(_) => error,
                    error => Error::CommitStateUnknown(error.to_string()),
                };
            }
        };
        self.state = State::NotCommitted(proof);
        error
    }

    /// The clash that waits to be resolved by putting the change on top of the winner's.
    pub(super) fn take_table_clash(&mut self, clash: &Clash) -> Result<()> {
        let State::Clashing(clashes) = &mut self.state else {
            self.check_open()?;
            return Err(no_clash(clash));
        };
        clashes.tables.remove(&clash.key).map(drop).ok_or_else(|| no_clash(clash))
    }

    /// What was watched is looked at again: resolves the clashes on it, once those on tables are.
    pub(super) fn look_again(&mut self) -> Result<()> {
        if let State::Clashing(clashes) = &mut self.state
            && clashes.tables.is_empty()
        {
            clashes.watched.clear();
        }
        self.go_on();
        self.check_open()
    }

    /// Is open again if nothing is left to resolve.
    pub(super) fn go_on(&mut self) {
        if let State::Clashing(clashes) = &self.state
            && clashes.is_empty()
        {
            self.state = State::Open;
        }
    }

    /// Ends the transaction where its owner can; else says what that takes. `CommitConflict` if it was
    /// committed.
    pub(super) fn give_up(&mut self) -> Result<GivingUp> {
        match self.state {
            State::Committed(version) => return Err(already_committed(&self.id, Some(version))),
            State::NotCommitted(Proof::RolledBack) => return Ok(GivingUp::Done),
            _ if self.is_shared => return Ok(GivingUp::TakesRecord),
            State::NotCommitted(_) => {}
            State::Open | State::Clashing(_) if self.has_sent => {
                self.state = State::NotCommitted(Proof::Overtaken);
            }
            State::Ending | State::Unknown if self.has_sent => return Ok(GivingUp::TakesRecord),
            State::Open | State::Clashing(_) | State::Ending | State::Unknown => {
                self.state = State::NotCommitted(Proof::NothingSent);
            }
        }
        Ok(GivingUp::Done)
    }

    pub(super) fn rolled_back(&mut self) {
        self.state = State::NotCommitted(Proof::RolledBack);
    }
}

pub(super) fn already_committed(id: &str, version: Option<u64>) -> Error {
    let place =
        version.map_or("in a version that has expired".into(), |version| format!("as version {version}"));
    Error::CommitConflict {
        message: format!("transaction {id} was committed {place}: it cannot be rolled back any more"),
        keys: Vec::new(),
        winners: Vec::new(),
    }
}

fn no_clash(clash: &Clash) -> Error {
    Error::InvalidArgument(format!("there is no clash on table {}.{}", clash.namespace, clash.name))
}

fn what_to_resolve(clashes: &Unresolved) -> String {
    match (clashes.tables.values().next(), clashes.watched.first()) {
        (Some(clash), _) => format!(
            "table {}.{} was changed by another transaction: apply the changes to its newer definition first",
            clash.namespace, clash.name
        ),
        (None, Some(watched)) => {
            format!(
                "{watched}, which was watched, was changed by another transaction: look at it again first"
            )
        }
        (None, None) => "nothing is left to resolve".into(),
    }
}

//! State of the model of the commit protocol: stored files, the state of each writer, and possible faults.

use std::collections::BTreeSet;

/// Type of a transaction id.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Kind {
    /// The id is generated. No process repeats the transaction after a crash.
    Plain,
    /// The user chose the id. The process repeats the transaction until it is reported as committed.
    Chosen,
    /// The transaction was saved. Several processes resume it, also after a crash.
    Resumed,
}

#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub kind: Kind,
    pub id: u8,
    /// The key to which the transaction appends its id.
    pub key: usize,
}

pub const fn work(kind: Kind, id: u8, key: usize) -> Work {
    Work { kind, id, key }
}

pub const KEYS: usize = 3;

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Tree {
    /// For each key, bit i: id i was appended.
    pub appended: [u8; KEYS],
    /// Bit i: id i has a record in the tree.
    pub recorded: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Root {
    /// Writer and attempt, which identify the root like its `commit_id`.
    pub commit: (u8, u8),
    pub id: u8,
    pub key: usize,
    /// For a resumed transaction: the saved state that the record names.
    pub sequence: u8,
    pub tree: Tree,
    /// Whether the root only records a rollback of the transaction.
    pub is_rollback: bool,
}

/// Result of one request to create a root.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Delivery {
    Answered,
    RequestLost,
    ReplyLost,
    /// The request is applied at any later time or never, and the writer receives an error now.
    Late,
    /// An answer that proves that this request had no effect.
    Refused,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Why {
    Conflict,
    /// Versions that its validation needs have expired.
    Expired,
    ContinuedElsewhere,
    RolledBack,
    Denied,
    /// The hint names a version above all existing ones.
    Lost,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Answer {
    Committed(u8),
    /// The transaction is certainly not committed, or another process that continued it has committed it.
    Refused(Why),
    /// Rolled back for all processes.
    RolledBack,
    Unknown,
    /// The process has died and does not restart.
    None,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Phase {
    Idle,
    Claiming,
    Putting,
    ReadingBack,
    CatchingUp,
    Confirming {
        /// Whether the root was read after an answer that did not show the outcome.
        was_in_doubt: bool,
    },
    Done(Answer),
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Writer {
    pub phase: Phase,
    /// The version up to which the writer is validated, and the tree of that version.
    pub validated: u8,
    pub tree: Tree,
    /// The ids of the writer's key when the writer read it.
    pub read: u8,
    pub attempt: u8,
    pub tries: u8,
    /// Whether a request of this attempt had no answer.
    pub is_in_doubt: bool,
    pub sequence: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    pub writers: Vec<Writer>,
    /// The root file of each version.
    pub roots: Vec<Option<Root>>,
    /// The history: the first root of each version, in order.
    pub chain: Vec<Root>,
    /// Requests that may still create a root.
    pub late: BTreeSet<(u8, (u8, u8), LateRoot)>,
    pub hint: Option<u8>,
    pub boundary: u8,
    /// The newest saved state of the resumed transaction.
    pub saved: u8,
    pub budget: Budget,
    pub is_broken: Option<Broken>,
}

/// The fields of a root in a type with an order, so that late requests can be in a set.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct LateRoot {
    pub id: u8,
    pub key: usize,
    pub sequence: u8,
    pub appended: [u8; KEYS],
    pub recorded: u8,
}

/// Numbers of faults that may still occur.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Budget {
    pub faults: u8,
    pub late: u8,
    pub crashes: u8,
    pub expiries: u8,
    pub spoiled_hints: u8,
    /// Rollbacks of the resumed transaction.
    pub rollbacks: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Broken {
    /// A root was replaced by another one.
    TwoWinners,
    /// An older version was used as the latest one.
    Misled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    OverwritesInsteadOfCreating,
    /// Treats an error as "not committed" and begins again, instead of reading the root back.
    TreatsErrorsAsNotCommitted,
    /// Treats "exists" as a lost race, instead of reading the root back.
    TreatsExistsAsLost,
    RebasesWithoutValidation,
    DoesNotRecordIds,
    DoesNotReadTheBoundary,
    /// Treats the version in the hint as the latest one if it exists.
    TrustsTheHint,
    /// Reports a missing lakehouse if neither the hint nor the boundary leads to a root.
    DoesNotListWithoutAHint,
    /// Treats the root under its name as the winner, without checking whether the version has expired.
    TrustsAnExpiredRoot,
    /// Validates a transaction against roots without checking whether they have expired.
    ValidatesBelowTheBoundary,
    /// Records the rollback in a saved state, and not in the tree.
    RecordsRollbackInStateFile,
    /// Rolls back without checking whether the transaction was committed.
    RollsBackWithoutValidation,
    /// Commits without requiring that the id has no record.
    CommitsAfterARollback,
    /// Treats a denial as the final result, although an earlier request had no answer.
    TrustsADenial,
}

pub const MAX_TRIES: u8 = 2;

#[derive(Clone, Debug)]
pub struct Commits {
    pub works: Vec<Work>,
    pub budget: Budget,
    pub bug: Option<Bug>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Action {
    Begin(usize),
    Claim(usize),
    Put(usize, Delivery),
    ReadBack(usize),
    GiveUp(usize),
    CatchUp(usize),
    RollBack(usize),
    Confirm { writer: usize, writes_hint: bool },
    Crash(usize),
    Land(u8, (u8, u8), LateRoot),
    SpoilHint(Option<u8>),
    PublishBoundary,
    Delete(u8),
}

impl State {
    pub fn latest(&self) -> u8 {
        self.chain.len() as u8
    }

    pub fn exists(&self, version: u8) -> bool {
        // Version 0 is empty, and expires like any other version.
        if version == 0 { self.boundary == 0 } else { self.root(version).is_some() }
    }

    pub fn root(&self, version: u8) -> Option<&Root> {
        self.roots.get(usize::from(version).checked_sub(1)?)?.as_ref()
    }

    pub fn tree(&self, version: u8) -> Tree {
        self.root(version).map(|root| root.tree).unwrap_or_default()
    }

    /// The version that committed an id, if its root still exists.
    pub fn find_in_log(&self, id: u8) -> Option<u8> {
        let versions = (self.boundary.max(1)..=self.latest()).rev();
        let commits = |root: &Root| root.id == id && !root.is_rollback;
        versions.into_iter().find(|version| self.root(*version).is_some_and(commits))
    }

    pub fn is_rolled_back(&self, id: u8) -> bool {
        self.chain.iter().any(|root| root.id == id && root.is_rollback)
    }

    pub fn create(&mut self, version: u8, root: Root, bug: Option<Bug>) -> bool {
        let slot = usize::from(version) - 1;
        if self.roots[slot].is_some() && bug != Some(Bug::OverwritesInsteadOfCreating) {
            return false;
        }
        if self.roots[slot].is_some_and(|old| old.commit != root.commit) {
            self.is_broken = Some(Broken::TwoWinners);
        }
        self.roots[slot] = Some(root);
        if slot == self.chain.len() {
            self.chain.push(root);
        }
        true
    }
}

pub const IDLE: Writer = Writer {
    phase: Phase::Idle,
    validated: 0,
    tree: Tree { appended: [0; KEYS], recorded: 0 },
    read: 0,
    attempt: 0,
    tries: 0,
    is_in_doubt: false,
    sequence: 0,
};

impl LateRoot {
    pub fn of(root: &Root) -> LateRoot {
        let Root { id, key, sequence, tree, .. } = *root;
        LateRoot { id, key, sequence, appended: tree.appended, recorded: tree.recorded }
    }

    pub fn root(self, commit: (u8, u8)) -> Root {
        let tree = Tree { appended: self.appended, recorded: self.recorded };
        Root { commit, id: self.id, key: self.key, sequence: self.sequence, tree, is_rollback: false }
    }
}

pub fn bit(id: u8) -> u8 {
    1 << id
}

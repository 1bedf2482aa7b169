//! What the model of the commit protocol consists of: what is stored, what each writer remembers, and what may go wrong.

use std::collections::BTreeSet;

/// How a transaction came by its id.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Kind {
    /// Generated. No process commits it again after a crash.
    Plain,
    /// Chosen by the user. The process commits it again until the outcome is "committed".
    Chosen,
    /// Saved. Several processes resume it, also after a crash.
    Resumed,
}

#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub kind: Kind,
    pub id: u8,
    /// The key that it appends its id to.
    pub key: usize,
}

pub const fn work(kind: Kind, id: u8, key: usize) -> Work {
    Work { kind, id, key }
}

pub const KEYS: usize = 3;

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Tree {
    /// Bit i of a key: it holds an append of id i.
    pub appended: [u8; KEYS],
    /// Bit i: the record of id i is in the tree.
    pub recorded: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Root {
    /// Writer and attempt: the `commit_id`.
    pub commit: (u8, u8),
    pub id: u8,
    pub key: usize,
    /// Of a resumed transaction: which of its saved states the record names.
    pub sequence: u8,
    pub tree: Tree,
    /// It only records that the transaction was given up.
    pub is_rollback: bool,
}

/// What became of one request to create a root.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Delivery {
    Answered,
    RequestLost,
    ReplyLost,
    /// Done at any later time, or never; the writer has its error now.
    Late,
    /// An answer that proves that this request did nothing.
    Refused,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Why {
    Conflict,
    /// What it would be held against has expired.
    Expired,
    WentOnElsewhere,
    RolledBack,
    Denied,
    /// The hint names more than there is.
    Lost,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Answer {
    Committed(u8),
    /// Certainly not, or not by this one: somebody else went on with it.
    Refused(Why),
    /// For everybody.
    RolledBack,
    Unknown,
    /// The process is gone, and will not come again.
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
        /// Its root was read back, after an answer that said nothing.
        was_in_doubt: bool,
    },
    Done(Answer),
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Writer {
    pub phase: Phase,
    /// The version it is valid on, and its tree as it was read then.
    pub validated: u8,
    pub tree: Tree,
    /// What its key held when it was read.
    pub read: u8,
    pub attempt: u8,
    pub tries: u8,
    /// Was a request of this attempt left without an answer?
    pub is_in_doubt: bool,
    pub sequence: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    pub writers: Vec<Writer>,
    /// What is stored under the name of each version.
    pub roots: Vec<Option<Root>>,
    /// What really happened: the roots that were created on top of the latest one, in order.
    pub chain: Vec<Root>,
    /// Creations that may still be done.
    pub late: BTreeSet<(u8, (u8, u8), LateRoot)>,
    pub hint: Option<u8>,
    pub boundary: u8,
    /// The newest saved state of the resumed transaction.
    pub saved: u8,
    pub budget: Budget,
    pub is_broken: Option<Broken>,
}

/// A root, ordered so that it can be in a set.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct LateRoot {
    pub id: u8,
    pub key: usize,
    pub sequence: u8,
    pub appended: [u8; KEYS],
    pub recorded: u8,
}

/// How much may still go wrong.
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
    /// A root was replaced by another.
    TwoWinners,
    /// Something older than the latest version was taken for it.
    Misled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    OverwritesInsteadOfCreating,
    /// Takes an error for "not done" and begins again, instead of reading back.
    TakesErrorsForFailures,
    /// Takes "exists" for "another's", instead of reading back.
    TakesExistsForLost,
    RebasesWithoutLooking,
    DoesNotRecordIds,
    DoesNotAskForTheBoundary,
    /// Believes a hint that names a version which exists.
    BelievesTheHint,
    /// Takes a lakehouse for empty where the hint and the boundary lead nowhere.
    DoesNotListWithoutAHint,
    /// Takes a root in its slot for the winner, without asking whether the slot has expired.
    BelievesAnExpiredRoot,
    /// Holds a transaction against roots without asking whether they have expired.
    ValidatesBelowTheBoundary,
    /// Rolls back by a saved state that says so, and by nothing in the tree.
    RollsBackByAFile,
    /// Rolls back without a look whether the transaction is committed.
    RollsBackWithoutLooking,
    /// Commits without requiring that the record is absent.
    CommitsPastARollback,
    /// Takes a denial for the end, though an earlier request was not answered.
    BelievesADenial,
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
        // Version 0 holds nothing; it expires like any other.
        if version == 0 { self.boundary == 0 } else { self.root(version).is_some() }
    }

    pub fn root(&self, version: u8) -> Option<&Root> {
        self.roots.get(usize::from(version).checked_sub(1)?)?.as_ref()
    }

    pub fn tree(&self, version: u8) -> Tree {
        self.root(version).map(|root| root.tree).unwrap_or_default()
    }

    /// The version that committed an id, if its root is still there.
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

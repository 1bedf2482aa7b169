//! The model itself: what is stored, what each writer remembers, and what each step does.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::promises::promises;

/// How a transaction came by its id.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Kind {
    /// Fresh: nobody commits it again after a crash.
    Plain,
    /// Chosen by the user, who commits it again until it is told to be committed.
    Chosen,
    /// Saved, and resumed by several, who do so again after a crash.
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

    fn root(&self, version: u8) -> Option<&Root> {
        self.roots.get(usize::from(version).checked_sub(1)?)?.as_ref()
    }

    fn tree(&self, version: u8) -> Tree {
        self.root(version).map(|root| root.tree).unwrap_or_default()
    }

    /// The version that committed an id, if its root is still there.
    fn find_in_log(&self, id: u8) -> Option<u8> {
        let versions = (self.boundary.max(1)..=self.latest()).rev();
        let commits = |root: &Root| root.id == id && !root.is_rollback;
        versions.into_iter().find(|version| self.root(*version).is_some_and(commits))
    }

    fn is_rolled_back(&self, id: u8) -> bool {
        self.chain.iter().any(|root| root.id == id && root.is_rollback)
    }

    fn create(&mut self, version: u8, root: Root, bug: Option<Bug>) -> bool {
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

impl Commits {
    pub fn new(works: &[Work], budget: Budget, bug: Option<Bug>) -> Commits {
        Commits { works: works.to_vec(), budget, bug }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// `discovery::latest`: start at the hint or the boundary; go up from there, or list if nothing is there.
    fn discover(&self, state: &State) -> u8 {
        let start = state.hint.unwrap_or(0).max(state.boundary);
        if !state.exists(start) {
            if self.has(Bug::DoesNotListWithoutAHint) {
                return 0;
            }
            let highest = (1..=state.roots.len() as u8).rev().find(|version| state.root(*version).is_some());
            return highest.unwrap_or(0);
        }
        if self.has(Bug::BelievesTheHint) && state.hint.is_some() {
            return start;
        }
        (start..).take_while(|version| state.exists(*version)).last().unwrap_or(start)
    }

    /// `Transaction::begin` or `resume`: the latest version, what it holds, and whether the id is in it.
    fn begin(&self, state: &mut State, index: usize) {
        let work = self.works[index];
        let base = self.discover(state);
        if base != state.latest() {
            state.is_broken = Some(Broken::Misled);
        }
        let tree = state.tree(base);
        let saved = state.saved;
        let is_recorded = tree.recorded & bit(work.id) != 0;
        let found = state.find_in_log(work.id);
        let is_rolled_back = state.is_rolled_back(work.id);
        let writer = &mut state.writers[index];
        writer.validated = base;
        writer.tree = tree;
        writer.read = tree.appended[work.key];
        writer.sequence = if work.kind == Kind::Resumed { saved } else { 0 };
        writer.phase = match work.kind {
            Kind::Plain => Phase::Putting,
            _ if is_recorded && is_rolled_back => Phase::Done(Answer::Refused(Why::RolledBack)),
            _ if is_recorded => Phase::Done(found.map_or(Answer::Unknown, Answer::Committed)),
            Kind::Chosen => Phase::Putting,
            Kind::Resumed => Phase::Claiming,
        };
    }

    /// The commit of a saved transaction begins with a save, which only one who resumed that state can do.
    fn claim(&self, state: &mut State, index: usize) {
        let writer = &mut state.writers[index];
        if state.saved == writer.sequence || self.has(Bug::DoesNotRecordIds) {
            state.saved = state.saved.max(writer.sequence + 1);
            writer.sequence += 1;
            writer.phase = Phase::Putting;
        } else {
            writer.phase = Phase::Done(Answer::Refused(Why::WentOnElsewhere));
        }
    }

    fn root_of(&self, writer: &Writer, index: usize) -> Root {
        let work = self.works[index];
        let mut tree = writer.tree;
        // A definition holds what was read, and the append.
        tree.appended[work.key] = writer.read | bit(work.id);
        if work.kind != Kind::Plain && !self.has(Bug::DoesNotRecordIds) {
            tree.recorded |= bit(work.id);
        }
        let commit = (index as u8, writer.attempt);
        Root { commit, id: work.id, key: work.key, sequence: writer.sequence, tree, is_rollback: false }
    }

    /// `Transaction::rollback` of a saved transaction: a commit on top of the latest version, which requires that
    /// the record is absent.
    fn roll_back(&self, state: &mut State, index: usize) {
        state.budget.rollbacks -= 1;
        let work = self.works[index];
        let latest = state.latest();
        let mut tree = state.tree(latest);
        let is_recorded = tree.recorded & bit(work.id) != 0 && !self.has(Bug::RollsBackWithoutLooking);
        let answer = if self.has(Bug::RollsBackByAFile) {
            state.saved += 1;
            Answer::RolledBack
        } else if is_recorded && !state.is_rolled_back(work.id) {
            state.find_in_log(work.id).map_or(Answer::Unknown, Answer::Committed)
        } else {
            if !is_recorded {
                tree.recorded |= bit(work.id);
                let commit = (index as u8, state.writers[index].attempt + 100);
                let root = Root { commit, id: work.id, key: work.key, sequence: 0, tree, is_rollback: true };
                state.create(latest + 1, root, None);
            }
            Answer::RolledBack
        };
        state.writers[index].phase = Phase::Done(answer);
    }

    /// `claim`: any answer but "created" is a question.
    fn put(&self, state: &mut State, index: usize, delivery: Delivery) {
        let writer = state.writers[index];
        let (version, root) = (writer.validated + 1, self.root_of(&writer, index));
        let was_created = match delivery {
            Delivery::Answered | Delivery::ReplyLost => state.create(version, root, self.bug),
            Delivery::RequestLost | Delivery::Refused => false,
            Delivery::Late => {
                state.late.insert((version, root.commit, LateRoot::of(&root)));
                false
            }
        };
        match delivery {
            Delivery::Answered => {}
            Delivery::Late => state.budget.late -= 1,
            _ => state.budget.faults -= 1,
        }
        let writer = &mut state.writers[index];
        writer.tries += 1;
        let is_believed = !writer.is_in_doubt || self.has(Bug::BelievesADenial);
        writer.is_in_doubt |= delivery != Delivery::Refused;
        writer.phase = match delivery {
            Delivery::Refused if is_believed => Phase::Done(Answer::Refused(Why::Denied)),
            Delivery::Answered if was_created => Phase::Confirming { was_in_doubt: false },
            Delivery::Answered if self.has(Bug::TakesExistsForLost) => Phase::CatchingUp,
            Delivery::Answered => Phase::ReadingBack,
            _ if self.has(Bug::TakesErrorsForFailures) => Phase::Idle,
            _ => Phase::ReadingBack,
        };
        if writer.phase == Phase::Idle {
            writer.attempt += 1;
            writer.tries = 0;
        }
    }

    fn read_back(&self, state: &mut State, index: usize) {
        let writer = state.writers[index];
        let commit = (index as u8, writer.attempt);
        let found = state.root(writer.validated + 1).map(|root| root.commit);
        state.writers[index].phase = match found {
            Some(found) if found == commit => Phase::Confirming { was_in_doubt: true },
            // A root below the boundary is no verdict: it may have come late, after the true one was deleted.
            Some(_) if state.boundary > writer.validated + 1 && !self.has(Bug::BelievesAnExpiredRoot) => {
                Phase::Done(Answer::Unknown)
            }
            Some(_) => Phase::CatchingUp,
            None => Phase::Putting,
        };
    }

    /// `catch_up` and `validate`: every version since is looked at; then it is valid on the latest.
    fn catch_up(&self, state: &mut State, index: usize) {
        let (work, writer) = (self.works[index], state.writers[index]);
        let latest =
            (writer.validated..).take_while(|version| *version == writer.validated || state.exists(*version));
        let latest = latest.last().unwrap_or(writer.validated).max(state.latest());
        let between: Vec<Option<Root>> =
            (writer.validated + 1..=latest).map(|version| state.root(version).copied()).collect();
        let has_expired = state.boundary > writer.validated + 1 && !self.has(Bug::ValidatesBelowTheBoundary);
        let next = if has_expired || between.iter().any(Option::is_none) {
            // `TransactionExpired`: nobody can tell what it missed.
            Err(Answer::Refused(Why::Expired))
        } else if between.iter().flatten().any(|root| root.id == work.id && root.is_rollback)
            && !self.has(Bug::CommitsPastARollback)
        {
            Err(Answer::Refused(Why::RolledBack))
        } else if let Some(own) =
            between.iter().flatten().find(|root| root.id == work.id && !root.is_rollback)
        {
            if work.kind == Kind::Resumed && own.sequence != writer.sequence {
                Err(Answer::Refused(Why::WentOnElsewhere))
            } else {
                Err(Answer::Committed(state.find_in_log(own.id).unwrap_or(latest)))
            }
        } else if between.iter().flatten().any(|root| root.key == work.key && !root.is_rollback)
            && !self.has(Bug::RebasesWithoutLooking)
        {
            Err(Answer::Refused(Why::Conflict))
        } else {
            Ok(state.tree(latest))
        };
        let writer = &mut state.writers[index];
        match next {
            Err(answer) => writer.phase = Phase::Done(answer),
            Ok(tree) => {
                writer.validated = latest;
                writer.tree = tree;
                writer.attempt += 1;
                writer.tries = 0;
                writer.is_in_doubt = false;
                writer.phase = Phase::Putting;
            }
        }
    }

    /// `confirm` and `look_back`: a root below the boundary counts only if others went on from it.
    fn confirm(&self, state: &mut State, index: usize, writes_hint: bool) {
        let (work, version) = (self.works[index], state.writers[index].validated + 1);
        if writes_hint {
            state.hint = Some(version);
        }
        let answer = if state.boundary <= version || self.has(Bug::DoesNotAskForTheBoundary) {
            Answer::Committed(version)
        } else {
            let is_there = state.tree(state.latest()).appended[work.key] & bit(work.id) != 0;
            if is_there {
                Answer::Committed(state.find_in_log(work.id).unwrap_or(version))
            } else {
                Answer::Unknown
            }
        };
        state.writers[index].phase = Phase::Done(answer);
    }

    fn crash(&self, state: &mut State, index: usize) {
        state.budget.crashes -= 1;
        let writer = &mut state.writers[index];
        let comes_again = self.works[index].kind != Kind::Plain;
        let attempt = writer.attempt + 1;
        let phase = if comes_again { Phase::Idle } else { Phase::Done(Answer::None) };
        *writer = Writer { phase, attempt, ..IDLE };
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
    fn of(root: &Root) -> LateRoot {
        let Root { id, key, sequence, tree, .. } = *root;
        LateRoot { id, key, sequence, appended: tree.appended, recorded: tree.recorded }
    }

    fn root(self, commit: (u8, u8)) -> Root {
        let tree = Tree { appended: self.appended, recorded: self.recorded };
        Root { commit, id: self.id, key: self.key, sequence: self.sequence, tree, is_rollback: false }
    }
}

pub fn bit(id: u8) -> u8 {
    1 << id
}

impl Model for Commits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // A writer adds a version at most; one that commits twice, by a bug, needs room for that.
        let versions = self.works.len() + 2 + usize::from(self.budget.rollbacks);
        vec![State {
            writers: vec![IDLE; self.works.len()],
            roots: vec![None; versions],
            chain: Vec::new(),
            late: BTreeSet::new(),
            hint: Some(0),
            boundary: 0,
            saved: 1,
            budget: self.budget,
            is_broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, writer) in state.writers.iter().enumerate() {
            match writer.phase {
                Phase::Idle => actions.push(Action::Begin(index)),
                Phase::Claiming => actions.push(Action::Claim(index)),
                Phase::Putting => {
                    actions.push(Action::Put(index, Delivery::Answered));
                    if state.budget.faults > 0 && writer.tries < MAX_TRIES {
                        actions.push(Action::Put(index, Delivery::RequestLost));
                        actions.push(Action::Put(index, Delivery::ReplyLost));
                        actions.push(Action::Put(index, Delivery::Refused));
                    }
                    if state.budget.late > 0 && writer.tries < MAX_TRIES {
                        actions.push(Action::Put(index, Delivery::Late));
                    }
                }
                Phase::ReadingBack => {
                    actions.push(Action::ReadBack(index));
                    // The deadline passes, and what is read back is an error.
                    actions.push(Action::GiveUp(index));
                }
                Phase::CatchingUp => actions.push(Action::CatchUp(index)),
                Phase::Confirming { .. } => {
                    actions.push(Action::Confirm { writer: index, writes_hint: true });
                    if state.budget.spoiled_hints > 0 {
                        actions.push(Action::Confirm { writer: index, writes_hint: false });
                    }
                }
                Phase::Done(_) => {}
            }
            // By whoever resumed it, and has not begun to commit or was not told how that ended.
            let may_roll_back =
                matches!(writer.phase, Phase::Idle | Phase::Claiming | Phase::Done(Answer::Unknown));
            if may_roll_back && self.works[index].kind == Kind::Resumed && state.budget.rollbacks > 0 {
                actions.push(Action::RollBack(index));
            }
            if !matches!(writer.phase, Phase::Idle | Phase::Done(_)) && state.budget.crashes > 0 {
                actions.push(Action::Crash(index));
            }
        }
        actions
            .extend(state.late.iter().map(|(version, commit, root)| Action::Land(*version, *commit, *root)));
        if state.budget.spoiled_hints > 0 && state.latest() > 0 {
            actions.extend([None, Some(0), Some(9)].map(Action::SpoilHint));
        }
        if state.budget.expiries > 0 && state.latest() > state.boundary {
            actions.push(Action::PublishBoundary);
        }
        let doomed = (1..state.boundary).filter(|version| state.root(*version).is_some());
        actions.extend(doomed.map(Action::Delete));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Begin(index) => self.begin(&mut state, index),
            Action::Claim(index) => self.claim(&mut state, index),
            Action::Put(index, delivery) => self.put(&mut state, index, delivery),
            Action::ReadBack(index) => self.read_back(&mut state, index),
            Action::GiveUp(index) => state.writers[index].phase = Phase::Done(Answer::Unknown),
            Action::CatchUp(index) => self.catch_up(&mut state, index),
            Action::RollBack(index) => self.roll_back(&mut state, index),
            Action::Confirm { writer, writes_hint } => self.confirm(&mut state, writer, writes_hint),
            Action::Crash(index) => self.crash(&mut state, index),
            Action::Land(version, commit, root) => {
                state.late.remove(&(version, commit, root));
                state.create(version, root.root(commit), self.bug);
            }
            Action::SpoilHint(hint) => {
                state.budget.spoiled_hints -= 1;
                state.hint = hint;
            }
            Action::PublishBoundary => {
                state.budget.expiries -= 1;
                state.boundary = state.latest();
            }
            Action::Delete(version) => state.roots[usize::from(version) - 1] = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises()
    }
}

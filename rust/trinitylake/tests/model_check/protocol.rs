//! The steps of the model: the next steps of each writer, and the results of its requests.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::promises::promises;
use crate::state::*;

impl Commits {
    pub fn new(works: &[Work], budget: Budget, bug: Option<Bug>) -> Commits {
        Commits { works: works.to_vec(), budget, bug }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// `discovery::latest`: searches upwards from the hint or the boundary, or lists the roots if that version does not
    /// exist.
    fn discover(&self, state: &State) -> u8 {
        let start = state.hint.unwrap_or(0).max(state.boundary);
        if !state.exists(start) {
            if self.has(Bug::DoesNotListWithoutAHint) {
                return 0;
            }
            let highest = (1..=state.roots.len() as u8).rev().find(|version| state.root(*version).is_some());
            return highest.unwrap_or(0);
        }
        if self.has(Bug::TrustsTheHint) && state.hint.is_some() {
            return start;
        }
        (start..).take_while(|version| state.exists(*version)).last().unwrap_or(start)
    }

    /// `Transaction::begin` or `resume`: reads the latest version, its tree, and the record of the id.
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
        let is_hint_ahead = state.hint.is_some_and(|hint| hint > base);
        let writer = &mut state.writers[index];
        writer.phase = match work.kind {
            _ if is_hint_ahead => Phase::Done(Answer::Refused(Why::Lost)),
            Kind::Plain => Phase::Putting,
            _ if is_recorded && is_rolled_back => Phase::Done(Answer::Refused(Why::RolledBack)),
            _ if is_recorded => Phase::Done(found.map_or(Answer::Unknown, Answer::Committed)),
            Kind::Chosen => Phase::Putting,
            Kind::Resumed => Phase::Claiming,
        };
    }

    /// The commit of a saved transaction begins with a save, which only one of the processes that resumed the state can
    /// make.
    fn claim(&self, state: &mut State, index: usize) {
        let writer = &mut state.writers[index];
        if state.saved == writer.sequence || self.has(Bug::DoesNotRecordIds) {
            state.saved = state.saved.max(writer.sequence + 1);
            writer.sequence += 1;
            writer.phase = Phase::Putting;
        } else {
            writer.phase = Phase::Done(Answer::Refused(Why::ContinuedElsewhere));
        }
    }

    fn root_of(&self, writer: &Writer, index: usize) -> Root {
        let work = self.works[index];
        let mut tree = writer.tree;
        // A definition contains the previous ids and the appended one.
        tree.appended[work.key] = writer.read | bit(work.id);
        if work.kind != Kind::Plain && !self.has(Bug::DoesNotRecordIds) {
            tree.recorded |= bit(work.id);
        }
        let commit = (index as u8, writer.attempt);
        Root { commit, id: work.id, key: work.key, sequence: writer.sequence, tree, is_rollback: false }
    }

    /// `Transaction::rollback` of a saved transaction: a commit on top of the latest version that requires that the id
    /// has no record.
    fn roll_back(&self, state: &mut State, index: usize) {
        state.budget.rollbacks -= 1;
        let work = self.works[index];
        let latest = state.latest();
        let mut tree = state.tree(latest);
        let is_recorded = tree.recorded & bit(work.id) != 0 && !self.has(Bug::RollsBackWithoutValidation);
        let answer = if self.has(Bug::RecordsRollbackInStateFile) {
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

    /// `claim`: after any answer except "created", the outcome is unknown.
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
        let is_trusted = !writer.is_in_doubt || self.has(Bug::TrustsADenial);
        writer.is_in_doubt |= delivery != Delivery::Refused;
        writer.phase = match delivery {
            Delivery::Refused if is_trusted => Phase::Done(Answer::Refused(Why::Denied)),
            Delivery::Answered if was_created => Phase::Confirming { was_in_doubt: false },
            Delivery::Answered if self.has(Bug::TreatsExistsAsLost) => Phase::CatchingUp,
            Delivery::Answered => Phase::ReadingBack,
            _ if self.has(Bug::TreatsErrorsAsNotCommitted) => Phase::Idle,
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
            // A root below the boundary proves nothing: it may have been created late, after the first root of this
            // version was deleted.
            Some(_) if state.boundary > writer.validated + 1 && !self.has(Bug::TrustsAnExpiredRoot) => {
                Phase::Done(Answer::Unknown)
            }
            Some(_) => Phase::CatchingUp,
            None => Phase::Putting,
        };
    }

    /// `catch_up` and `validate`: compares the transaction with every version since its validation.
    fn catch_up(&self, state: &mut State, index: usize) {
        let (work, writer) = (self.works[index], state.writers[index]);
        let latest = (writer.validated..).take_while(|version| *version == writer.validated || state.exists(*version));
        let latest = latest.last().unwrap_or(writer.validated).max(state.latest());
        let between: Vec<Option<Root>> =
            (writer.validated + 1..=latest).map(|version| state.root(version).copied()).collect();
        let has_expired = state.boundary > writer.validated + 1 && !self.has(Bug::ValidatesBelowTheBoundary);
        let next = if has_expired || between.iter().any(Option::is_none) {
            // `TransactionExpired`: the versions since its base are unknown.
            Err(Answer::Refused(Why::Expired))
        } else if between.iter().flatten().any(|root| root.id == work.id && root.is_rollback)
            && !self.has(Bug::CommitsAfterARollback)
        {
            Err(Answer::Refused(Why::RolledBack))
        } else if let Some(own) = between.iter().flatten().find(|root| root.id == work.id && !root.is_rollback) {
            if work.kind == Kind::Resumed && own.sequence != writer.sequence {
                Err(Answer::Refused(Why::ContinuedElsewhere))
            } else {
                Err(Answer::Committed(state.find_in_log(own.id).unwrap_or(latest)))
            }
        } else if between.iter().flatten().any(|root| root.key == work.key && !root.is_rollback)
            && !self.has(Bug::RebasesWithoutValidation)
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

    /// `confirm` and `look_back`: a root below the boundary counts only if later versions are based on it.
    fn confirm(&self, state: &mut State, index: usize, writes_hint: bool) {
        let (work, version) = (self.works[index], state.writers[index].validated + 1);
        if writes_hint {
            state.hint = Some(version);
        }
        let answer = if state.boundary <= version || self.has(Bug::DoesNotReadTheBoundary) {
            Answer::Committed(version)
        } else {
            let is_there = state.tree(state.latest()).appended[work.key] & bit(work.id) != 0;
            if is_there { Answer::Committed(state.find_in_log(work.id).unwrap_or(version)) } else { Answer::Unknown }
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

impl Model for Commits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // Each writer creates at most one version. A writer that commits twice because of a bug needs one more.
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
                    // The deadline passes, and reading the root fails.
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
            // A resumed transaction can be rolled back before its commit has begun, and after an unknown outcome.
            let may_roll_back = matches!(writer.phase, Phase::Idle | Phase::Claiming | Phase::Done(Answer::Unknown));
            if may_roll_back && self.works[index].kind == Kind::Resumed && state.budget.rollbacks > 0 {
                actions.push(Action::RollBack(index));
            }
            if !matches!(writer.phase, Phase::Idle | Phase::Done(_)) && state.budget.crashes > 0 {
                actions.push(Action::Crash(index));
            }
        }
        actions.extend(state.late.iter().map(|(version, commit, root)| Action::Land(*version, *commit, *root)));
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

//! Model of the intent queue (`transaction/commit/intent_queue.rs`): any writer may commit the intents of others.
//!
//! Each writer has one transaction, which appends to a key and may watch another key. The writer races for the next
//! root, alone or together with the intents that it has found, or creates its own intent and waits. Requests are lost,
//! replies are lost, writes are applied late, and a process may die after any step; its intents remain in the queue.
//! Versions do not expire, and the latest version is always found: the model in `protocol` covers these cases.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::queue_state::*;
use crate::state::{Delivery, bit};

impl Queue {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns for each key the ids that roots up to `version` appended. Bit i: id i.
    fn appended(&self, state: &State, version: u8) -> [u8; KEYS] {
        let mut appended = [0; KEYS];
        for member in state.chain.iter().take(usize::from(version)).flat_map(|root| &root.members) {
            appended[self.works[usize::from(member.id)].key] |= bit(member.id);
        }
        appended
    }

    /// Returns the keys that these members write. Bit i: key i.
    fn written<'a>(&self, members: impl IntoIterator<Item = &'a Intent>) -> u8 {
        members.into_iter().fold(0, |written, member| written | 1 << self.works[usize::from(member.id)].key)
    }

    fn is_touched(&self, id: u8, written: u8) -> bool {
        let work = self.works[usize::from(id)];
        let watched = work.watched.filter(|_| !self.has(Bug::IgnoresWatchedReads));
        written & (1 << work.key) != 0 || watched.is_some_and(|key| written & (1 << key) != 0)
    }

    /// `group_admission::admit`: compares each member, in order, with everything written since its validation and with the
    /// members admitted before it.
    fn admit(&self, state: &State, previous: u8, group: Vec<Intent>) -> Vec<Intent> {
        let mut admitted: Vec<Intent> = Vec::new();
        for member in group {
            if member.validated > previous {
                continue;
            }
            let between = &state.chain[usize::from(member.validated)..usize::from(previous)];
            let written = self.written(between.iter().flat_map(|root| &root.members));
            let before = self.written(&admitted);
            let is_given_up = between.iter().any(|root| root.gives_up == Some(member.id));
            let is_out = self.is_touched(member.id, written) && !self.has(Bug::AdmitsWithoutValidation)
                || self.is_touched(member.id, before) && !self.has(Bug::IgnoresEarlierMembers)
                || is_given_up && !self.has(Bug::AdmitsAfterARollback);
            if !is_out {
                admitted.push(member);
            }
        }
        admitted
    }

    fn own(&self, writer: &Writer, index: usize) -> Intent {
        Intent { id: index as u8, validated: writer.validated, last_version: writer.queued_until }
    }

    /// `wait_in_queue`: a writer that does not know whether its intent exists commits without the queue.
    fn intend(&self, state: &mut State, index: usize, delivery: Delivery) {
        let previous = state.latest();
        let writer = &mut state.writers[index];
        writer.queued_until = writer.validated + self.queued_versions;
        let intent = self.own(writer, index);
        writer.has_intent = delivery == Delivery::Answered;
        writer.phase = if writer.has_intent { Phase::Waiting } else { Phase::Leading { previous, guests: Vec::new() } };
        match delivery {
            Delivery::Answered | Delivery::ReplyLost => drop(state.intents.insert(intent)),
            Delivery::Late => drop(state.late_intents.insert(intent)),
            Delivery::RequestLost | Delivery::Refused => {}
        }
        state.budget.spend(delivery);
    }

    fn look(&self, state: &mut State, index: usize) {
        let own = self.own(&state.writers[index], index);
        if state.versions_of(own.id, own.validated).next().is_some() {
            state.intents.remove(&own);
            state.writers[index].has_intent = false;
            state.writers[index].phase = Phase::CatchingUp;
        }
    }

    fn gather(&self, state: &mut State, index: usize, is_behind: bool) {
        let own = self.own(&state.writers[index], index);
        let previous = if is_behind { own.validated } else { state.latest() };
        let may_come = |guest: &&Intent| {
            **guest != own && (guest.last_version > previous || self.has(Bug::AdmitsAfterTheLastVersion))
        };
        let guests = state.intents.iter().filter(may_come).copied().collect();
        state.writers[index].phase = Phase::Leading { previous, guests };
    }

    fn root_of(&self, state: &State, index: usize, previous: u8, guests: &[Intent]) -> Root {
        let writer = &state.writers[index];
        let group = [self.own(writer, index)].into_iter().chain(guests.iter().copied()).collect();
        let members = self.admit(state, previous, group);
        Root { commit: (index as u8, writer.attempt), members, gives_up: None }
    }

    fn put(&self, state: &mut State, index: usize, delivery: Delivery) {
        let Phase::Leading { previous, guests } = state.writers[index].phase.clone() else { return };
        let root = self.root_of(state, index, previous, &guests);
        let version = previous + 1;
        if root.members.is_empty() {
            state.writers[index].phase = Phase::Leaving { version: previous, guests };
            return;
        }
        let was_created = match delivery {
            Delivery::Answered | Delivery::ReplyLost => state.create(version, root),
            Delivery::RequestLost | Delivery::Refused => false,
            Delivery::Late => {
                state.late_roots.insert((version, root));
                false
            }
        };
        state.budget.spend(delivery);
        let writer = &mut state.writers[index];
        writer.tries += 1;
        writer.phase = if delivery == Delivery::Answered && was_created {
            Phase::Leaving { version, guests }
        } else {
            Phase::ReadingBack { previous, guests }
        };
    }

    fn read_back(&self, state: &mut State, index: usize) {
        let Phase::ReadingBack { previous, guests } = state.writers[index].phase.clone() else { return };
        let writer = &mut state.writers[index];
        writer.phase = if usize::from(previous) < state.chain.len() {
            Phase::Leaving { version: previous + 1, guests }
        } else if writer.tries < MAX_TRIES {
            Phase::Leading { previous, guests }
        } else {
            Phase::Done(Answer::Unknown)
        };
    }

    /// `Intents::leave`: deletes the own intent and completed intents, unless the deletion fails. The writer gets its
    /// answer from its own root, or from a read of the new versions.
    fn leave(&self, state: &mut State, index: usize, deletes: bool) {
        let Phase::Leaving { version, guests } = state.writers[index].phase.clone() else { return };
        let own = self.own(&state.writers[index], index);
        let is_mine = |root: &&Root| root.commit == (own.id, state.writers[index].attempt);
        let root = usize::from(version).checked_sub(1).and_then(|slot| state.chain.get(slot)).filter(is_mine);
        let holds = |id: u8| root.is_some_and(|root| root.members.iter().any(|member| member.id == id));
        let is_committed = holds(own.id);
        if deletes {
            let is_done = |guest: &&Intent| holds(guest.id) || guest.last_version <= version;
            let done: Vec<Intent> = guests.iter().filter(is_done).copied().chain([own]).collect();
            state.intents.retain(|intent| !done.contains(intent));
        } else {
            state.budget.faults -= 1;
        }
        let writer = &mut state.writers[index];
        writer.has_intent = false;
        writer.phase = if is_committed { Phase::Done(Answer::Committed(version)) } else { Phase::CatchingUp };
    }

    /// `Transaction::catch_up`: compares the transaction with the versions since its validation, up to the latest.
    fn catch_up(&self, state: &mut State, index: usize) {
        let (id, latest) = (index as u8, state.latest());
        let validated = state.writers[index].validated;
        let own = state.versions_of(id, validated).next().filter(|_| !self.has(Bug::DoesNotSearchForItself));
        let between = &state.chain[usize::from(validated)..];
        let written = self.written(between.iter().flat_map(|root| &root.members));
        let is_touched = self.is_touched(id, written);
        let writer = &mut state.writers[index];
        writer.phase = match own {
            Some(version) => Phase::Done(Answer::Committed(version)),
            None if is_touched => Phase::Done(Answer::Refused),
            None => Phase::Ready,
        };
        writer.validated = latest;
        writer.attempt += 1;
        writer.tries = 0;
    }

    /// `TransactionState::fail`: the limits are reached after lost races.
    fn give_up(&self, state: &mut State, index: usize) {
        let writer = &mut state.writers[index];
        let is_certain = writer.queued_until <= writer.validated || self.has(Bug::ReportsQueuedAsRefused);
        writer.phase = Phase::Done(if is_certain { Answer::Refused } else { Answer::Unknown });
    }

    /// `Transaction::rollback`: a process with an unknown outcome reads all versions, and creates the next one with the
    /// record.
    fn roll_back(&self, state: &mut State, index: usize) {
        state.budget.rollbacks -= 1;
        let id = index as u8;
        let found = state.versions_of(id, 0).next();
        state.writers[index].phase = Phase::Done(match found {
            Some(version) => Answer::Committed(version),
            None => {
                if !self.has(Bug::RollsBackWithoutARecord) {
                    let commit = (id, state.writers[index].attempt + 100);
                    let version = state.latest() + 1;
                    state.create(version, Root { commit, members: Vec::new(), gives_up: Some(id) });
                }
                Answer::RolledBack
            }
        });
    }
}

pub const TWICE: &str = "no transaction is in two roots";
pub const PRESENT: &str = "an acknowledged transaction is in its version";
pub const ABSENT: &str = "a refused transaction is in no version";
pub const UNSEEN: &str = "a transaction is validated against all earlier writes";
pub const BY_ANOTHER: &str = "committed by another writer";
pub const ORPHAN: &str = "committed after its owner died";
pub const LATER: &str = "committed after its owner reported an unknown outcome";
pub const SHARED: &str = "a root with several transactions";
pub const GUESTS_ONLY: &str = "a root without the transaction of its leader";
pub const REFUSED: &str = "refused";
pub const ROLLED_BACK: &str = "a rolled back transaction is in no version";
pub const ROLLED_BACK_ONCE: &str = "a rollback";
pub const TOO_LATE: &str = "a rollback after the commit";

fn holds(state: &State, id: u8) -> bool {
    state.versions_of(id, 0).next().is_some()
}

fn any_answer(state: &State, wanted: Answer, is_in: bool) -> bool {
    let writers = (0..).zip(&state.writers);
    writers.into_iter().any(|(id, writer)| writer.phase == Phase::Done(wanted) && holds(state, id) == is_in)
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let writer =
            Writer { phase: Phase::Ready, validated: 0, queued_until: 0, attempt: 0, tries: 0, has_intent: false };
        vec![State {
            writers: vec![writer; self.works.len()],
            chain: Vec::new(),
            intents: BTreeSet::new(),
            late_roots: BTreeSet::new(),
            late_intents: BTreeSet::new(),
            budget: self.budget,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, writer) in state.writers.iter().enumerate() {
            match &writer.phase {
                Phase::Ready if writer.attempt >= self.max_attempts => actions.push(Action::GiveUp(index)),
                Phase::Ready => {
                    actions.push(Action::GoAlone(index));
                    actions.extend(state.budget.deliveries().map(|delivery| Action::Intend(index, delivery)));
                }
                Phase::Waiting => {
                    if state.versions_of(index as u8, writer.validated).next().is_some() {
                        actions.push(Action::Look(index));
                    }
                    actions.push(Action::Gather { writer: index, is_behind: false });
                    if writer.validated < state.latest() {
                        actions.push(Action::Gather { writer: index, is_behind: true });
                    }
                }
                Phase::Leading { .. } => {
                    actions.extend(state.budget.deliveries().map(|delivery| Action::Put(index, delivery)));
                }
                Phase::ReadingBack { .. } => actions.push(Action::ReadBack(index)),
                Phase::Leaving { .. } => {
                    actions.push(Action::Leave { writer: index, deletes: true });
                    if state.budget.faults > 0 {
                        actions.push(Action::Leave { writer: index, deletes: false });
                    }
                }
                Phase::Done(Answer::Unknown) if state.budget.rollbacks > 0 => {
                    actions.push(Action::RollBack(index));
                }
                Phase::CatchingUp => actions.extend([Action::CatchUp(index), Action::GiveUp(index)]),
                Phase::Done(_) => {}
            }
            if !matches!(writer.phase, Phase::Ready | Phase::Done(_)) && state.budget.crashes > 0 {
                actions.push(Action::Crash(index));
            }
        }
        actions.extend((0..state.late_roots.len()).map(Action::LandRoot));
        actions.extend(state.late_intents.iter().copied().map(Action::LandIntent));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Intend(index, delivery) => self.intend(&mut state, index, delivery),
            Action::GoAlone(index) => {
                let previous = state.latest();
                state.writers[index].phase = Phase::Leading { previous, guests: Vec::new() };
            }
            Action::Look(index) => self.look(&mut state, index),
            Action::Gather { writer, is_behind } => self.gather(&mut state, writer, is_behind),
            Action::Put(index, delivery) => self.put(&mut state, index, delivery),
            Action::ReadBack(index) => self.read_back(&mut state, index),
            Action::Leave { writer, deletes } => self.leave(&mut state, writer, deletes),
            Action::CatchUp(index) => self.catch_up(&mut state, index),
            Action::GiveUp(index) => self.give_up(&mut state, index),
            Action::RollBack(index) => self.roll_back(&mut state, index),
            Action::Crash(index) => {
                state.budget.crashes -= 1;
                state.writers[index].phase = Phase::Done(Answer::None);
            }
            Action::LandRoot(number) => {
                let late = state.late_roots.iter().nth(number).cloned()?;
                state.late_roots.remove(&late);
                state.create(late.0, late.1);
            }
            Action::LandIntent(intent) => {
                state.late_intents.remove(&intent);
                state.intents.insert(intent);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TWICE, |model: &Queue, state: &State| {
                (0..model.works.len() as u8).all(|id| {
                    let members = state.chain.iter().flat_map(|root| &root.members);
                    members.filter(|member| member.id == id).count() <= 1
                })
            }),
            Property::always(PRESENT, |_, state: &State| {
                (0..).zip(&state.writers).all(|(id, writer)| match writer.phase {
                    Phase::Done(Answer::Committed(version)) => {
                        state.versions_of(id, version - 1).next() == Some(version)
                    }
                    _ => true,
                })
            }),
            Property::always(ABSENT, |_, state: &State| !any_answer(state, Answer::Refused, true)),
            Property::always(ROLLED_BACK, |_, state: &State| !any_answer(state, Answer::RolledBack, true)),
            Property::always(UNSEEN, |model: &Queue, state: &State| {
                let mut now = [0; KEYS];
                state.chain.iter().flat_map(|root| &root.members).all(|member| {
                    let work = model.works[usize::from(member.id)];
                    let seen = model.appended(state, member.validated);
                    let keys = [Some(work.key), work.watched];
                    let is_seen = keys.into_iter().flatten().all(|key| seen[key] == now[key]);
                    now[work.key] |= bit(member.id);
                    is_seen
                })
            }),
            Property::sometimes(ROLLED_BACK_ONCE, |_, state: &State| any_answer(state, Answer::RolledBack, false)),
            Property::sometimes(TOO_LATE, |model: &Queue, state: &State| {
                state.budget.rollbacks < model.budget.rollbacks
                    && state.chain.iter().all(|root| root.gives_up.is_none())
            }),
            Property::sometimes(BY_ANOTHER, |_, state: &State| {
                let is_guest = |root: &Root| root.members.iter().any(|member| member.id != root.commit.0);
                state.chain.iter().any(is_guest)
            }),
            Property::sometimes(ORPHAN, |_, state: &State| any_answer(state, Answer::None, true)),
            Property::sometimes(LATER, |_, state: &State| any_answer(state, Answer::Unknown, true)),
            Property::sometimes(SHARED, |_, state: &State| state.chain.iter().any(|root| root.members.len() > 1)),
            Property::sometimes(GUESTS_ONLY, |_, state: &State| {
                let is_guests_only = |root: &Root| root.members.iter().all(|member| member.id != root.commit.0);
                state.chain.iter().any(|root| root.gives_up.is_none() && is_guests_only(root))
            }),
            Property::sometimes(REFUSED, |_, state: &State| any_answer(state, Answer::Refused, false)),
        ]
    }
}

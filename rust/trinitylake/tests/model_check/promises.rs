//! Properties that must hold in every state of the model, and events that must occur in some state.

use std::collections::BTreeSet;

use stateright::Property;

use crate::state::{Answer, Broken, Commits, Kind, Phase, Root, State, Tree, Why, bit};

pub const TWO_WINNERS: &str = "a version has one winner";
pub const LOST_UPDATE: &str = "no update is lost";
pub const TWICE: &str = "an id is applied at most once";
pub const PRESENT: &str = "an acknowledged transaction is in its version";
pub const ABSENT: &str = "a refused transaction is in no version";
pub const ROLLED_BACK: &str = "a rolled back transaction is in no version";
pub const GAP: &str = "versions are contiguous";
pub const MISLED: &str = "every reader finds the latest version";

pub const ALL_COMMIT: &str = "all commit";
pub const CONFLICT: &str = "a conflict";
pub const REBASE: &str = "a rebase";
pub const DOUBT: &str = "an unknown outcome is settled";
pub const OVERTAKEN: &str = "the base of a writer expires";
pub const VOID: &str = "a void root below the boundary";
pub const UNACKNOWLEDGED: &str = "committed, and reported as an error";
pub const CONTINUED: &str = "another process continued the transaction";
pub const SPOILED: &str = "a spoiled hint";
pub const ROLLED_BACK_ONCE: &str = "a rollback";
pub const TOO_LATE: &str = "a rollback after the commit";
pub const STOPPED: &str = "a commit after a rollback is refused";
pub const DENIED: &str = "a denial is the final result";

pub fn promises() -> Vec<Property<Commits>> {
    vec![
        Property::always(TWO_WINNERS, |_, state: &State| state.is_broken != Some(Broken::TwoWinners)),
        Property::always(LOST_UPDATE, |_, state: &State| {
            let mut before = Tree::default();
            state.chain.iter().all(|root| {
                let mut expected = before;
                expected.appended[root.key] |= if root.is_rollback { 0 } else { bit(root.id) };
                before = root.tree;
                expected.appended == root.tree.appended
            })
        }),
        Property::always(TWICE, |_, state: &State| {
            let commits: Vec<u8> = commits(state).map(|root| root.id).collect();
            commits.iter().collect::<BTreeSet<_>>().len() == commits.len()
        }),
        Property::always(PRESENT, |model: &Commits, state: &State| {
            state.writers.iter().zip(&model.works).all(|(writer, work)| match writer.phase {
                Phase::Done(Answer::Committed(version)) => state
                    .chain
                    .get(usize::from(version).wrapping_sub(1))
                    .is_some_and(|root| root.id == work.id && !root.is_rollback),
                _ => true,
            })
        }),
        Property::always(ABSENT, |model: &Commits, state: &State| {
            state.writers.iter().enumerate().zip(&model.works).all(|((index, writer), work)| {
                // Another process that resumed the same transaction may have committed it.
                !matches!(writer.phase, Phase::Done(Answer::Refused(_)))
                    || !commits(state)
                        .any(|root| root.commit.0 == index as u8 || (root.id == work.id && work.kind == Kind::Plain))
                    || writer.attempt > 0 && work.kind != Kind::Plain
            })
        }),
        Property::always(ROLLED_BACK, |model: &Commits, state: &State| {
            state.writers.iter().zip(&model.works).all(|(writer, work)| {
                writer.phase != Phase::Done(Answer::RolledBack) || !commits(state).any(|root| root.id == work.id)
            })
        }),
        Property::always(GAP, |_, state: &State| {
            let is_there = |version: &u8| state.exists(*version);
            (state.boundary..=state.latest()).all(|version| is_there(&version))
                && !(state.latest() + 1..=state.roots.len() as u8).any(|version| is_there(&version))
        }),
        Property::always(MISLED, |_, state: &State| state.is_broken != Some(Broken::Misled)),
        Property::sometimes(ALL_COMMIT, |_, state: &State| {
            state.writers.iter().all(|writer| matches!(writer.phase, Phase::Done(Answer::Committed(_))))
        }),
        Property::sometimes(CONFLICT, |_, state: &State| is_any(state, Answer::Refused(Why::Conflict))),
        Property::sometimes(REBASE, |model: &Commits, state: &State| {
            let works = state.writers.iter().zip(&model.works);
            works.into_iter().any(|(writer, work)| {
                // A writer with a generated id does not continue after a crash.
                let is_committed = matches!(writer.phase, Phase::Done(Answer::Committed(_)));
                work.kind == Kind::Plain && is_committed && writer.attempt > 0
            })
        }),
        Property::sometimes(DOUBT, |_, state: &State| {
            state.writers.iter().any(|writer| writer.phase == Phase::Confirming { was_in_doubt: true })
        }),
        Property::sometimes(OVERTAKEN, |_, state: &State| is_any(state, Answer::Refused(Why::Expired))),
        Property::sometimes(VOID, |_, state: &State| {
            let mut roots = state.roots.iter().zip(&state.chain);
            roots.any(|(root, winner)| root.is_some_and(|root| root.commit != winner.commit))
        }),
        Property::sometimes(UNACKNOWLEDGED, |_, state: &State| {
            state.chain.iter().any(|root| {
                let answer = state.writers[usize::from(root.commit.0)].phase;
                matches!(answer, Phase::Done(Answer::Unknown | Answer::None))
            })
        }),
        Property::sometimes(CONTINUED, |_, state: &State| is_any(state, Answer::Refused(Why::ContinuedElsewhere))),
        Property::sometimes(ROLLED_BACK_ONCE, |_, state: &State| is_any(state, Answer::RolledBack)),
        Property::sometimes(TOO_LATE, |model: &Commits, state: &State| {
            let is_asked = state.budget.rollbacks < model.budget.rollbacks;
            is_asked && !state.chain.iter().any(|root| root.is_rollback)
        }),
        Property::sometimes(STOPPED, |_, state: &State| is_any(state, Answer::Refused(Why::RolledBack))),
        Property::sometimes(DENIED, |_, state: &State| is_any(state, Answer::Refused(Why::Denied))),
        Property::sometimes(SPOILED, |_, state: &State| {
            state.latest() > 1 && state.hint.is_none_or(|hint| hint > state.latest())
        }),
    ]
}

/// The roots of the history that commit a transaction.
fn commits(state: &State) -> impl Iterator<Item = &Root> {
    state.chain.iter().filter(|root| !root.is_rollback)
}

fn is_any(state: &State, answer: Answer) -> bool {
    state.writers.iter().any(|writer| writer.phase == Phase::Done(answer))
}

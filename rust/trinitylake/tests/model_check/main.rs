//! A model of the commit protocol, and every order in which its steps can happen.
//!
//! Writers race for roots on a store that loses requests, loses replies and does some writes late; they
//! crash and come again, are overtaken by an expiry, and find the latest version by a hint that may say
//! anything. The model is small: a tree is, for each key, the set of ids that were appended. What the code
//! does in each step is told beside it, so that a change there can be followed here.
//!
//! Each named [`Bug`] is a step left out. Every one must yield a counterexample, or the properties would say
//! nothing. `TRINITYLAKE_DEEP=1` lets all kinds of trouble meet in one history.

mod promises;
mod protocol;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use promises::{
    ABSENT, ALL_COMMIT, CONFLICT, DOUBT, LOST_UPDATE, MISLED, OVERTAKEN, PRESENT, REBASE, SPOILED, TWICE,
    TWO_WINNERS, UNTOLD, VOID, WENT_ON,
};
use protocol::{Action, Budget, Bug, Commits, Kind, State, Work, work};

const RACE: [Work; 3] = [work(Kind::Plain, 0, 0), work(Kind::Plain, 1, 0), work(Kind::Plain, 2, 1)];
const DISJOINT: [Work; 3] = [work(Kind::Plain, 0, 0), work(Kind::Plain, 1, 1), work(Kind::Plain, 2, 2)];
const RESUMERS: [Work; 3] = [work(Kind::Resumed, 0, 0), work(Kind::Resumed, 0, 0), work(Kind::Plain, 1, 1)];
const CHOSEN: [Work; 3] = [work(Kind::Chosen, 0, 0), work(Kind::Chosen, 0, 0), work(Kind::Plain, 1, 1)];

/// What may go wrong in one history. Each kind of trouble makes the model many times as large, so that
/// by default not all of them happen in the same histories.
const LOST_AND_LATE: Budget = Budget { faults: 1, late: 1, crashes: 0, expiries: 1, spoiled_hints: 0 };
const CRASHES: Budget = Budget { faults: 1, late: 0, crashes: 1, expiries: 1, spoiled_hints: 0 };
const SPOILED_HINTS: Budget = Budget { faults: 0, late: 1, crashes: 0, expiries: 1, spoiled_hints: 1 };
const DEEP: Budget = Budget { faults: 2, late: 1, crashes: 1, expiries: 1, spoiled_hints: 1 };

fn is_deep() -> bool {
    std::env::var("TRINITYLAKE_DEEP").is_ok()
}

/// All states of a model, in which these things must happen; returns how many there are.
fn check(works: &[Work], budget: Budget, must_happen: &[&str]) -> usize {
    let budget = if is_deep() { DEEP } else { budget };
    let checker = Commits::new(works, budget, None).checker().threads(2).spawn_bfs().join();
    let discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match property.expectation {
            Expectation::Sometimes if must_happen.contains(&property.name) => {
                assert!(found.is_some(), "never: {}", property.name);
            }
            Expectation::Sometimes => {}
            _ => assert!(found.is_none(), "{}: {}", property.name, steps(found)),
        }
    }
    let states = checker.unique_state_count();
    println!("{budget:?}: {states} states, {} steps, depth {}", checker.state_count(), checker.max_depth());
    states
}

fn steps(path: Option<&Path<State, Action>>) -> String {
    let actions = path.map(|path| path.clone().into_actions()).unwrap_or_default();
    actions.iter().map(|action| format!("\n  {action:?}")).collect()
}

#[test]
fn three_writers_race() {
    let must_happen = [ALL_COMMIT, CONFLICT, REBASE, DOUBT, OVERTAKEN, VOID, UNTOLD];
    // With two on one key not all can commit; with three keys there is no conflict.
    let states = check(&RACE, LOST_AND_LATE, &must_happen[1..])
        + check(&DISJOINT, LOST_AND_LATE, &[ALL_COMMIT, REBASE, DOUBT, OVERTAKEN, VOID, UNTOLD])
        + check(&RACE, SPOILED_HINTS, &[CONFLICT, REBASE, SPOILED]);
    assert!(states > 100_000, "{states}");
}

#[test]
fn two_go_on_with_one_saved_transaction() {
    let states = check(&RESUMERS, LOST_AND_LATE, &[REBASE, DOUBT, UNTOLD, WENT_ON])
        + check(&RESUMERS, CRASHES, &[REBASE, DOUBT, UNTOLD, WENT_ON]);
    assert!(states > 10_000, "{states}");
}

#[test]
fn an_id_is_committed_again_until_it_is_told_to_be() {
    let states = check(&CHOSEN, LOST_AND_LATE, &[ALL_COMMIT, REBASE, DOUBT, UNTOLD])
        + check(&CHOSEN, CRASHES, &[ALL_COMMIT, REBASE, DOUBT, UNTOLD]);
    assert!(states > 100_000, "{states}");
}

/// The bug breaks that promise, or the model could not see it.
fn breaks(bug: Bug, works: &[Work], budget: Budget, promise: &'static str) {
    let model = Commits::new(works, budget, Some(bug));
    let wanted = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    let path = checker.discovery(promise);
    assert!(path.is_some(), "{bug:?} goes unnoticed in {} states", checker.unique_state_count());
    println!("{bug:?} breaks \"{promise}\":{}", steps(path.as_ref()));
}

#[test]
fn a_step_left_out_breaks_a_promise() {
    breaks(Bug::OverwritesInsteadOfCreating, &RACE, LOST_AND_LATE, TWO_WINNERS);
    breaks(Bug::OverwritesInsteadOfCreating, &RACE, LOST_AND_LATE, PRESENT);
    breaks(Bug::TakesErrorsForFailures, &RACE, LOST_AND_LATE, TWICE);
    breaks(Bug::TakesExistsForLost, &RACE, LOST_AND_LATE, ABSENT);
    breaks(Bug::RebasesWithoutLooking, &RACE, LOST_AND_LATE, LOST_UPDATE);
    breaks(Bug::DoesNotRecordIds, &RESUMERS, LOST_AND_LATE, TWICE);
    breaks(Bug::DoesNotRecordIds, &CHOSEN, CRASHES, TWICE);
    breaks(Bug::DoesNotAskForTheBoundary, &RACE, LOST_AND_LATE, PRESENT);
    breaks(Bug::BelievesTheHint, &RACE, SPOILED_HINTS, MISLED);
    breaks(Bug::DoesNotListWithoutAHint, &RACE, SPOILED_HINTS, MISLED);
    breaks(Bug::BelievesAnExpiredRoot, &DISJOINT, LOST_AND_LATE, ABSENT);
    breaks(Bug::ValidatesBelowTheBoundary, &RACE, LOST_AND_LATE, LOST_UPDATE);
}

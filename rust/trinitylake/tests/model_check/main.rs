//! A model of the commit protocol, and every order in which its steps can happen.
//!
//! Writers race for roots on a store that loses requests, loses replies and does some writes late; they
//! crash and come again, are overtaken by an expiry, and find the latest version by a hint that may say
//! anything. The model is small: a tree is, for each key, the set of ids that were appended. What the code
//! does in each step is named next to it, so that a change there can be followed here.
//!
//! The commit queue has a model of its own (`queue`).
//!
//! Each named [`Bug`] is a step left out. Every one must yield a counterexample, or the properties would say
//! nothing. `TRINITYLAKE_DEEP=1` lets one fault more happen in each history.

mod promises;
mod protocol;
mod queue;
mod queue_state;
mod state;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use promises::{
    ABSENT, ALL_COMMIT, CONFLICT, DENIED, DOUBT, GIVEN_UP, LOST_UPDATE, MISLED, OVERTAKEN, PRESENT, REBASE,
    ROLLED_BACK, SPOILED, STOPPED, TOO_LATE, TWICE, TWO_WINNERS, UNTOLD, VOID, WENT_ON,
};
use queue_state::Queue;
use state::{Budget, Bug, Commits, Kind, Work, work};

const RACE: [Work; 3] = [work(Kind::Plain, 0, 0), work(Kind::Plain, 1, 0), work(Kind::Plain, 2, 1)];
const DISJOINT: [Work; 3] = [work(Kind::Plain, 0, 0), work(Kind::Plain, 1, 1), work(Kind::Plain, 2, 2)];
const RESUMERS: [Work; 3] = [work(Kind::Resumed, 0, 0), work(Kind::Resumed, 0, 0), work(Kind::Plain, 1, 1)];
const CHOSEN: [Work; 3] = [work(Kind::Chosen, 0, 0), work(Kind::Chosen, 0, 0), work(Kind::Plain, 1, 1)];

/// What may go wrong in one history. Each kind of trouble makes the model many times as large, so that
/// by default not all of them happen in the same histories.
const LOST_AND_LATE: Budget =
    Budget { faults: 1, late: 1, crashes: 0, expiries: 1, spoiled_hints: 0, rollbacks: 0 };
const CRASHES: Budget =
    Budget { faults: 1, late: 0, crashes: 1, expiries: 1, spoiled_hints: 0, rollbacks: 0 };
const SPOILED_HINTS: Budget =
    Budget { faults: 0, late: 1, crashes: 0, expiries: 1, spoiled_hints: 1, rollbacks: 0 };
const ROLLBACKS: Budget =
    Budget { faults: 1, late: 1, crashes: 0, expiries: 0, spoiled_hints: 0, rollbacks: 2 };
const LATE_AND_DENIED: Budget =
    Budget { faults: 1, late: 1, crashes: 0, expiries: 0, spoiled_hints: 0, rollbacks: 0 };

/// How many faults more a deep run has.
fn more_faults() -> u8 {
    u8::from(std::env::var("TRINITYLAKE_DEEP").is_ok())
}

/// All states of a model, in which these things must happen; returns how many there are.
fn check(works: &[Work], budget: Budget, must_happen: &[&str]) -> usize {
    let budget = Budget { faults: budget.faults + more_faults(), ..budget };
    println!("{budget:?}");
    check_all(Commits::new(works, budget, None), must_happen)
}

fn check_all<M>(model: M, must_happen: &[&str]) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().threads(2).spawn_bfs().join();
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
    println!("{states} states, {} steps, depth {}", checker.state_count(), checker.max_depth());
    states
}

fn steps<State, Action>(path: Option<&Path<State, Action>>) -> String
where
    State: Clone + PartialEq,
    Action: Clone + Debug + PartialEq,
{
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

/// Two hold the same saved transaction, and each may commit it or roll it back, while requests are late, lost and
/// denied.
#[test]
fn of_a_commit_and_a_rollback_one_counts_for_everybody() {
    let must_happen = [GIVEN_UP, TOO_LATE, STOPPED, DENIED, REBASE, DOUBT];
    let states = check(&RESUMERS, ROLLBACKS, &must_happen);
    assert!(states > 10_000, "{states}");
    let states =
        check_queue(&OTHER_KEYS, QUEUE_ROLLBACKS, &[queue::GIVEN_UP, queue::TOO_LATE, queue::CARRIED]);
    assert!(states > 10_000, "{states}");
}

/// The model, which has a bug, breaks that promise, or it could not see it.
fn breaks<M>(bug: impl Debug, model: M, promise: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let wanted = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    let path = checker.discovery(promise);
    assert!(path.is_some(), "{bug:?} goes unnoticed in {} states", checker.unique_state_count());
    println!("{bug:?} breaks \"{promise}\":{}", steps(path.as_ref()));
}

fn race_breaks(bug: Bug, works: &[Work], budget: Budget, promise: &'static str) {
    breaks(bug, Commits::new(works, budget, Some(bug)), promise);
}

#[test]
fn a_step_left_out_breaks_a_promise() {
    race_breaks(Bug::OverwritesInsteadOfCreating, &RACE, LOST_AND_LATE, TWO_WINNERS);
    race_breaks(Bug::OverwritesInsteadOfCreating, &RACE, LOST_AND_LATE, PRESENT);
    race_breaks(Bug::TakesErrorsForFailures, &RACE, LOST_AND_LATE, TWICE);
    race_breaks(Bug::TakesExistsForLost, &RACE, LOST_AND_LATE, ABSENT);
    race_breaks(Bug::RebasesWithoutLooking, &RACE, LOST_AND_LATE, LOST_UPDATE);
    race_breaks(Bug::DoesNotRecordIds, &RESUMERS, LOST_AND_LATE, TWICE);
    race_breaks(Bug::DoesNotRecordIds, &CHOSEN, CRASHES, TWICE);
    race_breaks(Bug::DoesNotAskForTheBoundary, &RACE, LOST_AND_LATE, PRESENT);
    race_breaks(Bug::BelievesTheHint, &RACE, SPOILED_HINTS, MISLED);
    race_breaks(Bug::DoesNotListWithoutAHint, &RACE, SPOILED_HINTS, MISLED);
    race_breaks(Bug::BelievesAnExpiredRoot, &DISJOINT, LOST_AND_LATE, ABSENT);
    race_breaks(Bug::ValidatesBelowTheBoundary, &RACE, LOST_AND_LATE, LOST_UPDATE);
    race_breaks(Bug::RollsBackByAFile, &RESUMERS, ROLLBACKS, ROLLED_BACK);
    race_breaks(Bug::RollsBackWithoutLooking, &RESUMERS, ROLLBACKS, ROLLED_BACK);
    race_breaks(Bug::CommitsPastARollback, &RESUMERS, ROLLBACKS, ROLLED_BACK);
    race_breaks(Bug::BelievesADenial, &RACE, LATE_AND_DENIED, ABSENT);
}

const SAME_KEY: [queue_state::Work; 3] = [appends(0), appends(0), appends(1)];
const OTHER_KEYS: [queue_state::Work; 3] = [appends(0), appends(1), appends(2)];
/// Each of two watches what the other writes.
const WATCHERS: [queue_state::Work; 3] = [watches(0, 1), watches(1, 0), appends(2)];

const fn appends(key: usize) -> queue_state::Work {
    queue_state::Work { key, watched: None }
}

const fn watches(key: usize, watched: usize) -> queue_state::Work {
    queue_state::Work { key, watched: Some(watched) }
}

const QUEUE_FAULTS: queue_state::Budget =
    queue_state::Budget { faults: 1, late: 0, crashes: 0, rollbacks: 0 };
const QUEUE_LATE: queue_state::Budget = queue_state::Budget { faults: 0, late: 1, crashes: 0, rollbacks: 0 };
const QUEUE_CRASHES: queue_state::Budget =
    queue_state::Budget { faults: 0, late: 0, crashes: 1, rollbacks: 0 };
const QUEUE_ROLLBACKS: queue_state::Budget =
    queue_state::Budget { faults: 0, late: 1, crashes: 0, rollbacks: 1 };

fn queue(works: &[queue_state::Work], budget: queue_state::Budget, bug: Option<queue_state::Bug>) -> Queue {
    Queue { works: works.to_vec(), queued_versions: 2, max_attempts: 2, budget, bug }
}

fn check_queue(works: &[queue_state::Work], budget: queue_state::Budget, must_happen: &[&str]) -> usize {
    let budget = queue_state::Budget { faults: budget.faults + more_faults(), ..budget };
    println!("{budget:?}");
    check_all(queue(works, budget, None), must_happen)
}

#[test]
fn who_waits_in_the_queue_is_carried_once_or_never() {
    let all = [queue::CARRIED, queue::SHARED, queue::GUESTS_ONLY, queue::REFUSED];
    let states = check_queue(&SAME_KEY, QUEUE_FAULTS, &all)
        + check_queue(&SAME_KEY, QUEUE_LATE, &all)
        + check_queue(&SAME_KEY, QUEUE_CRASHES, &[queue::CARRIED, queue::ORPHAN])
        + check_queue(&OTHER_KEYS, QUEUE_FAULTS, &[queue::CARRIED, queue::SHARED, queue::LATER])
        + check_queue(&WATCHERS, QUEUE_CRASHES, &[queue::CARRIED, queue::ORPHAN, queue::REFUSED]);
    assert!(states > 100_000, "{states}");
}

#[test]
fn a_step_left_out_of_the_queue_breaks_a_promise() {
    let breaks = |bug, works: &[queue_state::Work], promise| {
        breaks(bug, queue(works, QUEUE_FAULTS, Some(bug)), promise);
    };
    breaks(queue_state::Bug::CarriesWithoutLooking, &SAME_KEY, queue::UNSEEN);
    breaks(queue_state::Bug::CarriesWithoutLooking, &OTHER_KEYS, queue::TWICE);
    breaks(queue_state::Bug::ForgetsTheMembersBefore, &SAME_KEY, queue::UNSEEN);
    breaks(queue_state::Bug::GivesUpForCertain, &OTHER_KEYS, queue::ABSENT);
    breaks(queue_state::Bug::DoesNotLookForItself, &OTHER_KEYS, queue::ABSENT);
    breaks(queue_state::Bug::ForgetsWhatIsWatched, &WATCHERS, queue::UNSEEN);
}

#[test]
fn a_rollback_that_the_queue_does_not_heed_breaks_a_promise() {
    for bug in [queue_state::Bug::RollsBackByItself, queue_state::Bug::CarriesPastARollback] {
        // So many versions that one is left for the intent after that of the rollback.
        let model = Queue { queued_versions: 3, ..queue(&OTHER_KEYS, QUEUE_ROLLBACKS, Some(bug)) };
        breaks(bug, model, queue::ROLLED_BACK);
    }
}

#[test]
fn who_gives_up_relies_on_the_last_version_of_his_intent() {
    let bug = queue_state::Bug::CarriesPastTheLastVersion;
    let hasty = |bug| Queue { queued_versions: 1, max_attempts: 1, ..queue(&OTHER_KEYS, QUEUE_FAULTS, bug) };
    check_all(hasty(None), &[queue::REFUSED, queue::LATER]);
    breaks(bug, hasty(Some(bug)), queue::ABSENT);
}

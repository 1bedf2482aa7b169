//! Model check of the commit protocol: explores all orders of its steps.
//!
//! Writers race for roots on a store that loses requests, loses replies and applies some writes late. They crash and
//! restart, their base versions expire, and they search for the latest version with a hint that may contain any number.
//! The model is small: a tree contains, for each key, the set of ids that were appended. Each step names the function
//! that it models, so that a change of this function can be repeated in the model.
//!
//! The intent queue has a model of its own (`queue`).
//!
//! Each [`Bug`] omits one step of the protocol, and must violate a property: otherwise the properties would prove
//! nothing. `TRINITYLAKE_DEEP=1` allows one more fault per history.

mod promises;
mod protocol;
mod queue;
mod queue_state;
mod state;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use promises::{
    ABSENT, ALL_COMMIT, CONFLICT, CONTINUED, DENIED, DOUBT, LOST_UPDATE, MISLED, OVERTAKEN, PRESENT, REBASE,
    ROLLED_BACK, ROLLED_BACK_ONCE, SPOILED, STOPPED, TOO_LATE, TWICE, TWO_WINNERS, UNACKNOWLEDGED, VOID,
};
use queue_state::Queue;
use state::{Budget, Bug, Commits, Kind, Work, work};

const RACE: [Work; 3] = [work(Kind::Plain, 0, 0), work(Kind::Plain, 1, 0), work(Kind::Plain, 2, 1)];
const DISJOINT: [Work; 3] = [work(Kind::Plain, 0, 0), work(Kind::Plain, 1, 1), work(Kind::Plain, 2, 2)];
const RESUMERS: [Work; 3] = [work(Kind::Resumed, 0, 0), work(Kind::Resumed, 0, 0), work(Kind::Plain, 1, 1)];
const CHOSEN: [Work; 3] = [work(Kind::Chosen, 0, 0), work(Kind::Chosen, 0, 0), work(Kind::Plain, 1, 1)];

/// Numbers of faults in one history. Each type of fault multiplies the size of the model, so by default not all types
/// occur in the same history.
const LOST_AND_LATE: Budget = Budget { faults: 1, late: 1, crashes: 0, expiries: 1, spoiled_hints: 0, rollbacks: 0 };
const CRASHES: Budget = Budget { faults: 1, late: 0, crashes: 1, expiries: 1, spoiled_hints: 0, rollbacks: 0 };
const SPOILED_HINTS: Budget = Budget { faults: 0, late: 1, crashes: 0, expiries: 1, spoiled_hints: 1, rollbacks: 0 };
const ROLLBACKS: Budget = Budget { faults: 1, late: 1, crashes: 0, expiries: 0, spoiled_hints: 0, rollbacks: 2 };
const LATE_AND_DENIED: Budget = Budget { faults: 1, late: 1, crashes: 0, expiries: 0, spoiled_hints: 0, rollbacks: 0 };

/// Number of additional faults in a deep run.
fn more_faults() -> u8 {
    u8::from(std::env::var("TRINITYLAKE_DEEP").is_ok())
}

/// Checks all states of a model, in which each of `must_happen` must occur; returns the number of states.
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
    let must_happen = [ALL_COMMIT, CONFLICT, REBASE, DOUBT, OVERTAKEN, VOID, UNACKNOWLEDGED];
    // If two writers write the same key, not all can commit; if each writes its own key, no conflict occurs.
    let states = check(&RACE, LOST_AND_LATE, &must_happen[1..])
        + check(&DISJOINT, LOST_AND_LATE, &[ALL_COMMIT, REBASE, DOUBT, OVERTAKEN, VOID, UNACKNOWLEDGED])
        + check(&RACE, SPOILED_HINTS, &[CONFLICT, REBASE, SPOILED]);
    assert!(states > 100_000, "{states}");
}

#[test]
fn two_processes_resume_a_saved_transaction() {
    let states = check(&RESUMERS, LOST_AND_LATE, &[REBASE, DOUBT, UNACKNOWLEDGED, CONTINUED])
        + check(&RESUMERS, CRASHES, &[REBASE, DOUBT, UNACKNOWLEDGED, CONTINUED]);
    assert!(states > 10_000, "{states}");
}

#[test]
fn a_chosen_id_is_repeated_until_it_is_reported_as_committed() {
    let states = check(&CHOSEN, LOST_AND_LATE, &[ALL_COMMIT, REBASE, DOUBT, UNACKNOWLEDGED])
        + check(&CHOSEN, CRASHES, &[ALL_COMMIT, REBASE, DOUBT, UNACKNOWLEDGED]);
    assert!(states > 100_000, "{states}");
}

/// If two processes hold the same saved transaction, the first commit or rollback decides for both, even if requests
/// are late, lost or denied.
#[test]
fn a_commit_or_a_rollback_counts_for_all_processes() {
    let must_happen = [ROLLED_BACK_ONCE, TOO_LATE, STOPPED, DENIED, REBASE, DOUBT];
    let states = check(&RESUMERS, ROLLBACKS, &must_happen);
    assert!(states > 10_000, "{states}");
    let states =
        check_queue(&OTHER_KEYS, QUEUE_ROLLBACKS, &[queue::ROLLED_BACK_ONCE, queue::TOO_LATE, queue::BY_ANOTHER]);
    assert!(states > 10_000, "{states}");
}

/// Checks that the model with this bug violates the property; otherwise the model could not detect the bug.
fn breaks<M>(bug: impl Debug, model: M, promise: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let wanted = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    let path = checker.discovery(promise);
    assert!(path.is_some(), "{bug:?} is not detected in {} states", checker.unique_state_count());
    println!("{bug:?} breaks \"{promise}\":{}", steps(path.as_ref()));
}

fn race_breaks(bug: Bug, works: &[Work], budget: Budget, promise: &'static str) {
    breaks(bug, Commits::new(works, budget, Some(bug)), promise);
}

#[test]
fn an_omitted_step_violates_a_property() {
    race_breaks(Bug::OverwritesInsteadOfCreating, &RACE, LOST_AND_LATE, TWO_WINNERS);
    race_breaks(Bug::OverwritesInsteadOfCreating, &RACE, LOST_AND_LATE, PRESENT);
    race_breaks(Bug::TreatsErrorsAsNotCommitted, &RACE, LOST_AND_LATE, TWICE);
    race_breaks(Bug::TreatsExistsAsLost, &RACE, LOST_AND_LATE, ABSENT);
    race_breaks(Bug::RebasesWithoutValidation, &RACE, LOST_AND_LATE, LOST_UPDATE);
    race_breaks(Bug::DoesNotRecordIds, &RESUMERS, LOST_AND_LATE, TWICE);
    race_breaks(Bug::DoesNotRecordIds, &CHOSEN, CRASHES, TWICE);
    race_breaks(Bug::DoesNotReadTheBoundary, &RACE, LOST_AND_LATE, PRESENT);
    race_breaks(Bug::TrustsTheHint, &RACE, SPOILED_HINTS, MISLED);
    race_breaks(Bug::DoesNotListWithoutAHint, &RACE, SPOILED_HINTS, MISLED);
    race_breaks(Bug::TrustsAnExpiredRoot, &DISJOINT, LOST_AND_LATE, ABSENT);
    race_breaks(Bug::ValidatesBelowTheBoundary, &RACE, LOST_AND_LATE, LOST_UPDATE);
    race_breaks(Bug::RecordsRollbackInStateFile, &RESUMERS, ROLLBACKS, ROLLED_BACK);
    race_breaks(Bug::RollsBackWithoutValidation, &RESUMERS, ROLLBACKS, ROLLED_BACK);
    race_breaks(Bug::CommitsAfterARollback, &RESUMERS, ROLLBACKS, ROLLED_BACK);
    race_breaks(Bug::TrustsADenial, &RACE, LATE_AND_DENIED, ABSENT);
}

const SAME_KEY: [queue_state::Work; 3] = [appends(0), appends(0), appends(1)];
const OTHER_KEYS: [queue_state::Work; 3] = [appends(0), appends(1), appends(2)];
/// The first two writers watch the keys that the other one writes.
const WATCHERS: [queue_state::Work; 3] = [watches(0, 1), watches(1, 0), appends(2)];

const fn appends(key: usize) -> queue_state::Work {
    queue_state::Work { key, watched: None }
}

const fn watches(key: usize, watched: usize) -> queue_state::Work {
    queue_state::Work { key, watched: Some(watched) }
}

const QUEUE_FAULTS: queue_state::Budget = queue_state::Budget { faults: 1, late: 0, crashes: 0, rollbacks: 0 };
const QUEUE_LATE: queue_state::Budget = queue_state::Budget { faults: 0, late: 1, crashes: 0, rollbacks: 0 };
const QUEUE_CRASHES: queue_state::Budget = queue_state::Budget { faults: 0, late: 0, crashes: 1, rollbacks: 0 };
const QUEUE_ROLLBACKS: queue_state::Budget = queue_state::Budget { faults: 0, late: 1, crashes: 0, rollbacks: 1 };

fn queue(works: &[queue_state::Work], budget: queue_state::Budget, bug: Option<queue_state::Bug>) -> Queue {
    Queue { works: works.to_vec(), queued_versions: 2, max_attempts: 2, budget, bug }
}

fn check_queue(works: &[queue_state::Work], budget: queue_state::Budget, must_happen: &[&str]) -> usize {
    let budget = queue_state::Budget { faults: budget.faults + more_faults(), ..budget };
    println!("{budget:?}");
    check_all(queue(works, budget, None), must_happen)
}

#[test]
fn an_intent_is_committed_at_most_once() {
    let all = [queue::BY_ANOTHER, queue::SHARED, queue::GUESTS_ONLY, queue::REFUSED];
    let states = check_queue(&SAME_KEY, QUEUE_FAULTS, &all)
        + check_queue(&SAME_KEY, QUEUE_LATE, &all)
        + check_queue(&SAME_KEY, QUEUE_CRASHES, &[queue::BY_ANOTHER, queue::ORPHAN])
        + check_queue(&OTHER_KEYS, QUEUE_FAULTS, &[queue::BY_ANOTHER, queue::SHARED, queue::LATER])
        + check_queue(&WATCHERS, QUEUE_CRASHES, &[queue::BY_ANOTHER, queue::ORPHAN, queue::REFUSED]);
    assert!(states > 100_000, "{states}");
}

#[test]
fn an_omitted_step_of_the_queue_violates_a_property() {
    let breaks = |bug, works: &[queue_state::Work], promise| {
        breaks(bug, queue(works, QUEUE_FAULTS, Some(bug)), promise);
    };
    breaks(queue_state::Bug::AdmitsWithoutValidation, &SAME_KEY, queue::UNSEEN);
    breaks(queue_state::Bug::AdmitsWithoutValidation, &OTHER_KEYS, queue::TWICE);
    breaks(queue_state::Bug::IgnoresEarlierMembers, &SAME_KEY, queue::UNSEEN);
    breaks(queue_state::Bug::ReportsQueuedAsRefused, &OTHER_KEYS, queue::ABSENT);
    breaks(queue_state::Bug::DoesNotSearchForItself, &OTHER_KEYS, queue::ABSENT);
    breaks(queue_state::Bug::IgnoresWatchedReads, &WATCHERS, queue::UNSEEN);
}

#[test]
fn ignoring_a_rollback_in_the_queue_violates_a_property() {
    for bug in [queue_state::Bug::RollsBackWithoutARecord, queue_state::Bug::AdmitsAfterARollback] {
        // Large enough that an intent may still be admitted in the version after the rollback.
        let model = Queue { queued_versions: 3, ..queue(&OTHER_KEYS, QUEUE_ROLLBACKS, Some(bug)) };
        breaks(bug, model, queue::ROLLED_BACK);
    }
}

#[test]
fn ignoring_the_last_version_of_an_intent_violates_a_property() {
    let bug = queue_state::Bug::AdmitsAfterTheLastVersion;
    let hasty = |bug| Queue { queued_versions: 1, max_attempts: 1, ..queue(&OTHER_KEYS, QUEUE_FAULTS, bug) };
    check_all(hasty(None), &[queue::REFUSED, queue::LATER]);
    breaks(bug, hasty(Some(bug)), queue::ABSENT);
}

//! The winner of a claim, for all answers that a store may give.

use std::sync::Arc;

use super::*;
use crate::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::memory_files::MemoryFiles;
use trinitylake_base::environment::testing::TestEnvironment;

const PATH: &str = "root";
const DEADLINE_MILLIS: u64 = 30_000;

struct Race {
    files: Arc<MemoryFiles>,
    storage: FaultyStorage,
    environment: Arc<TestEnvironment>,
}

impl Race {
    fn new(plan: impl IntoIterator<Item = Fault>) -> Race {
        let files = MemoryFiles::shared();
        let storage = FaultyStorage::new(files.clone(), plan);
        Race { files, storage, environment: TestEnvironment::seeded(1) }
    }

    async fn claim(&self, bytes: &'static str) -> Claim {
        claim(&self.storage, self.environment.as_ref(), PATH, Bytes::from(bytes), DEADLINE_MILLIS).await
    }

    fn content(&self) -> Option<Bytes> {
        futures::executor::block_on(self.files.get(PATH)).ok()
    }

    fn assert_all_faults_fired(&self) {
        assert_eq!(self.storage.unfired(), []);
    }
}

fn assert_lost(claim: Claim, winner: &str) {
    assert!(matches!(&claim, Claim::Lost(found) if found == winner), "{claim:?}");
}

fn on_put(nth: u64, action: Action) -> Fault {
    Fault::new(Trigger::on(Verb::PutIfAbsent, nth), action)
}

fn on_get(nth: u64, action: Action) -> Fault {
    Fault::new(Trigger::on(Verb::Get, nth), action)
}

#[tokio::test]
async fn the_first_claim_wins_and_the_second_returns_its_file() {
    let race = Race::new([]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    assert_lost(race.claim("yours").await, "mine");
    assert_eq!(race.content().unwrap(), "mine");
}

/// A claim is won if the reply to its request was lost. Otherwise, after a load balancer cuts the connection, the
/// writer would commit again, and every row would exist twice.
#[tokio::test]
async fn mode_1_put_applied_and_reply_lost_is_won_once() {
    let race = Race::new([on_put(0, Action::FailAfter)]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    race.assert_all_faults_fired();
    let puts = race.storage.log().iter().filter(|operation| operation.verb == Verb::PutIfAbsent).count();
    assert_eq!(puts, 1, "a request that arrived was sent again");
}

#[tokio::test]
async fn a_request_that_never_arrived_is_sent_again() {
    let race = Race::new([on_put(0, Action::FailBefore), on_put(0, Action::FailBefore)]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    race.assert_all_faults_fired();
}

/// A lost reply does not mean that the own request succeeded: another writer may have won before.
#[tokio::test]
async fn a_lost_reply_about_a_lost_race_is_a_lost_race() {
    let race = Race::new([on_put(1, Action::FailAfter)]);
    assert!(matches!(race.claim("first").await, Claim::Won { .. }));
    // The request does not arrive, and the file of the other writer exists.
    assert_lost(race.claim("second").await, "first");
}

/// A request that a proxy delays, so that the client times out and sends another one, changes nothing when it arrives.
#[tokio::test]
async fn mode_2_put_that_arrives_after_its_timeout_changes_nothing() {
    let race = Race::new([on_put(0, Action::Late)]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    let late = race.storage.deliver_late().await;
    assert!(matches!(late[..], [Ok(PutOutcome::AlreadyExists)]), "{late:?}");

    let race = Race::new([on_put(1, Action::Late)]);
    assert!(matches!(race.claim("first").await, Claim::Won { .. }));
    assert_lost(race.claim("late").await, "first");
    race.storage.deliver_late().await;
    assert_eq!(race.content().unwrap(), "first");
}

/// A claim is won if the file that exists is its own. An HTTP client may retry automatically, so that the store answers
/// "exists" because of the first attempt.
#[tokio::test]
async fn mode_3_client_retry_that_finds_its_own_file_is_won() {
    let race = Race::new([on_put(0, Action::AlreadyExistsAfter)]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    race.assert_all_faults_fired();
}

#[tokio::test]
async fn reading_back_is_retried() {
    let lost = [on_put(0, Action::FailAfter), on_get(0, Action::FailBefore), on_put(0, Action::FailBefore)];
    let race = Race::new(lost.into_iter().chain([on_get(0, Action::FailAfter)]));
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    race.assert_all_faults_fired();
}

#[tokio::test]
async fn a_denied_claim_is_not_retried() {
    let race = Race::new([on_put(0, Action::Deny)]);
    let claim = race.claim("mine").await;
    assert!(matches!(claim, Claim::Refused(Error::PermissionDenied(_))), "{claim:?}");
    assert_eq!(race.environment.elapsed_millis(), 0);
}

/// If a store answers with errors until the deadline, the outcome is unknown, so no file may be deleted.
#[tokio::test]
async fn an_unknown_outcome_at_the_deadline_deletes_nothing() {
    for reply in [Action::FailBefore, Action::FailAfter] {
        let files = MemoryFiles::shared();
        let storage = FaultyStorage::with_policy(files.clone(), Box::new(move |_| Some(reply)));
        let environment = TestEnvironment::seeded(2);
        let bytes = Bytes::from("mine");
        let claim = claim(&storage, environment.as_ref(), PATH, bytes, DEADLINE_MILLIS).await;
        assert!(matches!(claim, Claim::Unknown(Error::CommitStateUnknown(_))), "{claim:?}");
        assert!((DEADLINE_MILLIS..DEADLINE_MILLIS + 5000).contains(&environment.elapsed_millis()));
        assert!(storage.log().iter().all(|operation| operation.verb != Verb::Delete));
        assert!(storage.log().len() < 200, "the pauses do not grow");
        assert_eq!(files.has(PATH), reply == Action::FailAfter);
    }
}

/// A refusal proves nothing about an earlier request. Otherwise, if a proxy delays the first request and the second one
/// is denied, the writer would report a certain failure although the first request creates the file later.
#[tokio::test]
async fn a_denial_does_not_settle_an_earlier_request() {
    let denials = (0..1000).map(|_| on_put(0, Action::Deny));
    let race = Race::new([on_put(0, Action::Late)].into_iter().chain(denials));
    let claim = race.claim("mine").await;
    assert!(matches!(claim, Claim::Unknown(Error::CommitStateUnknown(_))), "{claim:?}");
    race.storage.deliver_late().await;
    assert_eq!(race.content().unwrap(), "mine");
}

/// If an error proves nothing about the write, its outcome is unknown: "not retryable" does not mean "certainly not written".
#[tokio::test]
async fn an_error_that_is_not_retryable_leaves_the_outcome_unknown() {
    for action in [Action::BreakBefore, Action::BreakAfter] {
        let files = MemoryFiles::shared();
        let mut has_failed = false;
        let policy = move |operation: &crate::faulty::Operation| {
            // Reading the file fails as well, so that the outcome stays unknown.
            has_failed |= operation.verb == Verb::PutIfAbsent;
            has_failed.then_some(action)
        };
        let storage = FaultyStorage::with_policy(files.clone(), Box::new(policy));
        let environment = TestEnvironment::seeded(2);
        let claim = claim(&storage, environment.as_ref(), PATH, "mine".into(), DEADLINE_MILLIS).await;
        assert!(matches!(claim, Claim::Unknown(Error::CommitStateUnknown(_))), "{action:?}: {claim:?}");
        assert_eq!(files.has(PATH), action == Action::BreakAfter);
    }
    // The content of the file decides.
    let race = Race::new([on_put(0, Action::BreakAfter)]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
    let race = Race::new([on_put(0, Action::BreakBefore)]);
    assert!(matches!(race.claim("mine").await, Claim::Won { .. }));
}

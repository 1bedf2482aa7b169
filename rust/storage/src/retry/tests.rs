//! Retries of requests, in virtual time, so that a budget of a minute takes no real time.

use trinitylake_base::environment::testing::TestEnvironment;

use super::*;
use crate::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::memory_files::MemoryFiles;
use crate::retry_policy::within;

const PATH: &str = "0000/node";

struct Bench {
    files: Arc<MemoryFiles>,
    faulty: Arc<FaultyStorage>,
    environment: Arc<TestEnvironment>,
    storage: RetryingStorage,
}

impl Bench {
    fn new(plan: impl IntoIterator<Item = Fault>) -> Bench {
        let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
        let faulty = Arc::new(FaultyStorage::new(files.clone(), plan));
        let storage = RetryingStorage::new(faulty.clone(), environment.clone());
        Bench { files, faulty, environment, storage }
    }

    fn sent(&self, verb: Verb) -> usize {
        self.faulty.log().iter().filter(|operation| operation.verb == verb).count()
    }
}

fn failing(verb: Verb, times: u64, action: Action) -> Vec<Fault> {
    (0..times).map(|nth| Fault::new(Trigger::on(verb, nth), action)).collect()
}

fn content() -> Bytes {
    Bytes::from_static(b"content")
}

/// Retries pause, for longer each time. Otherwise, if a store throttles a burst of writes with "503 SlowDown", all
/// attempts would end within milliseconds, and the whole group of transactions would fail.
#[tokio::test]
async fn pauses_grow_while_a_store_throttles() {
    let bench = Bench::new(failing(Verb::PutIfAbsent, 7, Action::FailBefore));
    bench.storage.put_unique(PATH, content()).await.unwrap();
    assert_eq!(bench.sent(Verb::PutIfAbsent), 8);
    let waited = bench.environment.elapsed_millis();
    // Seven pauses: the first is 25 to 50 ms, each further one twice as long, up to five seconds.
    assert!((3_000..=6_400).contains(&waited), "{waited}");
}

/// A creation is retried if S3 answers 409 ConditionalRequestConflict while it handles another attempt of the same
/// creation. Otherwise the client would take the answer for an existing file and not find it, and the commit would
/// fail.
#[tokio::test]
async fn a_creation_that_conflicts_with_its_own_attempt_is_retried() {
    let conflicts = || Bench::new(failing(Verb::PutIfAbsent, 2, Action::AlreadyExistsBefore));
    let bench = conflicts();
    bench.storage.put_unique(PATH, content()).await.unwrap();
    assert_eq!((bench.sent(Verb::PutIfAbsent), bench.files.get(PATH).await.unwrap()), (3, content()));
    let bench = conflicts();
    assert_eq!(bench.storage.create(PATH, &content()).await.unwrap(), PutOutcome::Created);
    assert_eq!((bench.sent(Verb::PutIfAbsent), bench.files.get(PATH).await.unwrap()), (3, content()));
}

#[tokio::test]
async fn the_number_of_attempts_is_limited() {
    let policy = RetryPolicy::default();
    let bench = Bench::new(failing(Verb::PutIfAbsent, 100, Action::FailBefore));
    let error = bench.storage.put_unique(PATH, content()).await.unwrap_err();
    assert!(matches!(error, Error::Storage { retryable: true, .. }), "{error}");
    assert_eq!(bench.sent(Verb::PutIfAbsent), 1 + policy.max_retries as usize);
    assert!(bench.environment.elapsed_millis() <= policy.budget_millis);
}

#[tokio::test]
async fn the_time_of_retries_is_limited() {
    let environment = TestEnvironment::seeded(1);
    let policy = RetryPolicy { max_retries: u32::MAX, budget_millis: 20_000, ..RetryPolicy::default() };
    let mut retries = policy.begin(environment.as_ref());
    let mut attempts = 1;
    while retries.pause().await {
        attempts += 1;
    }
    assert!((9..=16).contains(&attempts), "{attempts}");
    let waited = environment.elapsed_millis();
    assert!((20_000..=20_000 + policy.max_pause_millis).contains(&waited), "{waited}");
}

/// Pauses are random, so that clients that were refused at the same moment do not retry at the same moment.
#[tokio::test]
async fn pauses_are_random() {
    let waited = async |seed: u64| {
        let environment = TestEnvironment::seeded(seed);
        let mut retries = RetryPolicy::default().begin(environment.as_ref());
        for _ in 0..4 {
            assert!(retries.pause().await);
        }
        environment.elapsed_millis()
    };
    let mut pauses = Vec::new();
    for seed in 0..20 {
        pauses.push(waited(seed).await);
    }
    pauses.sort_unstable();
    pauses.dedup();
    assert!(pauses.len() > 10, "{pauses:?}");
}

#[tokio::test]
async fn a_lost_reply_is_not_another_writer() {
    let bench = Bench::new(failing(Verb::PutIfAbsent, 1, Action::FailAfter));
    bench.storage.put_unique(PATH, content()).await.unwrap();
    assert_eq!(bench.files.get(PATH).await.unwrap(), content());
    let error = bench.storage.put_unique(PATH, Bytes::from_static(b"other")).await.unwrap_err();
    assert!(matches!(error, Error::CorruptFile { .. }), "{error}");
}

#[tokio::test]
async fn idempotent_requests_are_retried() {
    for verb in [Verb::Get, Verb::GetRange, Verb::Head, Verb::List, Verb::Delete] {
        let bench = Bench::new(failing(verb, 3, Action::FailAfter));
        bench.files.overwrite(PATH, content());
        let storage = &bench.storage;
        match verb {
            Verb::Get => assert_eq!(storage.get(PATH).await.unwrap(), content()),
            Verb::GetRange => assert_eq!(storage.get_range(PATH, 0..3).await.unwrap(), "con"),
            Verb::Head => assert_eq!(storage.head(PATH).await.unwrap().size_bytes, 7),
            Verb::List => assert_eq!(storage.list("").await.unwrap().len(), 1),
            Verb::Delete => storage.delete(PATH).await.unwrap(),
            _ => unreachable!("not sent by this test"),
        }
        assert_eq!(bench.sent(verb), 4, "{verb:?}");
    }
}

#[tokio::test]
async fn permanent_failures_and_claims_are_not_retried() {
    let denied = Bench::new(failing(Verb::Get, 1, Action::Deny));
    assert!(matches!(denied.storage.get(PATH).await, Err(Error::PermissionDenied(_))));
    assert!(denied.storage.get(PATH).await.unwrap_err().is_file_not_found());
    assert_eq!(denied.sent(Verb::Get), 2);
    let lost = Bench::new(failing(Verb::PutIfAbsent, 1, Action::FailAfter));
    lost.storage.put_if_absent(PATH, content()).await.unwrap_err();
    assert_eq!(lost.sent(Verb::PutIfAbsent), 1, "a claim reads the file back before a retry");
}

/// Retries end at the deadline of the commit. Otherwise a commit with a deadline of five seconds would retry for a
/// minute, because each request has a separate budget.
#[tokio::test]
async fn no_request_is_retried_after_the_deadline() {
    let bench = Bench::new(failing(Verb::Get, 1000, Action::FailBefore));
    let ask = async || bench.storage.get(PATH).await.unwrap_err();
    within(5_000, ask()).await;
    let waited = bench.environment.elapsed_millis();
    assert_eq!(waited, 5_000);
    let sent = bench.sent(Verb::Get);
    assert!(sent > 4, "{sent}");
    // Each request is still sent once; a later deadline of an inner scope has no effect.
    within(5_000, within(60_000, ask())).await;
    assert_eq!((bench.sent(Verb::Get), bench.environment.elapsed_millis()), (sent + 1, waited));
    // Outside of the scope only the policy applies.
    ask().await;
    assert!(bench.environment.elapsed_millis() > 10_000);
}

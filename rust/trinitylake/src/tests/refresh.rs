//! What it costs to look for the latest version, in rounds of requests that wait for each other and in requests.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::testing::TestEnvironment;
use crate::fixture::{MemoryFiles, add_namespace, create, open};
use crate::lakehouse::Lakehouse;
use crate::storage::latency::{Latency, LatencyStorage};
use crate::storage::{Counters, CountingStorage};

/// Every request takes one round.
pub const ROUND: Duration = Duration::from_millis(10);
pub const ROUNDS: Latency = Latency { write: ROUND, read: ROUND, bytes_per_second: u64::MAX };

/// How many rounds work takes on paused time.
pub async fn rounds<T>(work: impl Future<Output = T>) -> (T, u128) {
    let started = tokio::time::Instant::now();
    let done = work.await;
    (done, started.elapsed().as_millis() / ROUND.as_millis())
}

struct Follower {
    handle: Arc<Lakehouse>,
    storage: Arc<CountingStorage>,
}

impl Follower {
    /// The version that it finds, the rounds, and the requests.
    async fn refresh(&self) -> (u64, u128, Counters) {
        let before = self.storage.counters();
        let (latest, rounds) = rounds(self.handle.latest()).await;
        (latest.unwrap().number, rounds, self.storage.counters().since(&before))
    }
}

async fn start() -> (Arc<Lakehouse>, Follower, Arc<TestEnvironment>) {
    let environment = TestEnvironment::seeded(1);
    start_on(MemoryFiles::remote(environment.clone()), environment).await
}

async fn start_on(
    files: Arc<MemoryFiles>,
    environment: Arc<TestEnvironment>,
) -> (Arc<Lakehouse>, Follower, Arc<TestEnvironment>) {
    let writer = create(files.clone(), &environment).await;
    let storage = Arc::new(CountingStorage::new(Arc::new(LatencyStorage::new(files, ROUNDS))));
    let handle = open(storage.clone(), &environment).await;
    (writer, Follower { handle, storage }, environment)
}

/// A handle that was one version behind asked nine times, in three rounds: is there a next one, how many, which.
#[tokio::test(start_paused = true)]
async fn a_refresh_is_one_round_if_nothing_or_one_version_is_new() {
    let (writer, follower, environment) = start().await;
    for is_new in [false, true, false, true] {
        if is_new {
            add_namespace(&writer, &format!("n{}", writer.known().number)).await.unwrap();
        }
        for had_slept in [true, false] {
            if had_slept {
                environment.advance(Duration::from_secs(5));
            }
            let (version, rounds, counters) = follower.refresh().await;
            assert_eq!((version, rounds), (writer.known().number, 1));
            let asked = (counters.get, counters.exists, counters.list, counters.requests());
            // Next root, the one after it; now and then the hint and the boundary.
            assert_eq!(asked, if had_slept { (2, 1, 1, 4) } else { (1, 1, 0, 2) });
        }
        if is_new {
            add_namespace(&writer, &format!("n{}", writer.known().number)).await.unwrap();
            let (version, rounds, counters) = follower.refresh().await;
            assert_eq!((version, rounds, counters.requests()), (writer.known().number, 1, 2));
        }
    }
}

/// To look for a file that is not there takes a disk as long as for one that is, and each transaction looked for the version
/// after the next one in vain.
#[tokio::test(start_paused = true)]
async fn on_a_disk_nothing_is_looked_for_after_a_version_that_is_not_there() {
    let (writer, follower, _) = start_on(MemoryFiles::shared(), TestEnvironment::seeded(1)).await;
    follower.refresh().await;
    for (new, asked) in [(0, (1, 0)), (1, (1, 1)), (0, (1, 0)), (2, (2, 7))] {
        for _ in 0..new {
            add_namespace(&writer, &format!("n{}", writer.known().number)).await.unwrap();
        }
        let (version, _, counters) = follower.refresh().await;
        assert_eq!(version, writer.known().number);
        assert_eq!((counters.get, counters.exists), asked, "{new} versions are new");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_far_behind_is_a_few_rounds() {
    for behind in [2, 3, 9, 33, 34, 70] {
        let (writer, follower, _) = start().await;
        for i in 0..behind {
            add_namespace(&writer, &format!("n{i}")).await.unwrap();
        }
        let (version, rounds, counters) = follower.refresh().await;
        assert_eq!(version, behind);
        assert!(rounds <= 5, "{behind} behind: {rounds} rounds");
        assert!(counters.requests() <= 50, "{behind} behind: {counters:?}");
    }
}

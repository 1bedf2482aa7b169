//! Cost of finding the latest version, in requests and in rounds of concurrent requests.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::testing::TestEnvironment;
use crate::lakehouse::Lakehouse;
use crate::storage::latency::{Latency, LatencyStorage};
use crate::storage::{Counters, CountingStorage};
use crate::tests::fixture::{add_namespace, new_lakehouse, open};

/// Duration of each request: one round.
pub const ROUND: Duration = Duration::from_millis(10);
pub const ROUNDS: Latency = Latency { write: ROUND, read: ROUND, bytes_per_second: u64::MAX };

/// Runs work on paused time, and returns how many rounds it takes.
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
    /// The latest version, the number of rounds, and the requests.
    async fn refresh(&self) -> (u64, u128, Counters) {
        let before = self.storage.counters();
        let (latest, rounds) = rounds(self.handle.latest()).await;
        (latest.unwrap().number, rounds, self.storage.counters().since(&before))
    }
}

async fn start() -> (Arc<Lakehouse>, Follower, Arc<TestEnvironment>) {
    let (files, environment, writer) = new_lakehouse().await;
    let storage = Arc::new(CountingStorage::new(Arc::new(LatencyStorage::new(files, ROUNDS))));
    let handle = open(storage.clone(), &environment).await;
    (writer, Follower { handle, storage }, environment)
}

/// A handle that is at most one version behind finds the latest version in one round. Otherwise each refresh would cost
/// nine requests in three rounds.
#[tokio::test(start_paused = true)]
async fn a_refresh_by_at_most_one_version_is_one_round() {
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
            let asked = (counters.get, counters.head, counters.list, counters.requests());
            // The next root and the one after it, and from time to time the hint and the boundary.
            assert_eq!(asked, if had_slept { (2, 1, 1, 4) } else { (1, 1, 0, 2) });
        }
        if is_new {
            add_namespace(&writer, &format!("n{}", writer.known().number)).await.unwrap();
            let (version, rounds, counters) = follower.refresh().await;
            assert_eq!((version, rounds, counters.requests()), (writer.known().number, 1, 2));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_by_many_versions_is_a_few_rounds() {
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

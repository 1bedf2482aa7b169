use futures::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::response_dates::dated;
use crate::tests::memory;

fn storage(latency: Latency) -> LatencyStorage {
    LatencyStorage::new(memory(), latency)
}

#[allow(clippy::disallowed_methods, reason = "tokio's clock, which the test has paused")]
async fn elapsed(work: impl Future<Output = ()>) -> u128 {
    let start = Instant::now();
    work.await;
    start.elapsed().as_millis()
}

#[tokio::test(start_paused = true)]
async fn requests_and_bytes_take_time() {
    for (latency, write, read) in [(Latency::S3_STANDARD, 60, 20), (Latency::S3_EXPRESS, 6, 5)] {
        let storage = storage(latency);
        let create = elapsed(async { storage.put_if_absent("small", Bytes::new()).await.map(drop).unwrap() }).await;
        let large = Bytes::from(vec![0; 90_000_000]);
        let create_large = elapsed(async { storage.put_if_absent("large", large).await.map(drop).unwrap() }).await;
        let get = elapsed(async { storage.get("small").await.map(drop).unwrap() }).await;
        let get_large = elapsed(async { storage.get("large").await.map(drop).unwrap() }).await;
        let miss = elapsed(async { drop(storage.get("absent").await.unwrap_err()) }).await;
        let hint = elapsed(async { storage.put_hint("hint", Bytes::new()).await.unwrap() }).await;
        let reads = elapsed(async {
            storage.head("small").await.unwrap();
            storage.list("").await.unwrap();
            storage.exists("small").await.unwrap();
            storage.get_range("small", 0..0).await.unwrap();
        });
        let reads = reads.await;
        let delete = elapsed(async { storage.delete("small").await.unwrap() }).await;
        // Timers have a resolution of one millisecond.
        let about = |measured: u128, expected: u128| assert!(measured.abs_diff(expected) <= 8, "{measured} {expected}");
        about(create, write);
        about(create_large, write + 1000);
        about(get, read);
        about(get_large, read + 1000);
        about(miss, read);
        about(hint, write);
        about(reads, 4 * read);
        about(delete, write);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_do_not_wait_for_each_other() {
    let storage = storage(Latency::S3_STANDARD);
    let paths: Vec<_> = (0..50).map(|number| number.to_string()).collect();
    let took = elapsed(async {
        for outcome in join_all(paths.iter().map(|path| storage.put_if_absent(path, Bytes::new()))).await {
            assert_eq!(outcome.unwrap(), PutOutcome::Created);
        }
    });
    let took = took.await;
    assert!((60..70).contains(&took), "{took}");
}

/// The answers of the store have dates in whole seconds, like those of real stores. Without dates, each commit reads
/// the boundary once more.
#[tokio::test(start_paused = true)]
async fn answers_are_dated_in_whole_seconds_if_asked_to() {
    let dated_storage = LatencyStorage::dated(memory(), Latency::S3_STANDARD);
    let (_, first) = dated(dated_storage.exists("a")).await;
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    let (_, second) = dated(dated_storage.exists("a")).await;
    assert_eq!(second.unwrap().millis_since(first.unwrap()), 3_000);
    assert!(dated(storage(Latency::S3_STANDARD).exists("a")).await.1.is_none());
}

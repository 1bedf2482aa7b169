//! Background uploads: their order, limits, reads during an upload, and failures.

use std::time::Duration;

use super::*;
use crate::RetryingStorage;
use crate::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::latency::{Latency, LatencyStorage};
use crate::memory_files::MemoryFiles;
use trinitylake_base::environment::SystemEnvironment;

fn bytes(size: usize) -> Bytes {
    Bytes::from(vec![7; size])
}

/// A store whose requests take 60 ms of tokio's clock, and fail as planned.
fn slow(faults: Vec<Fault>) -> (Arc<MemoryFiles>, Arc<FaultyStorage>, Arc<dyn Storage>) {
    let files = MemoryFiles::shared();
    let faulty = Arc::new(FaultyStorage::new(files.clone(), faults));
    let slow = Arc::new(LatencyStorage::new(faulty.clone(), Latency::S3_STANDARD));
    (files, faulty, Arc::new(RetryingStorage::new(slow, SystemEnvironment::shared())))
}

fn pending(storage: Arc<dyn Storage>) -> Arc<BackgroundUploads> {
    BackgroundUploads::new(storage, SystemEnvironment::shared())
}

/// Files are uploaded at the same time. Otherwise an append would wait for the store once for each file.
#[tokio::test(start_paused = true)]
async fn files_are_uploaded_concurrently_and_can_be_read_meanwhile() {
    let (files, _, storage) = slow(Vec::new());
    let pending = pending(storage);
    let start = tokio::time::Instant::now();
    for number in 0..10 {
        pending.put(&format!("data/{number}"), bytes(number)).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "no caller waits below the limit");
    assert_eq!(pending.read("data/3").unwrap().len(), 3);
    assert!(!pending.is_settled() && files.paths().is_empty());
    let paths = pending.written().await.unwrap();
    assert_eq!((paths.len(), files.paths().len()), (10, 10));
    assert!(start.elapsed() < Duration::from_millis(70), "{:?}", start.elapsed());
    assert!(!pending.is_settled(), "the files are not synced yet");
    pending.synced(&paths);
    assert!(pending.is_settled() && pending.written().await.unwrap().is_empty());
    assert_eq!(pending.read("data/3").unwrap().len(), 3, "small files stay in memory");
}

/// The bytes in memory are limited. Otherwise a writer that is faster than the store would fill the memory.
#[tokio::test(start_paused = true)]
async fn a_caller_waits_while_the_memory_limit_is_reached() {
    let (_, _, storage) = slow(Vec::new());
    let pending = BackgroundUploads::bounded(storage, SystemEnvironment::shared(), 100, 4);
    let start = tokio::time::Instant::now();
    pending.put("a", bytes(60)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    pending.put("b", bytes(60)).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
    // A file larger than the limit is uploaded while no other upload runs.
    pending.put("c", bytes(1000)).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(120), "{:?}", start.elapsed());
    pending.written().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_number_of_concurrent_requests_is_limited() {
    let (_, faulty, storage) = slow(Vec::new());
    let pending = BackgroundUploads::bounded(storage, SystemEnvironment::shared(), 1 << 20, 2);
    let start = tokio::time::Instant::now();
    for number in 0..6 {
        pending.put(&format!("{number}"), bytes(1)).await.unwrap();
    }
    pending.written().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(180), "three rounds: {:?}", start.elapsed());
    assert_eq!(faulty.log().len(), 6);
}

/// A failed upload fails the transaction. Otherwise a commit could reference a file that does not exist.
#[tokio::test(start_paused = true)]
async fn the_barrier_fails_with_the_error_of_an_upload() {
    let denied = Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path("second"), Action::Deny);
    let (_, _, storage) = slow(vec![denied]);
    let pending = pending(storage);
    pending.put("first", bytes(1)).await.unwrap();
    pending.put("second", bytes(1)).await.unwrap();
    for _ in 0..2 {
        let answer = pending.written().await;
        assert!(matches!(&answer, Err(Error::PermissionDenied(why)) if why.contains("second")), "{answer:?}");
    }
    // The next statement fails at once.
    assert!(matches!(pending.put("third", bytes(1)).await, Err(Error::PermissionDenied(_))));
    assert!(pending.has_failed() && !pending.is_settled());
    // After the failed file was deleted, the transaction can continue.
    pending.delete("second").await.unwrap();
    pending.written().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn uploads_are_retried_until_the_deadline_of_the_commit() {
    let lost = |nth| Fault::new(Trigger::on(Verb::PutIfAbsent, nth).path("file"), Action::FailBefore);
    let (files, _, storage) = slow(vec![lost(0), lost(0)]);
    let one = pending(storage);
    one.put("file", bytes(1)).await.unwrap();
    one.written().await.unwrap();
    assert!(files.has("file"), "the third request succeeds");

    let (_, faulty, storage) = slow((0..200).map(|_| lost(0)).collect());
    let environment = SystemEnvironment::shared();
    let other = BackgroundUploads::new(storage, environment.clone());
    other.put("file", bytes(1)).await.unwrap();
    let answer = within(0, other.written()).await;
    assert!(matches!(answer, Err(Error::Storage { retryable: true, .. })), "{answer:?}");
    let sent = faulty.log().len();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(sent <= 2 && faulty.log().len() <= sent + 1, "nothing is sent after the deadline: {sent}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_file_is_not_sent_or_is_deleted() {
    let (files, faulty, storage) = slow(Vec::new());
    let pending = BackgroundUploads::bounded(storage, SystemEnvironment::shared(), 1 << 20, 1);
    pending.put("under way", bytes(1)).await.unwrap();
    pending.put("waiting", bytes(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(40)).await;
    pending.cancel();
    pending.delete("under way").await.unwrap();
    pending.delete("waiting").await.unwrap();
    assert!(files.paths().is_empty());
    let waiting = faulty.log().iter().filter(|operation| operation.path == "waiting").count();
    assert_eq!(waiting, 0, "it was never sent");
    assert!(matches!(pending.put("late", bytes(1)).await, Err(Error::TransactionClosed(_))));
}

/// A forked child writes the unfinished files of its parent. Otherwise the child would commit without them.
#[tokio::test(start_paused = true)]
async fn a_forked_child_writes_unfinished_files_of_its_parent() {
    let (files, _, storage) = slow(Vec::new());
    let pending = pending(storage);
    pending.put("file", bytes(5)).await.unwrap();
    // Simulates the child, in which the parent's task does not run.
    if let Some(file) = pending.state().files.get_mut("file") {
        file.process += 1;
    }
    assert_eq!(pending.written().await.unwrap(), ["file"]);
    assert!(files.has("file"));
}

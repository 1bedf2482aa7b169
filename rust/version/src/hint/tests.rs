//! Frequency of hint writes.

use super::*;
use trinitylake_base::environment::SystemEnvironment;
use trinitylake_storage::CountingStorage;
use trinitylake_storage::memory_files::MemoryFiles;

/// All writers together write the hint about once a second, because some stores accept only one write per second to an
/// object.
#[tokio::test(start_paused = true)]
async fn the_hint_of_a_remote_store_is_written_once_a_second_and_ends_at_the_newest() {
    let environment = SystemEnvironment::shared();
    is_written_about_once_a_second(environment.clone(), MemoryFiles::remote(environment)).await;
}

async fn is_written_about_once_a_second(environment: Arc<dyn Environment>, storage: Arc<dyn Storage>) {
    let storage = Arc::new(CountingStorage::new(storage));
    let (one, other): (Arc<HintWriter>, Arc<HintWriter>) = Default::default();
    for version in 1..=100 {
        let writer = if version % 2 == 0 { &one } else { &other };
        writer.announce(storage.clone(), &environment, version).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(read_hint(storage.as_ref()).await, Some(100));
    let written = storage.counters().put_hint;
    assert!((4..=12).contains(&written), "100 versions of two processes in 5 seconds: {written} writes");
    // After a pause, the first write is sent immediately.
    one.announce(storage.clone(), &environment, 101).await;
    tokio::time::sleep(Duration::from_millis(1001)).await;
    assert_eq!(read_hint(storage.as_ref()).await, Some(101));
}

//! The wait of an expiry before it deletes roots, with wrong clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use trinitylake_base::environment::Task;
use trinitylake_base::environment::testing::TestEnvironment;
use trinitylake_storage::memory_files::MemoryFiles;
use uuid::Uuid;

/// The machine of an expiry, with a correct timer.
#[derive(Debug)]
struct Machine {
    time: Arc<TestEnvironment>,
    /// Jump of its elapsed clock at the first sleep.
    jump_millis: u64,
    /// Speed of its elapsed clock in percent.
    speed: u64,
    sleeps: AtomicU64,
}

impl Machine {
    fn new(jump_millis: u64, speed: u64) -> Machine {
        Machine { time: TestEnvironment::seeded(1), jump_millis, speed, sleeps: AtomicU64::new(0) }
    }
}

impl Environment for Machine {
    fn now_millis(&self) -> u64 {
        self.time.now_millis()
    }

    fn elapsed_millis(&self) -> u64 {
        let jump_millis = if self.sleeps.load(Ordering::SeqCst) > 0 { self.jump_millis } else { 0 };
        self.time.elapsed_millis() * self.speed / 100 + jump_millis
    }

    fn uuid(&self) -> Uuid {
        self.time.uuid()
    }

    fn random_below(&self, bound: u64) -> u64 {
        self.time.random_below(bound)
    }

    fn sleep(&self, duration: Duration) -> Task {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.time.sleep(duration)
    }
}

async fn waited_millis(storage: &dyn Storage, machine: &Machine) -> u64 {
    let begun = machine.time.elapsed_millis();
    wait_for_older_observations(storage, machine).await;
    machine.time.elapsed_millis() - begun
}

/// A jump of the machine's clock does not shorten the wait. Otherwise an expiry would delete roots too early after a
/// suspension.
#[tokio::test]
async fn a_clock_that_jumps_does_not_shorten_the_wait() {
    let files = MemoryFiles::shared();
    assert_eq!(waited_millis(files.as_ref(), &Machine::new(0, 100)).await, 1000);
    assert_eq!(waited_millis(files.as_ref(), &Machine::new(3_600_000, 100)).await, 1000);
}

/// A clock that stands still doubles the wait, and the wait ends.
#[tokio::test]
async fn a_stopped_clock_doubles_the_wait() {
    assert_eq!(waited_millis(MemoryFiles::shared().as_ref(), &Machine::new(0, 0)).await, 2000);
}

/// The store's clock has to show the whole wait. Otherwise, on a host whose clocks run at double speed, the wait would
/// take half the time.
#[tokio::test]
async fn the_clock_of_the_store_has_to_show_the_whole_wait() {
    let machine = Machine::new(0, 100);
    let stands_still = MemoryFiles::remote(TestEnvironment::seeded(2));
    assert_eq!(waited_millis(stands_still.as_ref(), &machine).await, 10_000);
    let goes_on = MemoryFiles::remote(machine.time.clone());
    assert_eq!(waited_millis(goes_on.as_ref(), &machine).await, 5000);
}

//! Time, ids and randomness under the control of a test, so that a seed repeats a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::{Environment, Task};

/// Time of a new test environment, in milliseconds since 1970.
pub const START_MILLIS: u64 = 1_700_000_000_000;

/// A clock that advances when a test says so, or when a task sleeps: a sleep returns at once and advances the clock.
/// Ids and random numbers come from a seeded generator.
#[derive(Debug)]
pub struct TestEnvironment {
    /// The wall clock minus the monotonic clock.
    epoch_millis: AtomicU64,
    elapsed_millis: Arc<AtomicU64>,
    generator: Mutex<StdRng>,
}

impl TestEnvironment {
    pub fn seeded(seed: u64) -> Arc<TestEnvironment> {
        Arc::new(TestEnvironment {
            epoch_millis: AtomicU64::new(START_MILLIS),
            elapsed_millis: Arc::default(),
            generator: Mutex::new(StdRng::seed_from_u64(seed)),
        })
    }

    /// Moves both clocks forward.
    pub fn advance(&self, duration: Duration) {
        self.elapsed_millis.fetch_add(duration.as_millis() as u64, Ordering::SeqCst);
    }

    /// Sets the wall clock forwards or back, like a clock that is wrong; the elapsed clock and deadlines do not change.
    pub fn set_now_millis(&self, now_millis: u64) {
        let elapsed = self.elapsed_millis.load(Ordering::SeqCst);
        self.epoch_millis.store(now_millis.saturating_sub(elapsed), Ordering::SeqCst);
    }

    fn generator(&self) -> MutexGuard<'_, StdRng> {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Environment for TestEnvironment {
    fn now_millis(&self) -> u64 {
        self.epoch_millis.load(Ordering::SeqCst) + self.elapsed_millis()
    }

    fn elapsed_millis(&self) -> u64 {
        self.elapsed_millis.load(Ordering::SeqCst)
    }

    fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.generator().random()).into_uuid()
    }

    fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.generator().random_range(0..bound) }
    }

    fn alarm(&self, duration: Duration) -> Task {
        let clock = self.elapsed_millis.clone();
        let due_millis = self.elapsed_millis().saturating_add(duration.as_millis() as u64);
        // Advancing the clock does not wake tasks.
        Box::pin(std::future::poll_fn(move |_| {
            if clock.load(Ordering::SeqCst) >= due_millis {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        }))
    }

    /// Does not advance the clock, because a background task must not change the time of other tasks.
    fn linger(&self, _: Duration) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn sleep(&self, duration: Duration) -> Task {
        self.advance(duration);
        // Other tasks run meanwhile, as during a real sleep.
        Box::pin(std::future::poll_fn({
            let mut yielded = false;
            move |context| {
                if std::mem::replace(&mut yielded, true) {
                    return std::task::Poll::Ready(());
                }
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        }))
    }
}

//! Where time, ids and randomness come from.
//!
//! Nothing else in the crate asks the operating system for them (a lint forbids it), so that a test can
//! decide them and a seed replays a run.

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use uuid::Uuid;

pub trait Environment: Send + Sync + Debug {
    /// Milliseconds since the Unix epoch, by this machine's clock.
    fn now_millis(&self) -> u64;
    /// Milliseconds on a clock that never goes back, for deadlines.
    fn elapsed_millis(&self) -> u64;
    /// A fresh version 4 UUID.
    fn uuid(&self) -> Uuid;
    /// A number in `0..bound`; 0 where `bound` is 0.
    fn random_below(&self, bound: u64) -> u64;
    fn sleep(&self, duration: Duration) -> Task;
    /// Takes over work that nobody waits for; what is returned is what the caller should still wait for.
    /// By default all of it, so that a test knows when it is done.
    fn background(&self, work: Task) -> Task {
        work
    }
}

/// A future that owns all it needs.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The machine's own clock, the system's random generator, tokio's timer.
#[derive(Debug)]
pub struct SystemEnvironment {
    started: std::time::Instant,
}

impl SystemEnvironment {
    #[allow(clippy::disallowed_methods, reason = "the one place that may ask the system")]
    pub fn shared() -> Arc<dyn Environment> {
        Arc::new(SystemEnvironment { started: std::time::Instant::now() })
    }
}

impl Environment for SystemEnvironment {
    #[allow(clippy::disallowed_methods, reason = "the one place that may ask the system")]
    fn now_millis(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since_epoch| since_epoch.as_millis() as u64)
    }

    fn elapsed_millis(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    #[allow(clippy::disallowed_methods, reason = "the one place that may ask the system")]
    fn uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { rand::random_range(0..bound) }
    }

    fn sleep(&self, duration: Duration) -> Task {
        Box::pin(tokio::time::sleep(duration))
    }

    /// Work that is done at once, as on a local disk, is done by the caller; else a task goes on with it.
    fn background(&self, mut work: Task) -> Task {
        Box::pin(std::future::poll_fn(move |context| {
            if work.as_mut().poll(context).is_pending() {
                let rest = std::mem::replace(&mut work, Box::pin(std::future::ready(())));
                BACKGROUND_TASKS.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async {
                    let _done = BackgroundTask;
                    rest.await;
                });
            }
            Poll::Ready(())
        }))
    }
}

static BACKGROUND_TASKS: AtomicUsize = AtomicUsize::new(0);

/// Counts itself off when it ends, also by a panic.
struct BackgroundTask;

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        BACKGROUND_TASKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How much work the environment's tasks still have: for a process that is about to end.
pub fn background_tasks() -> usize {
    BACKGROUND_TASKS.load(Ordering::SeqCst)
}

/// In a forked child, where the tasks of the parent do not run.
pub fn forget_background_tasks() {
    BACKGROUND_TASKS.store(0, Ordering::SeqCst);
}

//! Source of time, ids and randomness.
//!
//! All other code uses this trait, so that a test can control time, ids and randomness, and repeat a run from its seed.
//! A lint forbids direct calls to the operating system.

#[cfg(any(test, feature = "testing"))]
#[path = "../tests/doubles/environment.rs"]
pub mod testing;

mod clock;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use clock::clock_millis;
pub use clock::{Moment, wall_clock_lead_millis};

pub trait Environment: Send + Sync + Debug {
    /// Milliseconds since the Unix epoch, by this machine's clock.
    fn now_millis(&self) -> u64;
    /// Milliseconds on a monotonic clock that also advances while the machine is suspended. Used for deadlines, and for
    /// the age of observations.
    fn elapsed_millis(&self) -> u64;
    /// A new random UUID (version 4).
    fn uuid(&self) -> Uuid;
    /// A number in `0..bound`; 0 if `bound` is 0.
    fn random_below(&self, bound: u64) -> u64;
    fn sleep(&self, duration: Duration) -> Task;
    /// Resolves after this time, for waits with a time limit. Unlike `sleep`, it does not advance a virtual clock.
    fn alarm(&self, duration: Duration) -> Task {
        self.sleep(duration)
    }
    /// Pauses background work. The pause ends early when the process is about to exit.
    fn linger(&self, duration: Duration) -> Task {
        self.sleep(duration)
    }
    /// Runs work in the background. Returns the part of the work for which the caller should wait: by default all of
    /// it, so that a test knows when the work has ended.
    fn background(&self, work: Task) -> Task {
        work
    }
}

/// A future that owns all its data, so that it can outlive its caller.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The environment of a real process: the clocks of the machine, the random generator of the operating system, and
/// tokio's timer.
#[derive(Debug)]
pub struct SystemEnvironment {
    started_millis: u64,
}

impl SystemEnvironment {
    pub fn shared() -> Arc<dyn Environment> {
        Arc::new(SystemEnvironment { started_millis: clock_millis() })
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
        clock_millis().saturating_sub(self.started_millis)
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

    fn linger(&self, duration: Duration) -> Task {
        let (mut is_ending, mut pause) = (Box::pin(ENDING.notified()), self.sleep(duration));
        Box::pin(std::future::poll_fn(move |context| match is_ending.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => pause.as_mut().poll(context),
        }))
    }

    /// Polls the work once on the caller's thread. If this completes the work, as on a local disk, no task is started;
    /// otherwise a task of the runtime continues it.
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

/// Counts one task in [`BACKGROUND_TASKS`] until this value is dropped, also by a panic of the task.
struct BackgroundTask;

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        BACKGROUND_TASKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Wakes the tasks that pause in [`Environment::linger`].
static ENDING: Notify = Notify::const_new();

/// Ends the pauses of background tasks, because the process is about to exit.
pub fn hurry_background_tasks() {
    ENDING.notify_waiters();
}

/// Number of running tasks of [`SystemEnvironment::background`]. A process waits for them before it exits.
pub fn background_tasks() -> usize {
    BACKGROUND_TASKS.load(Ordering::SeqCst)
}

/// Resets the count in a forked child, in which the tasks of its parent do not run.
pub fn forget_background_tasks() {
    BACKGROUND_TASKS.store(0, Ordering::SeqCst);
}

#[cfg(test)]
mod tests;

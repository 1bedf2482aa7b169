//! Source of time, ids and randomness.
//!
//! All other code takes them from here (a lint forbids calls to the operating system), so that a test controls them and
//! a seed replays a run.

#[cfg(any(test, feature = "testing"))]
#[path = "../tests/doubles/environment.rs"]
pub mod testing;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

pub trait Environment: Send + Sync + Debug {
    /// Milliseconds since the Unix epoch, by this machine's clock.
    fn now_millis(&self) -> u64;
    /// Milliseconds on a monotonic clock that also advances while the machine sleeps. For deadlines, and for the age of
    /// observations.
    fn elapsed_millis(&self) -> u64;
    /// A fresh version 4 UUID.
    fn uuid(&self) -> Uuid;
    /// A number in `0..bound`; 0 if `bound` is 0.
    fn random_below(&self, bound: u64) -> u64;
    fn sleep(&self, duration: Duration) -> Task;
    /// Resolves after this time, for waits with a time limit. Unlike `sleep`, it does not advance a virtual clock.
    fn alarm(&self, duration: Duration) -> Task {
        self.sleep(duration)
    }
    /// A pause of background work, which ends early when the process is about to exit.
    fn linger(&self, duration: Duration) -> Task {
        self.sleep(duration)
    }
    /// Runs work in the background. Returns the part of it that the caller should wait for: by default all of it, so
    /// that a test knows when the work is done.
    fn background(&self, work: Task) -> Task {
        work
    }
}

/// A point in time by both clocks of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    elapsed_millis: u64,
    now_millis: u64,
}

impl Moment {
    pub fn now(environment: &dyn Environment) -> Moment {
        Moment { elapsed_millis: environment.elapsed_millis(), now_millis: environment.now_millis() }
    }

    /// Whether less than `millis` have passed by both clocks. The monotonic clock may stop while a machine sleeps, and
    /// an administrator may set the wall clock; if the wall clock went back, the answer is no.
    pub fn is_within(&self, millis: u64, environment: &dyn Environment) -> bool {
        let elapsed = environment.elapsed_millis().checked_sub(self.elapsed_millis);
        let by_wall = environment.now_millis().checked_sub(self.now_millis);
        [elapsed, by_wall].iter().all(|passed| passed.is_some_and(|passed| passed < millis))
    }

    /// Whether `millis` have passed by both clocks.
    pub fn is_past(&self, millis: u64, environment: &dyn Environment) -> bool {
        self.passed_millis(environment).iter().all(|passed| *passed >= millis)
    }

    /// Upper bound of the elapsed time: that of the faster clock.
    pub fn most_passed_millis(&self, environment: &dyn Environment) -> u64 {
        self.passed_millis(environment).into_iter().max().unwrap_or_default()
    }

    /// Elapsed time by the monotonic clock.
    pub fn elapsed_millis(&self, environment: &dyn Environment) -> u64 {
        environment.elapsed_millis().saturating_sub(self.elapsed_millis)
    }

    /// Elapsed time by each clock; 0 if the clock went back.
    fn passed_millis(&self, environment: &dyn Environment) -> [u64; 2] {
        [self.elapsed_millis(environment), environment.now_millis().saturating_sub(self.now_millis)]
    }
}

/// A future that owns all it needs.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clocks of the machine, the random generator of the operating system, and tokio's timer.
#[derive(Debug)]
pub struct SystemEnvironment {
    started_millis: u64,
}

/// Clock of [`Environment::elapsed_millis`]. The one that `std::time::Instant` reads stops while a machine sleeps, so
/// that an observation from before would seem recent afterwards.
#[cfg(any(target_os = "linux", target_os = "android"))]
const ELAPSED_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On macOS this clock advances during sleep as well; on other systems it may stop.
#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
const ELAPSED_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(not(windows))]
fn clock_millis() -> u64 {
    let time = rustix::time::clock_gettime(ELAPSED_CLOCK);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// On Windows the clock of `std::time::Instant` advances during sleep.
#[cfg(windows)]
#[allow(clippy::disallowed_methods, reason = "the one place that may ask the system")]
fn clock_millis() -> u64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_millis() as u64
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

    /// The caller polls the work once. If that completes it, as on a local disk, no task is started; otherwise a task
    /// of the runtime continues it.
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

/// One task counted in [`BACKGROUND_TASKS`]. The count decreases when it is dropped, also after a panic.
struct BackgroundTask;

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        BACKGROUND_TASKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Wakes tasks in [`Environment::linger`].
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

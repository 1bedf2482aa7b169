//! Clocks of a machine: a monotonic clock that advances while the machine sleeps, and points in time by both clocks.

use super::Environment;

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

    /// Whether less than `millis` have passed by both clocks. False if the wall clock was set back. Both clocks are
    /// needed, because the monotonic clock may stop while the machine is suspended, and an administrator may set the
    /// wall clock.
    pub fn is_within(&self, millis: u64, environment: &dyn Environment) -> bool {
        let elapsed = environment.elapsed_millis().checked_sub(self.elapsed_millis);
        let by_wall = environment.now_millis().checked_sub(self.now_millis);
        [elapsed, by_wall].iter().all(|passed| passed.is_some_and(|passed| passed < millis))
    }

    /// Whether `millis` have passed by both clocks.
    pub fn is_past(&self, millis: u64, environment: &dyn Environment) -> bool {
        self.passed_millis(environment).iter().all(|passed| *passed >= millis)
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

/// Difference between the wall clock and the monotonic clock. It changes only if an administrator sets the wall clock, or
/// if the monotonic clock stops.
pub fn wall_clock_lead_millis(environment: &dyn Environment) -> i64 {
    environment.now_millis() as i64 - environment.elapsed_millis() as i64
}

/// Clock of [`Environment::elapsed_millis`]. Not the clock of `std::time::Instant`, which stops while a machine is
/// suspended, so that an earlier observation would seem recent afterwards.
#[cfg(any(target_os = "linux", target_os = "android"))]
const ELAPSED_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On macOS this clock advances during sleep as well; on other systems it may stop.
#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
const ELAPSED_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(not(windows))]
pub(super) fn clock_millis() -> u64 {
    let time = rustix::time::clock_gettime(ELAPSED_CLOCK);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// On Windows the clock of `std::time::Instant` advances during sleep.
#[cfg(windows)]
#[allow(clippy::disallowed_methods, reason = "the one place that may ask the system")]
pub(super) fn clock_millis() -> u64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_millis() as u64
}

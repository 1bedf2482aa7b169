//! Time that an expiry waits before it deletes roots, and the age up to which other processes rely on an observation
//! (format §7).
//!
//! Both belong together: a root observed less than [`QUICK_LOOK_MILLIS`] ago cannot have been deleted by an expiry that
//! waits twice as long on the slowest clock.

use std::time::Duration;

use trinitylake_base::environment::{Environment, Moment};
use trinitylake_format::path::LATEST_HINT_PATH;
use trinitylake_storage::store_clock::dated_last;
use trinitylake_storage::{Storage, is_remote};

/// What was seen less than this ago cannot have been deleted since by an expiry that nobody saw: half of what any expiry
/// waits, as the clocks of two machines may differ in speed.
pub const QUICK_LOOK_MILLIS: u64 = 500;

/// Wait between publishing a boundary and deleting the roots below it. On a remote store it is longer than the error of
/// the dates of its answers, whole seconds of several machines
/// ([`APART_MILLIS`](trinitylake_storage::store_clock::APART_MILLIS)): so the creator of a root learns from the dates that
/// its machine was not suspended.
fn wait_before_deleting(storage: &dyn Storage) -> Duration {
    Duration::from_secs(if is_remote(storage) { 5 } else { 1 })
}

/// Error of a clock that jumps.
const PART: Duration = Duration::from_millis(250);

/// Waits, after a boundary was published, until no process relies any more on what it observed before: neither readers,
/// nor writers that create a root whose name they saw unused.
///
/// No clock is believed alone. The time is counted in parts, and a part counts only if both clocks of this machine went
/// on while its timer ran: one that jumps is wrong by a part. On a remote store the dates of two answers have to show
/// all of it as well. A clock that stands still for good makes it take twice as long.
pub async fn wait_for_all_looks(storage: &dyn Storage, environment: &dyn Environment) {
    let wait = wait_before_deleting(storage);
    let date = async || match is_remote(storage) {
        true => dated_last(storage.exists(LATEST_HINT_PATH)).await.1,
        false => None,
    };
    let begun = date().await;
    let parts = wait.as_millis() / PART.as_millis();
    let mut counted = 0;
    for _ in 0..2 * parts {
        let moment = Moment::now(environment);
        environment.sleep(PART).await;
        counted += u128::from(moment.is_past(PART.as_millis() as u64 * 3 / 4, environment));
        if counted >= parts
            && begun
                .zip(date().await)
                .is_none_or(|(begun, now)| now.millis_since(begun) >= wait.as_millis() as u64)
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

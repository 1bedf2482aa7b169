//! Time that an expiry waits before it deletes roots, and the maximum age of an observation on which processes rely
//! (format §7).
//!
//! The two depend on each other: a root that was observed less than [`QUICK_LOOK_MILLIS`] ago cannot have been deleted
//! by an expiry that waits twice as long, even on the slowest clock.

use std::time::Duration;

use trinitylake_base::environment::{Environment, Moment};
use trinitylake_format::file_names::LATEST_HINT_PATH;
use trinitylake_storage::response_dates::dated_last;
use trinitylake_storage::{Storage, is_remote};

/// Maximum age of a reliable observation: half of the shortest wait of an expiry, because the clocks of two machines
/// may run at different speeds.
pub const QUICK_LOOK_MILLIS: u64 = 500;

/// Wait between publishing a boundary and deleting the roots below it. On a remote store it is longer than the error of
/// the dates in the store's answers, which are whole seconds of several machines
/// ([`APART_MILLIS`](trinitylake_storage::response_dates::APART_MILLIS)). So two close dates prove to the creator of a
/// root that its machine was not suspended during the wait.
fn wait_before_deleting(storage: &dyn Storage) -> Duration {
    Duration::from_secs(if is_remote(storage) { 5 } else { 1 })
}

/// Length of the parts of the wait, and so the maximum effect of a clock that jumps.
const PART: Duration = Duration::from_millis(250);

/// Waits, after a boundary was published, until no process relies on an older observation any more. Such a process is a
/// reader, or a writer that creates a root whose name it has observed to be free.
///
/// No single clock is trusted. The wait consists of parts, and a part counts only if both clocks of this machine
/// advanced while its timer ran, so that a clock that jumps has an effect of one part at most. On a remote store, the
/// dates of two answers have to show the whole wait as well. A clock that has stopped doubles the wait.
pub async fn wait_for_older_observations(storage: &dyn Storage, environment: &dyn Environment) {
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
            && begun.zip(date().await).is_none_or(|(begun, now)| now.millis_since(begun) >= wait.as_millis() as u64)
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

//! How long a writer pauses after a lost race, before it tries for the next root.

use std::time::Duration;

use super::shared_root::Submission;
use crate::lakehouse::Lakehouse;
use crate::version::Version;

/// A pause after lost races is at most this many attempts long: beyond it, waiting only starves.
const MAX_PAUSE_ATTEMPTS: u64 = 8;

/// There are about as many writers as versions were made by others meanwhile. Each waits for a random part
/// of as many rounds, so that most requests that would be lost are never sent. Who has lost before waits
/// less each time, so that those go first who wait longest.
pub(super) async fn pause_after_lost_race(
    lakehouse: &Lakehouse,
    previous: &Version,
    latest: &Version,
    group: &[Submission],
    started_millis: u64,
) {
    let environment = lakehouse.environment().as_ref();
    let others = latest.number.saturating_sub(previous.number + 1).min(MAX_PAUSE_ATTEMPTS);
    let round = environment.elapsed_millis() - started_millis;
    let lost = group.iter().map(|member| member.attempt).max().unwrap_or_default().max(1);
    let pause = environment.random_below(round * others / u64::from(lost) + 1);
    // Those who queue up wait there.
    if pause > 0 && group.iter().all(|member| member.last_version.is_none()) {
        environment.sleep(Duration::from_millis(pause)).await;
    }
}

//! Transactions that are about to join the commit queue: they have announced themselves and still write
//! their files, or have just been answered and mostly come back with their next one. Decides whether the leader of a
//! group waits for them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::select;

use crate::environment::Environment;

#[derive(Default)]
pub(super) struct Arrivals(Mutex<State>);

#[derive(Default)]
struct State {
    announced: u64,
    /// Since when each is on its way, by the order of announcement.
    since_millis: BTreeMap<u64, u64>,
    /// What the last one took.
    write_millis: u64,
    /// The leader, who waits for all up to this one.
    leader: Option<(u64, oneshot::Sender<()>)>,
    /// Those who were in the last root.
    crowd: Option<Crowd>,
    /// How many of a hundred came back at once after the root before.
    returning_percent: u64,
    /// The leader, who waits until so many have come back.
    leader_of_crowd: Option<(u64, oneshot::Sender<()>)>,
}

/// Transactions that were in one root, and how many came since it was created.
struct Crowd {
    size: u64,
    came: u64,
    since_millis: u64,
    /// Whoever comes within this time comes back at once: an eighth of what the root took.
    window_millis: u64,
}

impl Crowd {
    fn percent(&self) -> u64 {
        (self.came * 100).checked_div(self.size).unwrap_or(0).min(100)
    }
}

impl State {
    /// The last one worth waiting for, and how long that may take, if `here` transactions could go now and
    /// a root takes `round_millis`. Whoever misses it waits for the rest of the round, and whoever is here
    /// for those to come.
    fn worth_waiting_for(&self, here: u64, round_millis: u64, now_millis: u64) -> Option<(u64, u64)> {
        let expected = |since: u64| (since + self.write_millis).saturating_sub(now_millis);
        let expected = self.since_millis.iter().map(|(&number, &since)| (number, expected(since)));
        let is_worth =
            |arriving: u64, millis: u64| arriving * round_millis.saturating_sub(millis) > here * millis;
        let (_, (last, millis)) =
            (1..).zip(expected).filter(|&(arriving, (_, millis))| is_worth(arriving, millis)).last()?;
        Some((last, (millis + self.write_millis / 4 + 1).min(round_millis)))
    }

    /// How many of the last root are worth waiting for, and how long, if `here` transactions could go now: those who come a
    /// moment later would wait for all of this root and then for their own.
    fn returning(&self, here: u64, round_millis: u64, now_millis: u64) -> Option<(u64, u64)> {
        let crowd = self.crowd.as_ref()?;
        let expected = crowd.size * self.returning_percent / 100;
        let missing = expected.saturating_sub(crowd.came);
        let left = (crowd.since_millis + crowd.window_millis).saturating_sub(now_millis);
        (left > 0 && missing * round_millis.saturating_sub(left) > here * left).then_some((expected, left))
    }
}

impl Arrivals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(&self, now_millis: u64) -> Arrival<'_> {
        let mut state = self.state();
        state.announced += 1;
        let number = state.announced;
        state.since_millis.insert(number, now_millis);
        Arrival { arrivals: self, number }
    }

    pub(super) fn are_expected(&self) -> bool {
        !self.state().since_millis.is_empty()
    }

    /// A root with so many transactions was created, which took `round_millis`.
    pub(super) fn answered(&self, size: u64, round_millis: u64, now_millis: u64) {
        let mut state = self.state();
        if let Some(before) = &state.crowd {
            state.returning_percent = before.percent();
        }
        let window_millis = round_millis / 8;
        state.crowd = Some(Crowd { size, came: 0, since_millis: now_millis, window_millis });
    }

    /// Somebody has joined the queue.
    pub(super) fn came(&self, now_millis: u64) {
        let mut state = self.state();
        let Some(crowd) = &mut state.crowd else { return };
        if now_millis.saturating_sub(crowd.since_millis) <= crowd.window_millis {
            crowd.came += 1;
        }
        let came = crowd.came;
        if let Some((_, leader)) = state.leader_of_crowd.take_if(|(expected, _)| *expected <= came) {
            // The leader may have stopped waiting.
            let _ = leader.send(());
        }
    }

    /// For the leader of `here` transactions: waits for those of the last root who come back at once.
    pub(super) async fn wait_for_crowd(&self, here: u64, round_millis: u64, environment: &dyn Environment) {
        let (all_back, millis) = {
            let mut state = self.state();
            let Some((expected, millis)) = state.returning(here, round_millis, environment.elapsed_millis())
            else {
                return;
            };
            let (sender, all_back) = oneshot::channel();
            state.leader_of_crowd = Some((expected, sender));
            (all_back, millis)
        };
        select(all_back, environment.sleep(Duration::from_millis(millis))).await;
    }

    /// For the leader of `here` transactions: waits as long as less waiting comes of it in sum.
    pub(super) async fn wait(&self, here: u64, round_millis: u64, environment: &dyn Environment) {
        let (all_here, millis) = {
            let mut state = self.state();
            let Some((last, millis)) =
                state.worth_waiting_for(here, round_millis, environment.elapsed_millis())
            else {
                return;
            };
            let (sender, all_here) = oneshot::channel();
            state.leader = Some((last, sender));
            (all_here, millis)
        };
        select(all_here, environment.sleep(Duration::from_millis(millis))).await;
    }
}

/// One who is on his way, or gave up when dropped.
pub(super) struct Arrival<'a> {
    arrivals: &'a Arrivals,
    number: u64,
}

impl Arrival<'_> {
    pub(super) fn arrived(self, now_millis: u64) {
        let mut state = self.arrivals.state();
        if let Some(&since) = state.since_millis.get(&self.number) {
            state.write_millis = now_millis.saturating_sub(since);
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let mut state = self.arrivals.state();
        state.since_millis.remove(&self.number);
        let next = state.since_millis.first_key_value().map_or(u64::MAX, |(&number, _)| number);
        if let Some((_, leader)) = state.leader.take_if(|(last, _)| *last < next) {
            // The leader may have stopped waiting.
            let _ = leader.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worth(since_millis: &[u64], write_millis: u64, here: u64, round_millis: u64) -> Option<(u64, u64)> {
        let since_millis = (1..).zip(since_millis.iter().copied()).collect();
        State { since_millis, write_millis, ..Default::default() }.worth_waiting_for(here, round_millis, 100)
    }

    #[test]
    fn a_leader_waits_only_if_less_waiting_comes_of_it() {
        assert_eq!(worth(&[], 60, 1, 60), None);
        // One who comes in 10 ms would wait 50 for the next root; one who comes in 40 ms only 20.
        assert_eq!(worth(&[50], 60, 1, 60), Some((1, 26)));
        assert_eq!(worth(&[80], 60, 1, 60), None);
        // Three who come in 40 ms are worth it, but not if as many are here.
        assert_eq!(worth(&[80; 3], 60, 1, 60), Some((3, 56)));
        assert_eq!(worth(&[80; 3], 60, 3, 60), None);
        // Of several, up to the last one that is worth it.
        assert_eq!(worth(&[50, 52, 99], 60, 2, 60), Some((2, 28)));
        // Nothing is known yet of how long anything takes.
        assert_eq!(worth(&[100], 0, 1, 0), None);
    }

    /// Sixty-four threads that wait for their commits come back within some milliseconds of the root that held them. The
    /// first of them must not go alone, and have the others wait for two roots.
    #[test]
    fn a_leader_waits_for_those_who_come_back_at_once() {
        let arrivals = Arrivals::default();
        let returning = |here, now| arrivals.state().returning(here, 60, now);
        assert_eq!(returning(1, 0), None, "nothing is known yet");
        arrivals.answered(64, 60, 100);
        assert_eq!(returning(1, 100), None, "nor whether they come back");
        for _ in 0..64 {
            arrivals.came(103);
        }
        arrivals.came(150);
        arrivals.answered(64, 60, 200);
        arrivals.came(201);
        assert_eq!(returning(1, 201), Some((64, 6)));
        assert_eq!(returning(1, 207), None, "who is not here by now does other things");
        assert_eq!(returning(600, 201), None, "more are here than would come");
        for _ in 1..64 {
            arrivals.came(202);
        }
        assert_eq!(returning(64, 202), None, "all are back");
        // One who commits alone never waits, nor does anybody where roots are quick.
        arrivals.answered(1, 60, 300);
        arrivals.came(301);
        assert_eq!(returning(1, 301), None);
        arrivals.answered(1, 4, 400);
        assert_eq!(returning(1, 400), None);
        // Half of them came back the last time.
        arrivals.answered(64, 60, 500);
        for _ in 0..32 {
            arrivals.came(501);
        }
        arrivals.answered(64, 60, 600);
        assert_eq!(returning(1, 600), Some((32, 7)));
    }

    #[test]
    fn the_leader_hears_when_all_he_waits_for_came_or_gave_up() {
        let arrivals = Arrivals::default();
        let (first, second, third) = (arrivals.announce(0), arrivals.announce(0), arrivals.announce(0));
        let (sender, mut all_here) = oneshot::channel();
        arrivals.state().leader = Some((2, sender));
        second.arrived(7);
        assert_eq!(all_here.try_recv(), Ok(None));
        drop(first);
        assert_eq!(all_here.try_recv(), Ok(Some(())));
        assert_eq!(arrivals.state().write_millis, 7);
        drop(third);
        assert!(!arrivals.are_expected());
    }
}

//! Expected members: transactions that are about to join a group, because they still write their files, or because they
//! were in the last group and usually commit again at once. Decides whether the leader waits for them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::select;

use crate::environment::Environment;

#[derive(Default)]
pub(super) struct ExpectedMembers(Mutex<State>);

#[derive(Default)]
struct State {
    announced: u64,
    /// Time of each announcement, by its number.
    since_millis: BTreeMap<u64, u64>,
    /// Time from the last announcement to its arrival.
    write_millis: u64,
    /// A leader that waits for all announcements up to this number.
    leader: Option<(u64, oneshot::Sender<()>)>,
    /// Group of the last root.
    last_group: Option<LastGroup>,
    /// Percentage of the group before that committed again at once.
    returning_percent: u64,
    /// A leader that waits until so many have joined again.
    leader_of_returning: Option<(u64, oneshot::Sender<()>)>,
}

/// Group of one root, and how many transactions have joined since it was created.
struct LastGroup {
    size: u64,
    came: u64,
    since_millis: u64,
    /// Transactions that join within this time count as returning: an eighth of the time of the root.
    window_millis: u64,
}

impl LastGroup {
    fn percent(&self) -> u64 {
        (self.came * 100).checked_div(self.size).unwrap_or(0).min(100)
    }
}

impl State {
    /// The last announcement worth waiting for, and the longest wait, if `here` transactions are ready and a root takes
    /// `round_millis`: a transaction that misses this root waits for the rest of the round.
    fn worth_waiting_for(&self, here: u64, round_millis: u64, now_millis: u64) -> Option<(u64, u64)> {
        let expected = |since: u64| (since + self.write_millis).saturating_sub(now_millis);
        let expected = self.since_millis.iter().map(|(&number, &since)| (number, expected(since)));
        let is_worth =
            |arriving: u64, millis: u64| arriving * round_millis.saturating_sub(millis) > here * millis;
        let (_, (last, millis)) =
            (1..).zip(expected).filter(|&(arriving, (_, millis))| is_worth(arriving, millis)).last()?;
        Some((last, (millis + self.write_millis / 4 + 1).min(round_millis)))
    }

    /// The number of returning transactions worth waiting for, and the longest wait, if `here` transactions are ready.
    fn returning(&self, here: u64, round_millis: u64, now_millis: u64) -> Option<(u64, u64)> {
        let last = self.last_group.as_ref()?;
        let expected = last.size * self.returning_percent / 100;
        let missing = expected.saturating_sub(last.came);
        let left = (last.since_millis + last.window_millis).saturating_sub(now_millis);
        (left > 0 && missing * round_millis.saturating_sub(left) > here * left).then_some((expected, left))
    }
}

impl ExpectedMembers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(&self, now_millis: u64) -> Announcement<'_> {
        let mut state = self.state();
        state.announced += 1;
        let number = state.announced;
        state.since_millis.insert(number, now_millis);
        Announcement { expected: self, number }
    }

    pub(super) fn are_expected(&self) -> bool {
        !self.state().since_millis.is_empty()
    }

    /// Notes that a root with `size` transactions was created in `round_millis`.
    pub(super) fn created(&self, size: u64, round_millis: u64, now_millis: u64) {
        let mut state = self.state();
        if let Some(before) = &state.last_group {
            state.returning_percent = before.percent();
        }
        let window_millis = round_millis / 8;
        state.last_group = Some(LastGroup { size, came: 0, since_millis: now_millis, window_millis });
    }

    /// Notes that a transaction has joined.
    pub(super) fn joined(&self, now_millis: u64) {
        let mut state = self.state();
        let Some(last) = &mut state.last_group else { return };
        if now_millis.saturating_sub(last.since_millis) <= last.window_millis {
            last.came += 1;
        }
        let came = last.came;
        if let Some((_, leader)) = state.leader_of_returning.take_if(|(expected, _)| *expected <= came) {
            // The leader may not wait any more.
            let _ = leader.send(());
        }
    }

    /// Waits for returning transactions, as the leader of `here` transactions.
    pub(super) async fn wait_for_returning(
        &self,
        here: u64,
        round_millis: u64,
        environment: &dyn Environment,
    ) {
        let (all_back, millis) = {
            let mut state = self.state();
            let Some((expected, millis)) = state.returning(here, round_millis, environment.elapsed_millis())
            else {
                return;
            };
            let (sender, all_back) = oneshot::channel();
            state.leader_of_returning = Some((expected, sender));
            (all_back, millis)
        };
        select(all_back, environment.sleep(Duration::from_millis(millis))).await;
    }

    /// Waits for announced transactions as long as that shortens the sum of all waits, as the leader of `here` ones.
    pub(super) async fn wait_for_announced(
        &self,
        here: u64,
        round_millis: u64,
        environment: &dyn Environment,
    ) {
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

/// Announcement of one transaction; withdrawn when dropped.
pub(crate) struct Announcement<'a> {
    expected: &'a ExpectedMembers,
    number: u64,
}

impl Announcement<'_> {
    pub(super) fn arrived(self, now_millis: u64) {
        let mut state = self.expected.state();
        if let Some(&since) = state.since_millis.get(&self.number) {
            state.write_millis = now_millis.saturating_sub(since);
        }
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        let mut state = self.expected.state();
        state.since_millis.remove(&self.number);
        let next = state.since_millis.first_key_value().map_or(u64::MAX, |(&number, _)| number);
        if let Some((_, leader)) = state.leader.take_if(|(last, _)| *last < next) {
            // The leader may not wait any more.
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
    fn leader_waits_only_if_the_sum_of_waits_is_smaller() {
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

    /// Sixty-four threads that wait for their commits come back within some milliseconds of the root that held them.
    /// The first of them must not go alone, and have the others wait for two roots.
    #[test]
    fn leader_waits_for_returning_transactions() {
        let expected_members = ExpectedMembers::default();
        let returning = |here, now| expected_members.state().returning(here, 60, now);
        assert_eq!(returning(1, 0), None, "nothing is known yet");
        expected_members.created(64, 60, 100);
        assert_eq!(returning(1, 100), None, "nor whether they come back");
        for _ in 0..64 {
            expected_members.joined(103);
        }
        expected_members.joined(150);
        expected_members.created(64, 60, 200);
        expected_members.joined(201);
        assert_eq!(returning(1, 201), Some((64, 6)));
        assert_eq!(returning(1, 207), None, "who is not here by now does other things");
        assert_eq!(returning(600, 201), None, "more are here than would come");
        for _ in 1..64 {
            expected_members.joined(202);
        }
        assert_eq!(returning(64, 202), None, "all are back");
        // One who commits alone never waits, nor does anybody where roots are quick.
        expected_members.created(1, 60, 300);
        expected_members.joined(301);
        assert_eq!(returning(1, 301), None);
        expected_members.created(1, 4, 400);
        assert_eq!(returning(1, 400), None);
        // Half of them came back the last time.
        expected_members.created(64, 60, 500);
        for _ in 0..32 {
            expected_members.joined(501);
        }
        expected_members.created(64, 60, 600);
        assert_eq!(returning(1, 600), Some((32, 7)));
    }

    #[test]
    fn leader_continues_when_all_announced_have_joined_or_left() {
        let expected_members = ExpectedMembers::default();
        let (first, second, third) =
            (expected_members.announce(0), expected_members.announce(0), expected_members.announce(0));
        let (sender, mut all_here) = oneshot::channel();
        expected_members.state().leader = Some((2, sender));
        second.arrived(7);
        assert_eq!(all_here.try_recv(), Ok(None));
        drop(first);
        assert_eq!(all_here.try_recv(), Ok(Some(())));
        assert_eq!(expected_members.state().write_millis, 7);
        drop(third);
        assert!(!expected_members.are_expected());
    }
}

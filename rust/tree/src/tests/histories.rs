//! Random histories at small orders with buffers of a few messages.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::model::{Changes, Model, config};
use crate::flush::Tally;

const ORDERS: std::ops::RangeInclusive<usize> = 3..=8;

/// Number of histories; `TRINITYLAKE_DEEP=1` multiplies it by 20.
pub fn histories(default: u64) -> u64 {
    if std::env::var("TRINITYLAKE_DEEP").is_ok_and(|deep| deep != "0") { default * 20 } else { default }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Any key; one change in four is a delete.
    Uniform,
    /// Ascending keys; old keys are deleted from time to time.
    Ascending,
    Descending,
    /// Nearly all changes on few keys.
    Hot,
    /// Three changes in four are deletes of existing keys.
    DeleteHeavy,
    /// The tree is filled and emptied completely, several times.
    Tides,
}

/// Buffer caps of the root, of inner nodes, and the hard cap, in bytes; a message has about 40.
const CAPS: [(usize, usize, usize); 6] =
    [(0, 0, 1024), (100, 0, 1024), (200, 200, 200), (400, 150, 1 << 20), (1000, 400, 2000), (100, 2000, 1 << 20)];

struct History {
    kind: Kind,
    generator: StdRng,
    step: usize,
    next: usize,
}

impl History {
    fn changes(&mut self, model: &Model) -> Changes {
        self.step += 1;
        let count = self.generator.random_range(1..=20);
        let mut touched = BTreeSet::new();
        let mut changes = Changes::new();
        for i in 0..count {
            let (key, set) = self.change(model);
            // At most one message of each key.
            if touched.insert(key.clone()) {
                changes.push((key, set.then(|| format!("v{}.{i}", self.step))));
            }
        }
        changes
    }

    fn change(&mut self, model: &Model) -> (String, bool) {
        let number = |number: usize| format!("k{:02}/{number:04}", number / 64);
        let generator = &mut self.generator;
        let living = |generator: &mut StdRng| {
            let i = generator.random_range(0..model.dictionary.len().max(1));
            model.dictionary.keys().nth(i).cloned()
        };
        let any = number(generator.random_range(0..256));
        match self.kind {
            Kind::Uniform => (any, generator.random_bool(0.75)),
            Kind::Ascending | Kind::Descending => {
                if generator.random_bool(0.1) {
                    return (living(generator).unwrap_or(any), false);
                }
                self.next += 1;
                let ascending = matches!(self.kind, Kind::Ascending);
                (number(if ascending { self.next } else { 6000 - self.next }), true)
            }
            Kind::Hot => match generator.random_bool(0.8) {
                true => (number(generator.random_range(0..6) * 40), generator.random_bool(0.5)),
                false => (any, true),
            },
            Kind::DeleteHeavy => match generator.random_bool(if self.step < 8 { 0.1 } else { 0.75 }) {
                true => (living(generator).unwrap_or(any), false),
                false => (any, true),
            },
            Kind::Tides => match self.step % 30 < 12 {
                true => (any, true),
                false => (living(generator).unwrap_or(any), false),
            },
        }
    }
}

/// Runs histories of one kind with all orders and caps. Returns how often each event of the tree occurred.
async fn run(kind: Kind, per_order: u64, steps: usize) -> Tally {
    let mut total = Tally::default();
    for order in ORDERS {
        for seed in 0..histories(per_order) {
            let (root_cap, inner_cap, node_max) = CAPS[(seed as usize + order) % CAPS.len()];
            let seed = seed * 8 + order as u64;
            println!("{kind:?}, order {order}, seed {seed}");
            let mut model = Model::empty(config(order, root_cap, inner_cap, node_max), seed);
            let generator = StdRng::seed_from_u64(seed);
            let mut history = History { kind, generator, step: 0, next: 0 };
            for step in 0..steps {
                let changes = history.changes(&model);
                model.commit(changes).await;
                if step % 10 == 9 {
                    model.check_scans(&mut history.generator).await;
                    model.check_diff(&mut history.generator).await;
                    model.check_diff(&mut history.generator).await;
                }
            }
            model.check_keys(&model.cold_nodes()).await;
            total += model.tally;
        }
    }
    println!("{kind:?}: {total:?}");
    total
}

/// Checks that every event of the tree occurred at least ten times.
fn assert_all_phenomena(tally: Tally) {
    let Tally { flushes, splits, merges, emptied, parked_resolved, grown, reduced } = tally;
    for (phenomenon, count) in [
        ("flush", flushes),
        ("split", splits),
        ("merge", merges),
        ("emptied subtree", emptied),
        ("resolved delete", parked_resolved),
        ("growth", grown),
        ("reduction", reduced),
    ] {
        assert!(count >= 10, "only {count} times a {phenomenon}: {tally:?}");
    }
}

#[tokio::test]
async fn uniform_histories_equal_the_dictionary() {
    let tally = run(Kind::Uniform, 12, 60).await;
    assert!(tally.flushes > 1000 && tally.splits > 1000 && tally.parked_resolved > 100, "{tally:?}");
}

#[tokio::test]
async fn ascending_and_descending_histories_equal_the_dictionary() {
    for kind in [Kind::Ascending, Kind::Descending] {
        let tally = run(kind, 4, 50).await;
        assert!(tally.splits > 1000 && tally.grown > 20, "{tally:?}");
    }
}

#[tokio::test]
async fn hot_histories_equal_the_dictionary() {
    let tally = run(Kind::Hot, 8, 60).await;
    assert!(tally.flushes > 500 && tally.splits > 100, "{tally:?}");
}

#[tokio::test]
async fn delete_heavy_histories_equal_the_dictionary() {
    assert_all_phenomena(run(Kind::DeleteHeavy, 24, 70).await);
}

#[tokio::test]
async fn filling_and_emptying_again_equals_the_dictionary() {
    assert_all_phenomena(run(Kind::Tides, 16, 90).await);
}

/// A history that shrinks: keys and whether they are set, commit by commit.
fn small_history() -> impl Strategy<Value = Vec<Vec<(u8, bool)>>> {
    prop::collection::vec(prop::collection::vec((0u8..40, any::<bool>()), 1..12), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: histories(96) as u32, ..ProptestConfig::default() })]

    #[test]
    fn any_history_equals_the_dictionary(order in ORDERS, caps in 0..CAPS.len(), history in small_history()) {
        let (root_cap, inner_cap, node_max) = CAPS[caps];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut model = Model::empty(config(order, root_cap, inner_cap, node_max), 1);
            for (step, commit) in history.into_iter().enumerate() {
                let mut changes = Changes::new();
                for (key, set) in commit {
                    let key = format!("k{key:02}");
                    changes.retain(|(other, _)| *other != key);
                    changes.push((key, set.then(|| format!("v{step}"))));
                }
                model.commit(changes).await;
                model.check_scans(&mut StdRng::seed_from_u64(step as u64)).await;
            }
            model.check_diff(&mut StdRng::seed_from_u64(7)).await;
        });
    }
}

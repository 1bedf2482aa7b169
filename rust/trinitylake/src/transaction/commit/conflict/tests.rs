use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::*;

/// A value that counts how often it is compared or hashed.
#[derive(Clone, Debug)]
struct Counted(u64, Rc<Cell<u64>>);

impl PartialEq for Counted {
    fn eq(&self, other: &Counted) -> bool {
        self.1.set(self.1.get() + 1);
        self.0 == other.0
    }
}

impl Eq for Counted {}

impl Hash for Counted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.set(self.1.get() + 1);
        self.0.hash(state);
    }
}

/// Number of comparisons and hashes needed to add `values` different values, each of them twice.
fn work(values: u64) -> u64 {
    let count = Rc::new(Cell::new(0));
    let mut distinct = Distinct::default();
    for round in 0..2 {
        for value in 0..values {
            assert_eq!(distinct.add(Counted(value, count.clone())), round == 0);
        }
    }
    assert!(distinct.in_order.iter().map(|value| value.0).eq(0..values));
    count.get()
}

/// Adding a name does not search the list of names found so far. Otherwise, if two transactions register the same
/// 100,000 objects, the second one would need an hour to report the conflict.
#[test]
fn the_work_of_a_review_is_linear_in_its_conflicts() {
    let (some, twice_as_many) = (work(2_000), work(4_000));
    assert!(some >= 4_000, "nothing was counted: {some}");
    assert!(twice_as_many * 2 <= some * 5, "{some}, then {twice_as_many}");
}

#[test]
fn a_message_names_some_keys_and_counts_the_others() {
    let names: Vec<String> = (0..1000).map(|i| format!("table a.{i}")).collect();
    assert_eq!(enumerate(&names[..2], String::clone), "table a.0, table a.1");
    let all = enumerate(&names, String::clone);
    assert!(all.ends_with("table a.19 and 980 others") && all.len() < 1000, "{all}");
}

//! The footprint of a transaction: what it read, wrote and requires, as keys and ranges (format §8).
//!
//! Reads are compared with other transactions under SERIALIZABLE only. Requirements, which keep the lakehouse
//! consistent, and watched reads are compared at every isolation level.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::key::KeyRange;
use crate::lakehouse_definition::proto;

/// Condition on other objects that must hold when the transaction commits, at every isolation level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// This key exists: the namespace of a created object.
    Exists(String),
    /// This key is absent: the view with the name of a created table, or the record of a chosen transaction id.
    Absent(String),
    /// This range has no keys: the objects of a dropped namespace.
    Empty(KeyRange),
}

/// Disjoint ranges of keys; overlapping and adjacent ranges are merged. Looking up a key takes logarithmic time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges(BTreeMap<String, Option<String>>);

impl KeyRanges {
    pub fn add(&mut self, range: &KeyRange) {
        let KeyRange { mut start, mut end } = range.clone();
        if end.as_ref().is_some_and(|end| *end <= start) {
            return;
        }
        let reaches = |end: &Option<String>, key: &str| end.as_deref().is_none_or(|end| key <= end);
        // Merge the last range that begins before this one, and all ranges that begin inside it.
        let before = self.0.range::<str, _>((Bound::Unbounded, Bound::Included(start.as_str()))).next_back();
        if let Some((first, _)) = before.filter(|(_, end)| reaches(end, &start)) {
            start.clone_from(first);
        }
        let within = self.0.range::<str, _>((Bound::Included(start.as_str()), Bound::Unbounded));
        let swallowed: Vec<String> =
            within.take_while(|(other, _)| reaches(&end, other)).map(|(other, _)| other.clone()).collect();
        for other in swallowed {
            if let Some(others) = self.0.remove(&other) {
                end = match (end, others) {
                    (Some(own), Some(others)) => Some(own.max(others)),
                    _ => None,
                };
            }
        }
        self.0.insert(start, end);
    }

    /// Returns the range that contains a key.
    pub fn range_of(&self, key: &str) -> Option<KeyRange> {
        let before = self.0.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        let range = KeyRange { start: before.0.clone(), end: before.1.clone() };
        range.contains(key).then_some(range)
    }

    pub fn contains(&self, key: &str) -> bool {
        let before = self.0.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.is_some_and(|(_, end)| end.as_deref().is_none_or(|end| key < end))
    }

    /// Whether one of these keys is in a range.
    pub fn contains_any<K: Borrow<str> + Ord>(&self, keys: &BTreeSet<K>) -> bool {
        self.iter().any(|range| keys.range::<str, _>(range.bounds()).next().is_some())
    }

    pub fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.0.iter().map(|(start, end)| KeyRange { start: start.clone(), end: end.clone() })
    }
}

impl FromIterator<KeyRange> for KeyRanges {
    fn from_iter<T: IntoIterator<Item = KeyRange>>(ranges: T) -> KeyRanges {
        let mut all = KeyRanges::default();
        ranges.into_iter().for_each(|range| all.add(&range));
        all
    }
}

/// All requirements of a transaction. Looking up a key has to take logarithmic time, because a transaction that creates
/// many objects has as many requirements as writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    pub exists: BTreeSet<String>,
    pub absent: BTreeSet<String>,
    pub empty: KeyRanges,
}

impl Requirements {
    fn add(&mut self, requirement: Requirement) {
        match requirement {
            Requirement::Exists(key) => _ = self.exists.insert(key),
            Requirement::Absent(key) => _ = self.absent.insert(key),
            Requirement::Empty(range) => self.empty.add(&range),
        }
    }

    /// Returns the requirements that a change of the key may violate.
    pub fn concerning(&self, key: &str) -> impl Iterator<Item = Requirement> {
        let exists = self.exists.get(key).cloned().map(Requirement::Exists);
        let absent = self.absent.get(key).cloned().map(Requirement::Absent);
        let empty = self.empty.range_of(key).map(Requirement::Empty);
        [exists, absent, empty].into_iter().flatten()
    }

    /// Whether a change of one of these keys may violate a requirement.
    pub fn concern_any<K: Borrow<str> + Ord>(&self, keys: &BTreeSet<K>) -> bool {
        let contains = |required: &String| keys.contains(required.as_str());
        self.exists.iter().any(contains) || self.absent.iter().any(contains) || self.empty.contains_any(keys)
    }
}

/// Keys and ranges that were read.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// Keys read, including absent ones.
    pub keys: BTreeSet<String>,
    /// Ranges listed. A new key in one of them is a phantom.
    pub ranges: KeyRanges,
}

impl Reads {
    fn add_key(&mut self, key: &str) {
        if !self.keys.contains(key) {
            self.keys.insert(key.to_string());
        }
    }

    fn add_range(&mut self, range: &KeyRange) {
        self.ranges.add(range);
    }

    /// Whether the key was read, alone or as part of a range.
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key) || self.ranges.contains(key)
    }

    /// Whether one of these keys was read.
    pub fn contains_any<K: Borrow<str> + Ord>(&self, keys: &BTreeSet<K>) -> bool {
        self.keys.iter().any(|key| keys.contains(key.as_str())) || self.ranges.contains_any(keys)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Footprint {
    pub reads: Reads,
    pub requirements: Requirements,
    /// Reads that must not change until the commit, at every isolation level.
    pub watched: Reads,
    /// Whether new reads are watched.
    pub is_watching: bool,
}

impl Footprint {
    pub fn read_key(&mut self, key: &str) {
        self.current_reads().add_key(key);
    }

    pub fn read_range(&mut self, range: &KeyRange) {
        self.current_reads().add_range(range);
    }

    fn current_reads(&mut self) -> &mut Reads {
        if self.is_watching { &mut self.watched } else { &mut self.reads }
    }

    pub fn require(&mut self, requirement: Requirement) {
        self.requirements.add(requirement);
    }

    /// Encodes the reads and requirements; the caller adds the other fields.
    pub fn to_proto(&self) -> proto::Footprint {
        let range = |range: KeyRange| proto::footprint::Range { start: range.start, end: range.end };
        proto::Footprint {
            keys_read: self.reads.keys.iter().cloned().collect(),
            ranges_read: self.reads.ranges.iter().map(range).collect(),
            keys_watched: self.watched.keys.iter().cloned().collect(),
            ranges_watched: self.watched.ranges.iter().map(range).collect(),
            keys_required: self.requirements.exists.iter().cloned().collect(),
            keys_required_absent: self.requirements.absent.iter().cloned().collect(),
            ranges_required_empty: self.requirements.empty.iter().map(range).collect(),
            ..proto::Footprint::default()
        }
    }

    /// The inverse of [`Footprint::to_proto`].
    pub fn of_proto(saved: &proto::Footprint) -> Footprint {
        let range = |range: &proto::footprint::Range| KeyRange { start: range.start.clone(), end: range.end.clone() };
        let reads = |keys: &[String], ranges: &[proto::footprint::Range]| Reads {
            keys: keys.iter().cloned().collect(),
            ranges: ranges.iter().map(range).collect(),
        };
        Footprint {
            reads: reads(&saved.keys_read, &saved.ranges_read),
            requirements: Requirements {
                exists: saved.keys_required.iter().cloned().collect(),
                absent: saved.keys_required_absent.iter().cloned().collect(),
                empty: saved.ranges_required_empty.iter().map(range).collect(),
            },
            watched: reads(&saved.keys_watched, &saved.ranges_watched),
            is_watching: false,
        }
    }
}

#[cfg(test)]
mod tests;

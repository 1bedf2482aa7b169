//! What a transaction touched, as far as another one could disturb it (format §8).
//!
//! Reads matter under SERIALIZABLE alone. Requirements keep the lakehouse whole and matter always, and so
//! does what was watched (`watch`).

use std::borrow::Borrow;
use std::collections::BTreeSet;

use crate::definition::proto;
use crate::key::KeyRange;

/// What must still be so when the transaction commits, whatever its isolation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The namespace of a created object still exists.
    Exists(String),
    /// A table and a view do not share a name; a chosen transaction id is new.
    Absent(String),
    /// A dropped namespace is empty.
    Empty(KeyRange),
}

impl Requirement {
    pub fn concerns(&self, key: &str) -> bool {
        match self {
            Requirement::Exists(required) | Requirement::Absent(required) => required == key,
            Requirement::Empty(range) => range.contains(key),
        }
    }
}

/// What was looked at.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// Keys read, those found absent among them.
    pub keys: BTreeSet<String>,
    /// Ranges listed: a key that appears in one of them is a phantom.
    pub ranges: Vec<KeyRange>,
}

impl Reads {
    fn add_key(&mut self, key: &str) {
        if !self.keys.contains(key) {
            self.keys.insert(key.to_string());
        }
    }

    fn add_range(&mut self, range: &KeyRange) {
        if !self.ranges.contains(range) {
            self.ranges.push(range.clone());
        }
    }

    /// Was the key read, by itself or in a listing?
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key) || self.ranges.iter().any(|range| range.contains(key))
    }

    /// Was one of these keys read?
    pub fn contains_any<K: Borrow<str> + Ord>(&self, keys: &BTreeSet<K>) -> bool {
        self.keys.iter().any(|key| keys.contains(key.as_str()))
            || self.ranges.iter().any(|range| keys.range::<str, _>(range.bounds()).next().is_some())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Footprint {
    pub reads: Reads,
    pub requirements: Vec<Requirement>,
    /// Reads that must not have changed when the transaction commits, whatever its isolation.
    pub watched: Reads,
    /// Is what is read now watched?
    pub is_watching: bool,
}

impl Footprint {
    pub fn read_key(&mut self, key: &str) {
        self.reads.add_key(key);
        if self.is_watching {
            self.watched.add_key(key);
        }
    }

    pub fn read_range(&mut self, range: &KeyRange) {
        self.reads.add_range(range);
        if self.is_watching {
            self.watched.add_range(range);
        }
    }

    pub fn require(&mut self, requirement: Requirement) {
        if !self.requirements.contains(&requirement) {
            self.requirements.push(requirement);
        }
    }

    /// Reads and requirements; the rest of the message is the caller's.
    pub fn to_proto(&self) -> proto::Footprint {
        let range =
            |range: &KeyRange| proto::footprint::Range { start: range.start.clone(), end: range.end.clone() };
        let mut saved = proto::Footprint {
            keys_read: self.reads.keys.iter().cloned().collect(),
            ranges_read: self.reads.ranges.iter().map(range).collect(),
            keys_watched: self.watched.keys.iter().cloned().collect(),
            ranges_watched: self.watched.ranges.iter().map(range).collect(),
            ..proto::Footprint::default()
        };
        for requirement in &self.requirements {
            match requirement {
                Requirement::Exists(key) => saved.keys_required.push(key.clone()),
                Requirement::Absent(key) => saved.keys_required_absent.push(key.clone()),
                Requirement::Empty(empty) => saved.ranges_required_empty.push(range(empty)),
            }
        }
        saved
    }

    /// The inverse of [`Footprint::to_proto`].
    pub fn of_proto(saved: &proto::Footprint) -> Footprint {
        let range =
            |range: &proto::footprint::Range| KeyRange { start: range.start.clone(), end: range.end.clone() };
        let exists = saved.keys_required.iter().cloned().map(Requirement::Exists);
        let absent = saved.keys_required_absent.iter().cloned().map(Requirement::Absent);
        let empty = saved.ranges_required_empty.iter().map(|saved| Requirement::Empty(range(saved)));
        let reads = |keys: &[String], ranges: &[proto::footprint::Range]| Reads {
            keys: keys.iter().cloned().collect(),
            ranges: ranges.iter().map(range).collect(),
        };
        Footprint {
            reads: reads(&saved.keys_read, &saved.ranges_read),
            requirements: exists.chain(absent).chain(empty).collect(),
            watched: reads(&saved.keys_watched, &saved.ranges_watched),
            is_watching: false,
        }
    }
}

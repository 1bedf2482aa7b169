//! Conflict detection: intersects the footprint of a transaction with the keys that each newer version has written.
//!
//! Conflicts are detected by keys only, not by types of operations. A conflict on a table is not final, because the
//! layer above may rebase the change. A conflict on a watched read is not final either: the check that depends on the
//! read may give the same result on the newer version.
//!
//! Invariant: the work for n changes is at most O(n log n). Names are collected in a [`Distinct`] or in a map by key;
//! no list is searched linearly.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::outcome::{ConflictingTable, Conflicts};
use crate::error::{Error, Result, Winner};
use crate::key::ObjectKind;
use crate::transaction::changes::NewValue;
use crate::transaction::footprint::{Footprint, Reads, Requirement};
use crate::transaction::handle::Transaction;
use crate::transaction::options::Isolation;
use crate::transaction::restore::drops_history;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

/// Set that keeps the order in which values were first added; adding takes constant time.
#[derive(Debug)]
struct Distinct<T> {
    seen: HashSet<T>,
    in_order: Vec<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Distinct { seen: HashSet::new(), in_order: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// Returns whether the value is new.
    fn add(&mut self, value: T) -> bool {
        let is_new = self.seen.insert(value.clone());
        if is_new {
            self.in_order.push(value);
        }
        is_new
    }
}

/// Conflicts found in a range of versions so far.
pub(crate) struct Review {
    /// Newest version of the range.
    tip: Arc<Version>,
    previous: Arc<Version>,
    fatal: FatalConflict,
    /// Tables that this transaction and other transactions wrote, by key, with the version and position of the others.
    conflicting: BTreeMap<String, Vec<(u64, usize, Winner)>>,
    watched: Distinct<String>,
}

/// Maximum number of names in an error message; the fields of the error contain all of them.
const MAX_NAMES_SHOWN: usize = 20;

const LAKEHOUSE_DEFINITION: &str = "lakehouse definition";
const EARLIER_VERSION: &str = "earlier version";

impl Footprint {
    /// Returns the reads that must not have changed: all under SERIALIZABLE, none under SNAPSHOT. Watched reads are not
    /// included, because they are checked at every isolation level.
    pub fn reads_that_count(&self, isolation: Isolation) -> Option<&Reads> {
        match isolation {
            Isolation::Snapshot => None,
            Isolation::Serializable => Some(&self.reads),
        }
    }
}

impl Transaction {
    /// Begins to compare this transaction with the versions after `validated`, up to `tip`.
    pub(crate) fn review(&self, tip: Arc<Version>) -> Review {
        Review {
            tip,
            previous: self.validated.clone(),
            fatal: FatalConflict::default(),
            conflicting: BTreeMap::new(),
            watched: Distinct::default(),
        }
    }

    /// Compares the transaction with the next version.
    pub(crate) async fn check_version(&self, review: &mut Review, version: &Arc<Version>) -> Result<()> {
        let changed_definition = version.metadata.lakehouse_definition != review.previous.metadata.lakehouse_definition;
        if self.changes.definition.is_some() && changed_definition {
            review.fatal.add(LAKEHOUSE_DEFINITION.into(), version, 0);
        }
        if self.depends_on_past && drops_history(&review.previous, version) {
            review.fatal.add(EARLIER_VERSION.into(), version, 0);
        }
        let reads = self.footprint.reads_that_count(self.isolation);
        for change in version.changes(&review.previous).await?.iter() {
            let name = || self.human_name(&change.key);
            if let Some(write) = self.changes.writes.get(&change.key)
                && write.checked < version.number
            {
                match write.base {
                    Some(_) if ObjectKind::of_key(&change.key) == Some(ObjectKind::Table) => {
                        let winner = winner(version, change.transaction);
                        let winners = review.conflicting.entry(change.key.clone()).or_default();
                        winners.push((version.number, change.transaction, winner));
                    }
                    _ => review.fatal.add(name(), version, change.transaction),
                }
            }
            if reads.is_some_and(|reads| reads.contains(&change.key)) {
                review.fatal.add(name(), version, change.transaction);
            }
            if self.footprint.watched.contains(&change.key) {
                review.watched.add(name());
            }
            for requirement in self.footprint.requirements.concerning(&change.key) {
                if !self.is_met(&requirement, &change.key, &review.tip).await? {
                    review.fatal.add(name(), version, change.transaction);
                }
            }
        }
        review.previous = version.clone();
        Ok(())
    }

    /// Returns the conflicts that the layer above may resolve. `CommitConflict` if one cannot be resolved.
    pub(crate) async fn conclude(&self, review: Review) -> Result<Conflicts> {
        let Review { tip, mut fatal, conflicting, watched, .. } = review;
        let mut conflicts = Conflicts { tables: Vec::new(), watched: watched.in_order };
        for (key, winners) in conflicting {
            match self.conflict(&key, &tip).await? {
                Some(conflict) => conflicts.tables.push(conflict),
                None => fatal.add_all(self.human_name(&key), winners),
            }
        }
        fatal.into_result(&self.info.id)?;
        Ok(conflicts)
    }

    /// Returns the conflict on a table. `None` if one of the two sides created or dropped the table.
    async fn conflict(&self, key: &str, latest: &Version) -> Result<Option<ConflictingTable>> {
        let Some(write) = self.changes.writes.get(key) else { return Ok(None) };
        let (Some(base), NewValue::Staged { .. }) = (&write.base, &write.value) else { return Ok(None) };
        let Some(current) = latest.get(key).await? else { return Ok(None) };
        let Some(object) = latest.config.names.decode(key) else { return Ok(None) };
        Ok(Some(ConflictingTable {
            key: key.to_string(),
            namespace: object.namespace,
            name: object.name,
            base_location: base.clone(),
            winner_location: current,
            version: latest.number,
        }))
    }

    async fn is_met(&self, requirement: &Requirement, key: &str, latest: &Version) -> Result<bool> {
        Ok(match requirement {
            Requirement::Exists(required) => latest.get(required).await?.is_some(),
            Requirement::Absent(required) => latest.get(required).await?.is_none(),
            // The range is also empty if the transaction itself drops the object.
            Requirement::Empty(_) => {
                latest.get(key).await?.is_none()
                    || self.changes.writes.get(key).is_some_and(|write| matches!(write.value, NewValue::Deleted))
            }
        })
    }

    fn human_name(&self, key: &str) -> String {
        let name = self.base.config.names.decode(key);
        name.map_or_else(|| key.trim_end().to_string(), |name| name.to_string())
    }
}

#[derive(Default)]
struct FatalConflict {
    names: Distinct<String>,
    /// Version and position in it of each transaction in `winners`.
    seen: HashSet<(u64, usize)>,
    winners: Vec<Winner>,
}

impl FatalConflict {
    fn add(&mut self, name: String, version: &Version, transaction: usize) {
        self.names.add(name);
        if self.seen.insert((version.number, transaction)) {
            self.winners.push(winner(version, transaction));
        }
    }

    fn add_all(&mut self, name: String, winners: Vec<(u64, usize, Winner)>) {
        self.names.add(name);
        for (version, transaction, winner) in winners {
            if self.seen.insert((version, transaction)) {
                self.winners.push(winner);
            }
        }
    }

    fn into_result(self, transaction: &str) -> Result<()> {
        let keys = self.names.in_order;
        if keys.is_empty() {
            return Ok(());
        }
        Err(Error::CommitConflict {
            message: format!(
                "conflict on {} with {}: transaction {transaction} was not committed; run it again on the new version",
                enumerate(&keys, String::clone),
                enumerate(&self.winners, describe)
            ),
            keys,
            winners: self.winners,
        })
    }
}

/// Lists the first [`MAX_NAMES_SHOWN`] names, and the number of the other names.
fn enumerate<T>(all: &[T], describe: impl Fn(&T) -> String) -> String {
    let first: Vec<String> = all.iter().take(MAX_NAMES_SHOWN).map(describe).collect();
    match all.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        others => format!("{} and {others} others", first.join(", ")),
    }
}

/// Describes the transaction at this position in `version`, which won the race, for an error.
pub(crate) fn winner(version: &Version, transaction: usize) -> Winner {
    let committed = version.metadata.committed.get(transaction);
    Winner {
        version: version.number,
        transaction_id: committed.map(|transaction| transaction.id.clone()).unwrap_or_default(),
        message: committed.map(CommittedTransaction::description).unwrap_or_default().to_string(),
        author: committed.map(|transaction| transaction.author.clone()).unwrap_or_default(),
    }
}

pub(crate) fn describe(winner: &Winner) -> String {
    let name = if winner.message.is_empty() { &winner.transaction_id } else { &winner.message };
    let author = if winner.author.is_empty() { String::new() } else { format!(" by {}", winner.author) };
    format!("version {}{author} ({name})", winner.version)
}

#[cfg(test)]
mod tests;

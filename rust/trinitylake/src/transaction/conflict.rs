//! Conflict detection: whether a transaction is still valid on a newer version. Its footprint is intersected
//! with what each version since its base has written.
//!
//! There is no table of operations against operations: the keys that two transactions touched decide. A
//! conflict on a table alone is not final, since Iceberg may be able to apply both changes. Neither is a
//! change of what was watched (`watch`), since the check may give the same result on the newer version.
//!
//! Invariant: the work is in proportion to what was changed, times a logarithm at most. Whatever is told once
//! is collected in a [`Distinct`] or under its key in a map; nothing here is searched from its beginning.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::changes::NewValue;
use super::footprint::{Footprint, Reads, Requirement};
use super::restore::forgets_the_past;
use super::{Isolation, Transaction};
use crate::error::{Error, Result, Winner};
use crate::key::ObjectKind;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

/// A table written by this transaction and by one that committed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    pub key: String,
    pub namespace: String,
    pub name: String,
    /// The definition this transaction changed.
    pub base_location: String,
    /// The definition in the tree now.
    pub winner_location: String,
    /// Where `winner_location` was read.
    pub version: u64,
}

/// What others did that is for the layer above to resolve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clashes {
    /// By key. Resolved by [`Transaction::reapply`], each.
    pub tables: Vec<Clash>,
    /// What was watched, named as in [`Error::CommitConflict`]. Resolved by [`Transaction::watch_anew`].
    pub watched: Vec<String>,
}

impl Clashes {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.watched.is_empty()
    }

    /// As in [`Error::CommitConflict`].
    pub(super) fn names(&self) -> Vec<String> {
        let tables = self.tables.iter().map(|clash| format!("table {}.{}", clash.namespace, clash.name));
        let watched = self.watched.iter().cloned();
        let mut names: Vec<String> = tables.chain(watched).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Values in the order in which they were first added. To add one takes the same time however many there are.
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
    /// Is it new?
    fn add(&mut self, value: T) -> bool {
        let is_new = self.seen.insert(value.clone());
        if is_new {
            self.in_order.push(value);
        }
        is_new
    }
}

/// What a look at the versions since the last one has found so far. It keeps nothing of the versions but what
/// stands against this transaction.
pub(super) struct Review {
    /// The newest version that is looked at.
    tip: Arc<Version>,
    previous: Arc<Version>,
    conflict: Conflict,
    /// Tables that both sides wrote, by key, with those who wrote them.
    clashing: BTreeMap<String, Vec<(u64, usize, Winner)>>,
    watched: Distinct<String>,
}

/// Names that a message holds; the error has all of them.
const MAX_NAMES_TOLD: usize = 20;

const LAKEHOUSE_DEFINITION: &str = "lakehouse definition";
const EARLIER_VERSION: &str = "earlier version";

impl Footprint {
    /// The reads that must not have changed, beside what is watched: under SERIALIZABLE all of them.
    pub fn reads_that_count(&self, isolation: Isolation) -> Option<&Reads> {
        match isolation {
            Isolation::Snapshot => None,
            Isolation::Serializable => Some(&self.reads),
        }
    }
}

impl Transaction {
    /// Begins to hold this transaction against the versions after the one it was last held against, up to `tip`.
    pub(super) fn review(&self, tip: Arc<Version>) -> Review {
        Review {
            tip,
            previous: self.validated.clone(),
            conflict: Conflict::default(),
            clashing: BTreeMap::new(),
            watched: Distinct::default(),
        }
    }

    /// Holds it against one version, the next in turn.
    pub(super) async fn look_at(&self, review: &mut Review, version: &Arc<Version>) -> Result<()> {
        let changed_definition =
            version.metadata.lakehouse_definition != review.previous.metadata.lakehouse_definition;
        if self.changes.definition.is_some() && changed_definition {
            review.conflict.add(LAKEHOUSE_DEFINITION.into(), version, 0);
        }
        if self.rests_on_past && forgets_the_past(&review.previous, version) {
            review.conflict.add(EARLIER_VERSION.into(), version, 0);
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
                        let winners = review.clashing.entry(change.key.clone()).or_default();
                        winners.push((version.number, change.transaction, winner));
                    }
                    _ => review.conflict.add(name(), version, change.transaction),
                }
            }
            if reads.is_some_and(|reads| reads.contains(&change.key)) {
                review.conflict.add(name(), version, change.transaction);
            }
            if self.footprint.watched.contains(&change.key) {
                review.watched.add(name());
            }
            for requirement in self.footprint.requirements.concerning(&change.key) {
                if !self.is_met(&requirement, &change.key, &review.tip).await? {
                    review.conflict.add(name(), version, change.transaction);
                }
            }
        }
        review.previous = version.clone();
        Ok(())
    }

    /// `CommitConflict` if the transaction cannot be committed any more; clashes if the layer above must decide.
    pub(super) async fn conclude(&self, review: Review) -> Result<Clashes> {
        let Review { tip, mut conflict, clashing, watched, .. } = review;
        let mut clashes = Clashes { tables: Vec::new(), watched: watched.in_order };
        for (key, winners) in clashing {
            match self.clash(&key, &tip).await? {
                Some(clash) => clashes.tables.push(clash),
                None => conflict.add_all(self.human_name(&key), winners),
            }
        }
        conflict.into_result(&self.info.id)?;
        Ok(clashes)
    }

    /// A table that both sides changed and neither created or dropped.
    async fn clash(&self, key: &str, latest: &Version) -> Result<Option<Clash>> {
        let Some(write) = self.changes.writes.get(key) else { return Ok(None) };
        let (Some(base), NewValue::Staged { .. }) = (&write.base, &write.value) else { return Ok(None) };
        let Some(current) = latest.get(key).await? else { return Ok(None) };
        let Some(object) = latest.config.names.decode(key) else { return Ok(None) };
        Ok(Some(Clash {
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
            // What this transaction drops itself may have been there all along.
            Requirement::Empty(_) => {
                latest.get(key).await?.is_none()
                    || self
                        .changes
                        .writes
                        .get(key)
                        .is_some_and(|write| matches!(write.value, NewValue::Deleted))
            }
        })
    }

    fn human_name(&self, key: &str) -> String {
        let name = self.base.config.names.decode(key);
        name.map_or_else(|| key.trim_end().to_string(), |name| name.to_string())
    }
}

pub(super) fn winner(version: &Version, transaction: usize) -> Winner {
    let committed = version.metadata.committed.get(transaction);
    Winner {
        version: version.number,
        transaction_id: committed.map(|transaction| transaction.id.clone()).unwrap_or_default(),
        message: committed.map(CommittedTransaction::told).unwrap_or_default().to_string(),
        author: committed.map(|transaction| transaction.author.clone()).unwrap_or_default(),
    }
}

#[derive(Default)]
struct Conflict {
    names: Distinct<String>,
    /// The version and the position in it of those in `winners`.
    seen: HashSet<(u64, usize)>,
    winners: Vec<Winner>,
}

impl Conflict {
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
        let told = |winner: &Winner| {
            let told = if winner.message.is_empty() { &winner.transaction_id } else { &winner.message };
            format!("version {} ({told})", winner.version)
        };
        Err(Error::CommitConflict {
            message: format!(
                "transaction {transaction} lost on {}: changed meanwhile by {}",
                enumerate(&keys, String::clone),
                enumerate(&self.winners, told)
            ),
            keys,
            winners: self.winners,
        })
    }
}

/// The first of them in words, and how many others there are.
fn enumerate<T>(all: &[T], told: impl Fn(&T) -> String) -> String {
    let first: Vec<String> = all.iter().take(MAX_NAMES_TOLD).map(told).collect();
    match all.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        others => format!("{} and {others} others", first.join(", ")),
    }
}

#[cfg(test)]
mod tests;

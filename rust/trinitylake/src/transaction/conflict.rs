//! Conflict detection: whether a transaction is still valid on a newer version. Its footprint is intersected
//! with what each version since its base has written.
//!
//! There is no table of operations against operations: the keys that two transactions touched decide. A
//! conflict on a table alone is not final, since Iceberg may be able to apply both changes. Neither is a
//! change of what was watched (`watch`), since the check may give the same result on the newer version.

use std::sync::Arc;

use super::Transaction;
use super::changes::NewValue;
use super::footprint::Requirement;
use crate::error::{Error, Result, Winner};
use crate::key::ObjectKind;
use crate::version::Version;

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
    /// Resolved by [`Transaction::reapply`], each.
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

/// What a look at the versions since the last one has found so far. It keeps nothing of the versions but what
/// stands against this transaction.
pub(super) struct Review {
    /// The newest version that is looked at.
    tip: Arc<Version>,
    previous: Arc<Version>,
    conflict: Conflict,
    clashing: Vec<(String, Winner)>,
    watched: Vec<String>,
}

const LAKEHOUSE_DEFINITION: &str = "lakehouse definition";

impl Transaction {
    /// Begins to hold this transaction against the versions after the one it was last held against, up to `tip`.
    pub(super) fn review(&self, tip: Arc<Version>) -> Review {
        Review {
            tip,
            previous: self.validated.clone(),
            conflict: Conflict::default(),
            clashing: Vec::new(),
            watched: Vec::new(),
        }
    }

    /// Holds it against one version, the next in turn.
    pub(super) async fn look_at(&self, review: &mut Review, version: &Arc<Version>) -> Result<()> {
        let changed_definition =
            version.metadata.lakehouse_definition != review.previous.metadata.lakehouse_definition;
        if self.changes.definition.is_some() && changed_definition {
            review.conflict.add(LAKEHOUSE_DEFINITION.into(), winner(version, 0));
        }
        let reads = self.footprint.reads_that_count(self.isolation);
        for change in version.changes(&review.previous).await?.iter() {
            let winner = || winner(version, change.transaction);
            let name = || self.human_name(&change.key);
            if let Some(write) = self.changes.writes.get(&change.key)
                && write.checked < version.number
            {
                match write.base {
                    Some(_) if ObjectKind::of_key(&change.key) == Some(ObjectKind::Table) => {
                        review.clashing.push((change.key.clone(), winner()));
                    }
                    _ => review.conflict.add(name(), winner()),
                }
            }
            if reads.is_some_and(|reads| reads.contains(&change.key)) {
                review.conflict.add(name(), winner());
            }
            if self.footprint.watched.contains(&change.key) && !review.watched.contains(&name()) {
                review.watched.push(name());
            }
            for requirement in self.footprint.requirements.concerning(&change.key) {
                if !self.is_met(&requirement, &change.key, &review.tip).await? {
                    review.conflict.add(name(), winner());
                }
            }
        }
        review.previous = version.clone();
        Ok(())
    }

    /// `CommitConflict` if the transaction cannot be committed any more; clashes if the layer above must decide.
    pub(super) async fn conclude(&self, review: Review) -> Result<Clashes> {
        let Review { tip, mut conflict, clashing, watched, .. } = review;
        let mut clashes = Clashes { tables: Vec::new(), watched };
        for (key, winner) in clashing {
            match self.clash(&key, &tip).await? {
                Some(clash) if !clashes.tables.contains(&clash) => clashes.tables.push(clash),
                Some(_) => {}
                None => conflict.add(self.human_name(&key), winner),
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
        message: committed.map(|transaction| transaction.message.clone()).unwrap_or_default(),
        author: committed.map(|transaction| transaction.author.clone()).unwrap_or_default(),
    }
}

#[derive(Default)]
struct Conflict {
    keys: Vec<String>,
    winners: Vec<Winner>,
}

impl Conflict {
    fn add(&mut self, key: String, winner: Winner) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
        if !self.winners.contains(&winner) {
            self.winners.push(winner);
        }
    }

    fn into_result(self, transaction: &str) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let winners: Vec<String> = self
            .winners
            .iter()
            .map(|winner| {
                let told = if winner.message.is_empty() { &winner.transaction_id } else { &winner.message };
                format!("version {} ({told})", winner.version)
            })
            .collect();
        Err(Error::CommitConflict {
            message: format!(
                "transaction {transaction} lost on {}: changed meanwhile by {}",
                self.keys.join(", "),
                winners.join(", ")
            ),
            keys: self.keys,
            winners: self.winners,
        })
    }
}

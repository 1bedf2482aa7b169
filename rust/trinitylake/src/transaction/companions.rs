//! Accompanied commit: one transaction commits the changes of other transactions, its companions, with its own.
//!
//! The layer above puts the changes of the companions into the transaction, for instance the rows of many appends into
//! one data file. A companion itself has an id, a message, an author, properties and a summary for the log, and writes
//! nothing, except for the record of a chosen id. The root that contains the transaction contains its companions, and
//! no other root does, so the outcome of the transaction is the outcome of all.
//!
//! The transaction may replace its first companion: it then has the id and the log entry of that companion.

use super::append_queue::QueuedAppends;
use super::changes::Write;
use super::commit::intent_queue;
use super::commit::limits::CommitLimits;
use super::commit::outcome::Outcome;
use super::footprint::Requirement;
use super::handle::Transaction;
use super::state_machine::Failure;
use crate::error::{Error, Result};
use crate::version::root_metadata::CommittedTransaction;

impl Transaction {
    /// Like [`Transaction::commit`], together with companions. The companions stay open after conflicts, after a
    /// failure that certainly committed nothing, and if another process has committed the chosen id of this
    /// transaction. In all other cases they get the outcome of this transaction.
    ///
    /// `queued` are the companions as queued appends, with the rows of other processes that this transaction appends as
    /// well. `CommitConflict` if a version already contains or aborts one of these appends.
    pub async fn commit_with(
        &mut self,
        companions: &mut [impl AsMut<Transaction>],
        mut queued: Option<&mut QueuedAppends>,
        replaces_first: bool,
        limits: CommitLimits,
    ) -> Result<Outcome> {
        let lakehouse = self.lakehouse.clone();
        if let Some(queued) = &mut queued {
            queued.check_waiting(&lakehouse, &self.base).await?;
            self.shares_roots = !queued.is_alone();
            self.queued_appends = queued.paths();
        }
        let mut entries = Vec::with_capacity(companions.len());
        for companion in companions.iter_mut() {
            let companion = companion.as_mut();
            if queued.is_none() {
                companion.check_open()?;
            }
            self.add_record_of(companion).await?;
            if entries.iter().any(|entry: &CommittedTransaction| entry.id == companion.info.id) {
                let message = format!("two transactions of a group have the id {}", companion.info.id);
                return Err(Error::InvalidArgument(message));
            }
            entries.push(CommittedTransaction { summary: companion.summary(), ..companion.info.clone() });
        }
        entries.extend(queued.iter().flat_map(|queued| queued.entries_of_others()));
        if replaces_first && !entries.is_empty() {
            self.info = entries.remove(0);
        }
        self.companions = entries;
        let outcome = self.commit(limits).await;
        for companion in companions {
            let companion = companion.as_mut();
            if self.info.id == companion.info.id || self.companions.iter().any(|one| one.id == companion.info.id) {
                companion.state.follow(&self.state);
            }
        }
        if let Ok(Outcome::Committed(_)) = outcome {
            intent_queue::clear(lakehouse.publisher(), self.queued_appends.clone()).await;
        }
        outcome
    }

    /// Adds the record of a companion with a chosen id to the writes. `InvalidArgument` if the companion has writes of
    /// its own, so that it has to commit alone, or if its id was committed before.
    async fn add_record_of(&mut self, companion: &mut Transaction) -> Result<()> {
        let id = companion.info.id.clone();
        let is_more = companion.changes.writes.len() > usize::from(companion.saved.record.is_some())
            || companion.changes.definition.is_some()
            || companion.saved.sequence > 0
            || companion.saved.restarted_from.is_some();
        if is_more {
            let message =
                format!("transaction {id} has writes of its own, so it cannot be a companion: commit it alone");
            return Err(Error::InvalidArgument(message));
        }
        match companion.record_chosen_id_after(&self.base).await {
            Ok(None) => {}
            Ok(Some(version)) => {
                let message = format!("version {version} already contains transaction {id}");
                return Err(Error::InvalidArgument(message));
            }
            Err(Failure::Certain(_, error) | Failure::InDoubt { error, .. }) => return Err(error),
        }
        for (key, write) in &companion.changes.writes {
            self.footprint_mut().require(Requirement::Absent(key.clone()));
            let checked = self.base.number;
            self.changes.writes.entry(key.clone()).or_insert_with(|| Write { checked, ..write.clone() });
        }
        Ok(())
    }
}

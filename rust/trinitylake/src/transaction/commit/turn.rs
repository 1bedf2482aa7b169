//! Turn: transactions of several processes that change one table commit one after the other.
//!
//! Without turns, a process that commits without a pause would win every race, because it reads nothing between two
//! commits, while a loser has to read the winner's metadata before it can write its own. While other processes commit,
//! a transaction therefore creates an intent without rows and writes, and waits until the owners of older intents have
//! committed (`intent_queue`). Appends of few rows share versions instead (`append_queue`).

use bytes::Bytes;
use futures::future::join;
use prost::Message as _;
use uuid::Uuid;

use super::intent_queue::{Intent, Place, QUEUED_VERSIONS, clear, to_log_entry};
use super::limits::{CommitLimits, Effort};
use crate::config::Coordination;
use crate::lakehouse_definition::METADATA_LOCATION;
use crate::lakehouse_definition::proto::{Footprint, IntendedTransaction, TableDef};
use crate::transaction::changes::NewValue;
use crate::transaction::handle::Transaction;

impl Transaction {
    /// Waits for the turn of this transaction, if other processes commit and the transaction has not waited before.
    pub(super) async fn wait_for_turn(&mut self, limits: CommitLimits, effort: Effort) {
        let lakehouse = self.lakehouse.clone();
        let coordination = limits.coordination.unwrap_or(self.base.config.coordination);
        let is_needed = self.turn.is_none() && self.queued_appends.is_empty() && lakehouse.commits().is_contended();
        if coordination != Coordination::Queue || !is_needed {
            return;
        }
        let Some(table) = self.changed_table() else { return };
        let (base_version, validated_version) = (self.info.began_at_version, self.validated.number);
        let transaction = IntendedTransaction {
            footprint: Some(Footprint { base_version, validated_version, ..Footprint::default() }),
            last_version: validated_version + QUEUED_VERSIONS,
            ..to_log_entry(&self.info)
        };
        let path = lakehouse.commits().intent_path(lakehouse.environment().as_ref(), Some(table));
        let mut place = Place::new(Intent::of(path, vec![transaction], Bytes::new()));
        // If a request to the store fails, the commit will report it.
        let _ = join(place.wait(lakehouse.publisher(), effort.deadline_millis), self.write_files()).await;
        self.shares_roots = !place.is_alone;
        self.turn = Some(place);
    }

    /// Removes the intent, so that the next transaction can commit.
    pub(in crate::transaction) async fn end_turn(&mut self) {
        if let Some(place) = self.turn.take() {
            clear(self.lakehouse.publisher(), vec![place.intent.path]).await;
        }
    }

    /// Returns the id of the first managed table that the transaction changes and did not create.
    fn changed_table(&self) -> Option<Uuid> {
        self.changes.writes.values().filter(|write| write.base.is_some()).find_map(|write| match &write.value {
            NewValue::Staged { bytes, .. } => {
                let table = TableDef::decode(bytes.clone()).ok()?;
                let is_managed = table.format_properties.contains_key(METADATA_LOCATION);
                is_managed.then(|| Uuid::parse_str(&table.id).ok())?
            }
            NewValue::Existing(_) | NewValue::Deleted => None,
        })
    }
}

//! Exactly-once commits: the record of an id that the user chose, or that was saved, is part of the commit.

use bytes::Bytes;
use prost::Message as _;

use super::outcome::committed_version;
use super::transaction_record::{FIRST_RECORD_SEQUENCE, Record, recorded};
use crate::error::Result;
use crate::lakehouse_definition::proto::{DistributedTransactionDef, DistributedTransactionState};
use crate::path::transaction_path;
use crate::transaction::changes::{NewValue, Write};
use crate::transaction::footprint::Requirement;
use crate::transaction::handle::Transaction;
use crate::transaction::state_machine::{Failure, Proof};

impl Transaction {
    pub(crate) fn record_key(&self) -> Result<String> {
        self.base.config.names.transaction_key(&self.info.id)
    }

    /// Adds the record of the id to the writes, and requires that the key is absent. Returns the version of the first
    /// commit if there was one.
    pub(crate) async fn record_chosen_id(&mut self) -> Result<Option<u64>, Failure> {
        if !self.saved.has_record || self.saved.record.is_some() {
            return Ok(None);
        }
        let key = self.record_key()?;
        let latest = self.lakehouse.latest().await?;
        let record = recorded(&self.lakehouse, &latest, &self.info.id).await?;
        match self.saved.of_this_attempt(record) {
            Some(Record::Committed { location, .. }) => {
                if self.saved.sequence > 0 && !self.saved.is_own(&location, &self.info.id) {
                    return Err(Failure::before_sending(self.continued_elsewhere("committed")));
                }
                return Ok(Some(committed_version(&self.lakehouse, &latest, &self.info.id).await?));
            }
            Some(record @ Record::Abandoned { .. }) => {
                return Err(Failure::Certain(Proof::RolledBack, self.continued_elsewhere(record.verb())));
            }
            Some(Record::RolledBack { .. }) => {
                return Err(Failure::Certain(Proof::RolledBack, self.continued_elsewhere("rolled back")));
            }
            None => {}
        }
        let value = if self.saved.sequence > 0 {
            // From here on no other process can continue from this state.
            self.write_state().await?;
            NewValue::Existing(transaction_path(&self.info.id, self.saved.sequence))
        } else {
            self.new_record(DistributedTransactionState::Record)
        };
        self.saved.record = value.location().map(str::to_string);
        let base = self.saved.restarted_from.clone();
        if base.is_none() {
            self.footprint_mut().require(Requirement::Absent(key.clone()));
        }
        let checked = self.base.number;
        self.changes.writes.insert(key, Write { base, value, checked, renamed_from: None });
        Ok(None)
    }

    /// A record under a unique name, which no save uses.
    pub(crate) fn new_record(&self, state: DistributedTransactionState) -> NewValue {
        let record = DistributedTransactionDef {
            id: self.info.id.clone(),
            isolation: self.isolation.to_proto().into(),
            beginning_root: self.base.root_path.clone(),
            commit_message: self.info.message.clone(),
            state: state.into(),
            ..Default::default()
        };
        let sequence = FIRST_RECORD_SEQUENCE | self.lakehouse.environment().uuid().as_u64_pair().0;
        NewValue::Staged {
            path: transaction_path(&self.info.id, sequence),
            bytes: Bytes::from(record.encode_to_vec()),
            written: false,
        }
    }
}

//! Saving a transaction under `_txn/<id>/` (format §8).
//!
//! Each save creates a file with the next sequence number, if that file does not exist. If two processes have resumed
//! the same state, the second one to save or commit gets an error. The commit of a saved transaction begins with a
//! save, and the record in the tree names the file of that save. So a process that finds its id committed can determine
//! whether its own state was committed. The files only transfer a transaction between processes. Only the record in the
//! tree decides whether the transaction is committed or rolled back (`transaction_record`).
//!
//! Invariant: while the tree has no record of an id, no state of the id is removed. Otherwise a process that resumed an
//! older state could create the next state with the same name. When the tree has a record, no process can continue, and
//! all states except the recorded one are removed (`cleanup`).

use bytes::Bytes;
use prost::Message as _;

use crate::create_readback::{Claim, claim};
use crate::definition_file::{decode_file, encode_file};
use crate::error::{Error, Result};
use crate::file_names::{node_path, transaction_path};
use crate::lakehouse_definition::proto::{self, DistributedTransactionDef, DistributedTransactionState as SavedState};
use crate::node::CREATED_AT_MILLIS;
use crate::node::codec::encode;
use crate::node::mutable_node::MutableNode;
use crate::transaction::changes::NewValue;
use crate::transaction::commit::durability_barrier::flush_files;
use crate::transaction::handle::Transaction;
use crate::transaction::saved::transaction_record::{RESTARTED_FROM_PROPERTY, recorded};
use crate::version::publisher::DOUBT_MILLIS;

impl Transaction {
    /// Saves the transaction, so that any process can resume it. `CommitConflict` if another process saved, committed
    /// or rolled it back meanwhile.
    pub async fn save(&mut self) -> Result<u64> {
        self.check_open()?;
        self.check_needs_no_earlier_version()?;
        self.check_writable()?;
        if self.saved.has_record {
            let latest = self.lakehouse.latest().await?;
            let record = recorded(&self.lakehouse, &latest, &self.info.id).await?;
            if let Some(record) = self.saved.of_this_attempt(record) {
                return Err(self.continued_elsewhere(record.verb()));
            }
        }
        self.write_state().await
    }

    /// Writes the next state, which other processes may resume from then on.
    pub(crate) async fn write_state(&mut self) -> Result<u64> {
        let lakehouse = self.lakehouse.clone();
        let (running_root, bytes) = self.encode_running_root().await?;
        let mut files = self.changes.unwritten_files();
        files.push((running_root.clone(), bytes));
        match flush_files(lakehouse.storage().as_ref(), files, &[&self.pending]).await {
            // Writing took longer than the grace period of a garbage collection, which deleted the file.
            Err(Error::FileNotFound { path }) => return Err(self.collected(&format!("{path} is missing"))),
            written => written?,
        }
        self.changes.mark_written();
        let environment = lakehouse.environment();
        let began_at_millis = match self.saved.began_at_millis {
            Some(millis) => millis,
            None => environment.now_millis(),
        };
        let lifetime = lakehouse.known().definition.transaction_ttl_millis();
        let files_since_millis = self.files_since().await?;
        self.file_age.since_millis = Some(files_since_millis);
        let mut properties = self.info.properties.clone();
        if let Some(location) = &self.saved.restarted_from {
            properties.insert(RESTARTED_FROM_PROPERTY.into(), location.clone());
        }
        let record = DistributedTransactionDef {
            id: self.info.id.clone(),
            isolation: self.isolation.to_proto().into(),
            beginning_root: self.base.root_path.clone(),
            running_root,
            began_at_millis,
            expire_at_millis: began_at_millis.saturating_add(lifetime),
            footprint: self.to_proto().encode_to_vec(),
            commit_message: self.info.message.clone(),
            checks: self.checks.clone(),
            author: self.info.author.clone(),
            properties: properties.into_iter().collect(),
            state: SavedState::Open.into(),
            attachment: self.attachment.to_vec(),
            files_since_millis,
        };
        self.state.share();
        self.saved.has_record = true;
        self.claim_sequence(record).await?;
        self.saved.began_at_millis = Some(began_at_millis);
        self.saved.is_changed = false;
        Ok(self.saved.sequence)
    }

    fn to_proto(&self) -> proto::Footprint {
        let mut saved = proto::Footprint {
            base_version: self.info.began_at_version,
            validated_version: self.validated.number,
            lakehouse_definition: self.changes.definition.as_ref().map(|(path, _)| path.clone()),
            ..self.footprint.to_proto()
        };
        saved.writes = self
            .changes
            .writes
            .iter()
            .map(|(key, write)| proto::footprint::Write {
                key: key.clone(),
                base: write.base.clone(),
                location: write.value.location().map(str::to_string),
                is_own_definition: matches!(write.value, NewValue::Staged { .. }),
                checked_version: write.checked,
                renamed_from: write.renamed_from.clone(),
            })
            .collect();
        saved
    }

    /// Encodes the tree as this transaction sees it, as a root that belongs to no version.
    async fn encode_running_root(&self) -> Result<(String, Bytes)> {
        let (nodes, environment) = (self.lakehouse.nodes(), self.lakehouse.environment());
        let mut draft = MutableNode::of(&self.base.root, nodes.height_of(&self.base.root).await?);
        draft.buffer.extend(self.changes.messages(&self.info.id));
        let system = [
            ("lakehouse_def", self.base.metadata.lakehouse_definition.clone()),
            (CREATED_AT_MILLIS, environment.now_millis().to_string()),
            ("previous_root", self.base.root_path.clone()),
        ];
        let config = &self.base.config;
        let encoded = encode(&system, &draft, config.order, config.compression)?;
        Ok((node_path(environment.uuid()), encoded.bytes))
    }

    async fn claim_sequence(&mut self, record: DistributedTransactionDef) -> Result<()> {
        let environment = self.lakehouse.environment().as_ref();
        let path = transaction_path(&self.info.id, self.saved.sequence + 1);
        let deadline = environment.elapsed_millis() + DOUBT_MILLIS;
        let bytes = encode_file(&path, &record.encode_to_vec());
        match claim(self.lakehouse.storage().as_ref(), environment, &path, bytes, deadline).await {
            Claim::Won { .. } => {
                self.saved.sequence += 1;
                Ok(())
            }
            Claim::Refused(error) | Claim::Unknown(error) => Err(error),
            Claim::Lost(other) => {
                let other = decode_file(&path, &other).unwrap_or_default();
                let other = DistributedTransactionDef::decode(other).unwrap_or_default();
                let is_over = other.state() == SavedState::RolledBack;
                Err(self.continued_elsewhere(if is_over { "rolled back" } else { "saved" }))
            }
        }
    }

    pub(crate) fn continued_elsewhere(&self, what: &str) -> Error {
        let next = match what {
            "saved" | "committed" => "by another process; resume it to get its outcome",
            _ => "already; begin it with restart=True to run it again",
        };
        Error::conflict(format!("transaction {} was {what} {next}", self.info.id))
    }
}

//! Distributed transactions (format §8): saved under `_txn/<id>/`, resumed in another process or engine.
//!
//! Each save is a file with the next sequence number, created if absent, so that two processes that resume the
//! same state cannot both go on: the second one to save or commit gets an error. The commit of a saved transaction
//! begins with a save, and its key in the tree names that file: who finds the id committed can tell
//! whether it was this very state. These files only hand over. Whether the transaction is committed, rolled
//! back or neither is said by its record in the tree alone (`records`, `give_up`).
//!
//! As long as the tree has no record of an id, none of its states is removed: who resumed an older one would find
//! the name of the next state free. With the record nobody can go on, and all states but the one that it names are
//! removed (`saved_files`).

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message as _;

use super::changes::{NewValue, Write};
use super::fate::committed_version;
use super::footprint::Footprint;
use super::records::{FIRST_RECORD_SEQUENCE, Record, recorded};
use super::written_behind::make_files_durable;
use super::{Isolation, Transaction};
use crate::claim::{Claim, claim};
use crate::definition::LakehouseDefinition;
use crate::definition::proto::{self, DistributedTransactionDef, DistributedTransactionState as SavedState};
use crate::definition_file::{decode_file, encode_file};
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::node::CREATED_AT_MILLIS;
use crate::node::codec::encode;
use crate::node::draft::Draft;
use crate::path::{TRANSACTION_PREFIX, node_path, transaction_file, transaction_path};
use crate::transaction_id::check_transaction_id;
use crate::tree::nodes::PARALLEL_REQUESTS;
use crate::version::Version;
use crate::version::publisher::DOUBT_MILLIS;
use crate::version::root_metadata::CommittedTransaction;
use crate::version::store_time::StoreTime;
use crate::version::summary::Summary;

/// What was handed over of a transaction.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// Does its id have a record in the tree, once it is over?
    pub has_record: bool,
    /// How often it was saved.
    pub sequence: u64,
    pub began_at_millis: Option<u64>,
    /// Since the last save, or since it was resumed.
    pub is_changed: bool,
    /// The record that its commit puts into the tree, which no other party does.
    pub record: Option<String>,
}

impl Saved {
    /// Is this the record of the transaction as it is here? Whoever else resumed it may have changed it.
    pub(super) fn is_own(&self, record: &str, id: &str) -> bool {
        self.record.as_deref() == Some(record)
            || (!self.is_changed && record == transaction_path(id, self.sequence))
    }
}

impl Transaction {
    /// Writes the transaction's state, so that another process can go on with it; this one still can, too.
    /// `CommitConflict` if another one saved, committed or rolled back the same transaction meanwhile.
    pub async fn save(&mut self) -> Result<u64> {
        self.check_open()?;
        self.check_needs_no_past()?;
        self.check_writable()?;
        if self.saved.has_record {
            let latest = self.lakehouse.latest().await?;
            if let Some(record) = recorded(&self.lakehouse, &latest, &self.info.id).await? {
                return Err(self.went_on_elsewhere(record.verb()));
            }
        }
        self.write_state().await
    }

    /// The next state of this transaction. From here on others may know of it.
    pub(super) async fn write_state(&mut self) -> Result<u64> {
        let lakehouse = self.lakehouse.clone();
        let (running_root, bytes) = self.encode_running_root().await?;
        let mut files = self.changes.unwritten_files();
        files.push((running_root.clone(), bytes));
        match make_files_durable(lakehouse.storage().as_ref(), files, &[&self.pending]).await {
            // Nothing refers to it yet, and writing took longer than a collection waits.
            Err(Error::FileNotFound { path }) => return Err(self.collected(&format!("{path} is gone"))),
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
        self.fence.since_millis = Some(files_since_millis);
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
            properties: self.info.properties.clone().into_iter().collect(),
            state: SavedState::Open.into(),
            attachment: self.attachment.to_vec(),
            files_since_millis,
        };
        self.life.share();
        self.saved.has_record = true;
        self.claim_sequence(record).await?;
        self.saved.began_at_millis = Some(began_at_millis);
        self.saved.is_changed = false;
        Ok(self.saved.sequence)
    }

    /// Goes on with a saved transaction. If it has been committed, what is returned only says so.
    /// `ObjectNotFound` if there is none or it was rolled back, `TransactionExpired` if it is too old,
    /// `CommitConflict` if it was committed and then undone by a rollback of the lakehouse.
    pub async fn resume(lakehouse: &Arc<Lakehouse>, id: &str) -> Result<Transaction> {
        check_transaction_id(id)?;
        let latest = lakehouse.latest().await?;
        let rolled_back = || Error::ObjectNotFound(format!("transaction {id} was rolled back"));
        let expired = |why: String| Error::TransactionExpired(format!("transaction {id} has expired: {why}"));
        let told = recorded(lakehouse, &latest, id).await?;
        match &told {
            Some(Record::RolledBack) => return Err(rolled_back()),
            Some(Record::Abandoned) => return Err(expired("nobody resumed it in time".into())),
            Some(Record::Committed { .. }) | None => {}
        }
        let (sequence, record) = newest(lakehouse, id).await?;
        if told.is_some() {
            let version = committed_version(lakehouse, &latest, id).await?;
            let mut transaction = Transaction::restore(lakehouse, latest, record, sequence, None).await?;
            transaction.life.committed(version);
            return Ok(transaction);
        }
        if record.state() != SavedState::Open {
            // As older writers did it.
            return Err(rolled_back());
        }
        if record.expire_at_millis < lakehouse.environment().now_millis()
            && is_over_age(lakehouse, id, &record).await?
        {
            return Err(expired("it was open for longer than txn_ttl_millis allows".into()));
        }
        let damaged = |error: prost::DecodeError| {
            Error::corrupt(transaction_path(id, sequence), format!("its footprint is damaged: {error}"))
        };
        let footprint = proto::Footprint::decode(record.footprint.as_slice()).map_err(damaged)?;
        // Up to there it is known to hold, so statements go on from there.
        let base = match lakehouse.version(footprint.validated_version).await {
            Ok(base) => base,
            Err(Error::VersionExpired(message)) => return Err(expired(message)),
            Err(error) => return Err(error),
        };
        let since_millis = record.files_since_millis;
        let collected_millis = latest.metadata.gc_before_millis.unwrap_or_default();
        if since_millis < collected_millis
            && base.metadata.gc_before_millis.unwrap_or_default() < collected_millis
        {
            return Err(expired(
                "files that nobody referred to were collected since, its own perhaps among them".into(),
            ));
        }
        Transaction::restore(lakehouse, base, record, sequence, Some(footprint)).await
    }

    async fn restore(
        lakehouse: &Arc<Lakehouse>,
        base: Arc<Version>,
        record: DistributedTransactionDef,
        sequence: u64,
        footprint: Option<proto::Footprint>,
    ) -> Result<Transaction> {
        let isolation = Isolation::of_proto(record.isolation());
        let info = CommittedTransaction {
            id: record.id.clone(),
            isolation: isolation.word().into(),
            message: record.commit_message.clone(),
            author: record.author.clone(),
            began_at_version: footprint.as_ref().map_or(base.number, |footprint| footprint.base_version),
            properties: record.properties.clone().into_iter().collect(),
            summary: Summary::default(),
        };
        let mut transaction = Transaction::new(lakehouse.clone(), base, info, isolation, true);
        transaction.saved.sequence = sequence;
        transaction.saved.began_at_millis = Some(record.began_at_millis);
        // Not told by older writers: then no collection can be passed.
        transaction.fence.since_millis = Some(record.files_since_millis);
        transaction.life.share();
        transaction.checks = record.checks;
        transaction.attachment = record.attachment.into();
        if let Some(footprint) = footprint {
            transaction.take_over(footprint).await?;
        }
        Ok(transaction)
    }

    async fn take_over(&mut self, saved: proto::Footprint) -> Result<()> {
        self.footprint = Arc::new(Footprint::of_proto(&saved));
        let base = self.base.clone();
        self.changes.writes = stream::iter(saved.writes)
            .map(|saved| restore_write(base.clone(), saved))
            .buffer_unordered(PARALLEL_REQUESTS)
            .try_collect()
            .await?;
        if let Some(path) = saved.lakehouse_definition {
            let bytes = self.base.read_definition(&path).await?;
            let definition = LakehouseDefinition::decode(bytes, &path)?;
            self.changes.definition = Some((path, Arc::new(definition)));
            self.changes.is_definition_written = true;
        }
        Ok(())
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

    /// The tree as this transaction sees it, as a root that no version has.
    async fn encode_running_root(&self) -> Result<(String, Bytes)> {
        let (nodes, environment) = (self.lakehouse.nodes(), self.lakehouse.environment());
        let mut draft = Draft::of(&self.base.root, nodes.height_of(&self.base.root).await?);
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
                Err(self.went_on_elsewhere(if is_over { "rolled back" } else { "saved" }))
            }
        }
    }

    pub(super) fn went_on_elsewhere(&self, what: &str) -> Error {
        Error::CommitConflict {
            message: format!(
                "transaction {} was {what} by someone else who resumed it; resume it again to see what became of it",
                self.info.id
            ),
            keys: Vec::new(),
            winners: Vec::new(),
        }
    }
}

async fn restore_write(base: Arc<Version>, saved: proto::footprint::Write) -> Result<(String, Write)> {
    let value = match saved.location {
        None => NewValue::Deleted,
        Some(path) if saved.is_own_definition => {
            NewValue::Staged { bytes: base.read_definition(&path).await?, path, written: true }
        }
        Some(path) => NewValue::Existing(path),
    };
    let (base, checked, renamed_from) = (saved.base, saved.checked_version, saved.renamed_from);
    Ok((saved.key, Write { base, value, checked, renamed_from }))
}

/// The id and the number of a saved state. Files of other names are somebody else's.
pub(super) fn saved_state(path: &str) -> Option<(&str, u64)> {
    transaction_file(path)
        .filter(|(id, sequence)| *sequence < FIRST_RECORD_SEQUENCE && check_transaction_id(id).is_ok())
}

/// Was a saved transaction, which this machine's clock says has expired, saved so long ago by the store's clock, too?
async fn is_over_age(lakehouse: &Lakehouse, id: &str, record: &DistributedTransactionDef) -> Result<bool> {
    let time = StoreTime::ask(lakehouse.storage().as_ref(), lakehouse.environment().as_ref()).await?;
    let files = lakehouse.storage().list(&format!("{TRANSACTION_PREFIX}{id}/")).await?;
    let saves = files.iter().filter(|file| saved_state(&file.path).is_some());
    let age_millis = saves.map(|file| time.age_millis(file)).max();
    Ok(age_millis.is_none_or(|age_millis| age_millis > lifetime_millis(record)))
}

/// For how long it can be resumed after its first save.
pub(super) fn lifetime_millis(record: &DistributedTransactionDef) -> u64 {
    record.expire_at_millis.saturating_sub(record.began_at_millis)
}

/// The number of the last save, if there was one.
pub(super) async fn newest_sequence(lakehouse: &Lakehouse, id: &str) -> Result<Option<u64>> {
    let files = lakehouse.storage().list(&format!("{TRANSACTION_PREFIX}{id}/")).await?;
    Ok(files.iter().filter_map(|file| saved_state(&file.path)).map(|(_, sequence)| sequence).max())
}

async fn newest(lakehouse: &Lakehouse, id: &str) -> Result<(u64, DistributedTransactionDef)> {
    let Some(sequence) = newest_sequence(lakehouse, id).await? else {
        return Err(Error::ObjectNotFound(format!("there is no saved transaction {id}")));
    };
    Ok((sequence, read(lakehouse, id, sequence).await?))
}

pub(super) async fn read(
    lakehouse: &Lakehouse,
    id: &str,
    sequence: u64,
) -> Result<DistributedTransactionDef> {
    let path = transaction_path(id, sequence);
    let bytes = match lakehouse.storage().get(&path).await {
        Err(Error::FileNotFound { .. }) => {
            return Err(Error::ObjectNotFound(format!("transaction {id} was rolled back a moment ago")));
        }
        bytes => bytes?,
    };
    DistributedTransactionDef::decode(decode_file(&path, &bytes)?)
        .map_err(|error| Error::corrupt(path, format!("not a saved transaction: {error}")))
}

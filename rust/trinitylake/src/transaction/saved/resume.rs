//! Resuming a saved transaction, in any process.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use prost::Message as _;

use super::outcome_by_id::committed_version;
use super::state_file::{lifetime_millis, log_properties, newest, restarted_from, saved_state};
use super::transaction_record::{Record, recorded};
use crate::error::{Error, Result};
use crate::file_names::{TRANSACTION_PREFIX, transaction_path};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::lakehouse_definition::proto::{self, DistributedTransactionDef, DistributedTransactionState as SavedState};
use crate::transaction::changes::{NewValue, Write};
use crate::transaction::footprint::Footprint;
use crate::transaction::handle::Transaction;
use crate::transaction::options::Isolation;
use crate::transaction_id::check_transaction_id;
use crate::tree::node_source::PARALLEL_REQUESTS;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;
use crate::version::store_clock::StoreTime;
use crate::version::summary_format::Summary;

impl Transaction {
    /// Resumes a saved transaction. If it was committed, returns the committed transaction. `ObjectNotFound` if no
    /// transaction was saved under this id or if it was rolled back, `TransactionExpired` if it is too old,
    /// `CommitConflict` if it was committed and then undone by a rollback of the lakehouse.
    pub async fn resume(lakehouse: &Arc<Lakehouse>, id: &str) -> Result<Transaction> {
        check_transaction_id(id)?;
        let latest = lakehouse.latest().await?;
        let rolled_back = || Error::ObjectNotFound(format!("transaction {id} was rolled back"));
        let expired = |why: String| Error::TransactionExpired(format!("transaction {id} has expired: {why}"));
        let record_in_tree = recorded(lakehouse, &latest, id).await?;
        let state = newest(lakehouse, id).await;
        let replaces = |location| state.as_ref().is_ok_and(|(_, state)| restarted_from(state) == Some(location));
        match &record_in_tree {
            Some(Record::RolledBack { location }) if !replaces(location) => return Err(rolled_back()),
            Some(Record::Abandoned { location }) if !replaces(location) => {
                return Err(expired("it was not resumed in time".into()));
            }
            Some(_) | None => {}
        }
        let (sequence, record) = state?;
        if matches!(record_in_tree, Some(Record::Committed { .. })) {
            let version = committed_version(lakehouse, &latest, id).await?;
            let mut transaction = Transaction::restore(lakehouse, latest, record, sequence, None).await?;
            transaction.state.committed(version);
            return Ok(transaction);
        }
        if record.state() != SavedState::Open {
            // Written by older releases of this library.
            return Err(rolled_back());
        }
        if record.expire_at_millis < lakehouse.environment().now_millis() && is_over_age(lakehouse, id, &record).await?
        {
            return Err(expired("it was open for longer than txn_ttl_millis allows".into()));
        }
        let damaged = |error: prost::DecodeError| {
            Error::corrupt(transaction_path(id, sequence), format!("its footprint is damaged: {error}"))
        };
        let footprint = proto::Footprint::decode(record.footprint.as_slice()).map_err(damaged)?;
        // The transaction was validated up to this version.
        let base = match lakehouse.version(footprint.validated_version).await {
            Ok(base) => base,
            Err(Error::VersionExpired(message)) => return Err(expired(message)),
            Err(error) => return Err(error),
        };
        let since_millis = record.files_since_millis;
        let collected_millis = latest.metadata.gc_before_millis.unwrap_or_default();
        if since_millis < collected_millis && base.metadata.gc_before_millis.unwrap_or_default() < collected_millis {
            return Err(expired("a garbage collection may have deleted its files".into()));
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
            properties: log_properties(&record),
            summary: Summary::default(),
        };
        let mut transaction = Transaction::new(lakehouse.clone(), base, info, isolation, true);
        transaction.saved.sequence = sequence;
        transaction.saved.restarted_from = restarted_from(&record).cloned();
        transaction.saved.began_at_millis = Some(record.began_at_millis);
        transaction.file_age.since_millis = Some(record.files_since_millis);
        transaction.state.share();
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

/// Whether a saved transaction has expired by the clock of the store. Called only if it has expired by the clock of
/// this machine.
async fn is_over_age(lakehouse: &Lakehouse, id: &str, record: &DistributedTransactionDef) -> Result<bool> {
    let time = StoreTime::ask(lakehouse.storage().as_ref(), lakehouse.environment().as_ref()).await?;
    let files = lakehouse.storage().list(&format!("{TRANSACTION_PREFIX}{id}/")).await?;
    let saves = files.iter().filter(|file| saved_state(&file.path).is_some());
    let age_millis = saves.map(|file| time.age_millis(file)).max();
    Ok(age_millis.is_none_or(|age_millis| age_millis > lifetime_millis(record)))
}

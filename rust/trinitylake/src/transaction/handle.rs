//! `Transaction`: its parts, its beginning and its properties.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::changes::Changes;
use super::commit::intent_queue::Place;
use super::commit::limits::Effort;
use super::footprint::Footprint;
use super::gc_fence::FileAge;
use super::options::{Isolation, TransactionOptions};
use super::saved::state_file::Saved;
use super::state_machine::{Files, TransactionState};
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::moved_lakehouse::Placement;
use crate::storage::BackgroundUploads;
use crate::transaction_id::check_transaction_id;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;
use crate::version::summary_format::{Summary, TableChange};

impl Lakehouse {
    pub fn begin(self: &Arc<Self>, base: Arc<Version>, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self.clone(), base, options)
    }
}

#[derive(Debug)]
pub struct Transaction {
    pub(super) lakehouse: Arc<Lakehouse>,
    pub(super) info: CommittedTransaction,
    pub(super) isolation: Isolation,
    /// Version that the statements of the transaction read.
    pub(super) base: Arc<Version>,
    /// Version up to which the transaction was validated. It differs from the base during a commit, and afterwards
    /// until all conflicts are resolved.
    pub(super) validated: Arc<Version>,
    pub(super) footprint: Arc<Footprint>,
    pub(super) changes: Changes,
    /// Descriptions of changed tables for the log, by key, from the layer above.
    pub(super) descriptions: BTreeMap<String, Vec<TableChange>>,
    /// Log entries of the companions of the running commit (`companions`).
    pub(super) companions: Vec<CommittedTransaction>,
    /// Paths of the intents whose rows the transaction appends.
    pub(super) queued_appends: Vec<String>,
    /// Whether the transaction may wait in the intent queue.
    pub(super) shares_roots: bool,
    /// Place in the queue of a table that the transaction changes, until its commit has ended.
    pub(super) turn: Option<Place>,
    /// Background uploads that the layer above starts for statements.
    pub(super) pending: Arc<BackgroundUploads>,
    /// Whether to write all files before the next attempt, because other transactions commit at this time.
    pub(super) writes_first: bool,
    pub(super) saved: Saved,
    pub(super) file_age: FileAge,
    /// Attempts and deadline of the running commit. They stay while the caller resolves conflicts.
    pub(super) effort: Option<Effort>,
    pub(super) state: TransactionState,
    /// Whether the transaction may reference files that only an earlier version references (`restore`).
    pub(super) depends_on_past: bool,
    /// Checks that the layer above runs at the commit.
    pub checks: Vec<String>,
    /// Bytes that the layer above stores with a saved transaction.
    pub attachment: Bytes,
}

impl Transaction {
    pub(crate) fn begin(
        lakehouse: Arc<Lakehouse>,
        base: Arc<Version>,
        options: TransactionOptions,
    ) -> Result<Transaction> {
        if let Some(id) = &options.id {
            check_transaction_id(id)?;
        }
        if let Some(reserved) = options.properties.keys().find(|key| key.starts_with("trinitylake.")) {
            return Err(Error::InvalidArgument(format!(
                "transaction property {reserved:?}: names that start with \"trinitylake.\" are reserved"
            )));
        }
        let has_chosen_id = options.id.is_some();
        let id = options.id.unwrap_or_else(|| lakehouse.environment().uuid().to_string());
        let info = CommittedTransaction {
            id,
            isolation: options.isolation.word().to_string(),
            message: options.message,
            author: options.author,
            began_at_version: base.number,
            properties: options.properties,
            summary: Summary::default(),
        };
        Ok(Transaction::new(lakehouse, base, info, options.isolation, has_chosen_id))
    }

    pub(super) fn new(
        lakehouse: Arc<Lakehouse>,
        base: Arc<Version>,
        info: CommittedTransaction,
        isolation: Isolation,
        has_chosen_id: bool,
    ) -> Transaction {
        // The handle may not know the base version yet. The next root must come after it.
        lakehouse.learn(base.clone());
        let pending = BackgroundUploads::new(lakehouse.storage().clone(), lakehouse.environment().clone());
        Transaction {
            state: TransactionState::new(&info.id),
            file_age: FileAge::of(&base, &lakehouse),
            lakehouse,
            info,
            isolation,
            validated: base.clone(),
            base,
            footprint: Arc::default(),
            changes: Changes::default(),
            descriptions: BTreeMap::new(),
            companions: Vec::new(),
            queued_appends: Vec::new(),
            shares_roots: true,
            turn: None,
            pending,
            writes_first: false,
            saved: Saved { has_record: has_chosen_id, ..Saved::default() },
            effort: None,
            depends_on_past: false,
            checks: Vec::new(),
            attachment: Bytes::new(),
        }
    }

    pub fn id(&self) -> &str {
        &self.info.id
    }

    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Properties for the log.
    pub fn properties(&self) -> &BTreeMap<String, String> {
        &self.info.properties
    }

    pub fn base(&self) -> &Arc<Version> {
        &self.base
    }

    /// Background uploads of files that only this transaction references. They are durable before its root is created
    /// and before it is saved.
    pub fn pending(&self) -> &Arc<BackgroundUploads> {
        &self.pending
    }

    /// Whether the user chose the id, or the transaction was saved.
    pub fn has_chosen_id(&self) -> bool {
        self.saved.has_record
    }

    pub fn has_writes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns the changed keys, in order. A renamed object has two keys, the former and the new one.
    pub fn written_keys(&self) -> impl Iterator<Item = &str> {
        self.changes.writes.keys().map(String::as_str)
    }

    pub fn committed_version(&self) -> Option<u64> {
        self.state.committed_version()
    }

    /// Whether the outcome of the commit is unknown. [`Transaction::rollback`] determines it.
    pub fn is_unknown(&self) -> bool {
        self.state.is_unknown()
    }

    /// Whether the files of this transaction may be deleted, after it has ended.
    pub fn files(&self) -> Files {
        self.state.files()
    }

    /// Number of saves.
    pub fn sequence(&self) -> u64 {
        self.saved.sequence
    }

    pub(super) fn footprint_mut(&mut self) -> &mut Footprint {
        Arc::make_mut(&mut self.footprint)
    }

    /// `TransactionClosed` unless the transaction accepts statements.
    pub(super) fn check_open(&self) -> Result<()> {
        self.file_age.observe_clock(self.lakehouse.environment().as_ref());
        self.state.check_open()
    }

    /// Makes the validated version the base, after all conflicts are resolved. Each object that this transaction wrote
    /// is then unchanged up to that version, or its write was rebased.
    pub(super) fn rebase_base(&mut self) {
        self.state.reopen_if_resolved();
        if self.state.check_open().is_ok() {
            self.base = self.validated.clone();
        }
    }

    /// Checks before files are written that a commit is possible. `LakehouseMoved` if the lakehouse is not at its
    /// recorded root URI and this transaction does not record the new one, `CorruptFile` if newer versions are damaged
    /// or lost.
    pub fn check_writable(&self) -> Result<()> {
        self.lakehouse.check_intact()?;
        self.placement().check_writable()
    }

    /// Returns the current and the recorded root URI of the lakehouse. The recorded URI is in this transaction's
    /// lakehouse definition if it changes the definition, and otherwise in that of the newest version. So a relocation
    /// after the base version does not block this transaction.
    pub(super) fn placement(&self) -> Placement {
        match &self.changes.definition {
            Some((_, changed)) => Placement::of(self.lakehouse.storage().root(), changed),
            None => self.lakehouse.placement(),
        }
    }

    /// Returns the definition of the lakehouse as this transaction sees it.
    pub(super) fn definition(&self) -> &LakehouseDefinition {
        self.changes.definition.as_ref().map_or(&self.base.definition, |(_, changed)| changed)
    }
}

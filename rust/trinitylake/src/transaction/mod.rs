//! A transaction: reads of one version plus own writes, and the footprint they leave.
//!
//! Nothing is visible before [`Transaction::commit`] (in `commit`) creates a root; whether it may is
//! decided in `conflict`. Definition files are staged in memory until then. What its owner knows of it at
//! any time, and which steps that allows, is in `life`.

mod arrivals;
mod changes;
mod commit;
mod commit_queue;
pub mod conflict;
pub mod distributed;
pub mod fate;
pub(crate) mod fence;
pub mod footprint;
mod give_up;
pub(crate) mod group_commit;
pub(crate) mod inline_definitions;
pub mod lakehouse;
pub(crate) mod life;
mod next_root;
mod objects;
mod pause_after_lost_race;
pub mod records;
mod restore;
pub mod saved_files;
pub mod saved_list;
mod shared_root;
mod summary;
mod watch;
mod written_behind;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

pub use crate::config::Coordination;
use crate::definition::LakehouseDefinition;
use crate::definition::proto::IsolationLevel;
use crate::error::{Error, Result};
use crate::key::{KeyRange, ObjectKind};
use crate::lakehouse::Lakehouse;
use crate::moved_lakehouse::Placement;
use crate::storage::BackgroundUploads;
use crate::transaction_id::check_transaction_id;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;
use crate::version::summary::{Summary, Told};
use changes::{Changes, Write};
pub(crate) use commit::VERSIONS_AT_ONCE;
pub use commit::{CommitLimits, Outcome};
pub use conflict::{Clash, Clashes};
use distributed::Saved;
use fence::Fence;
use footprint::Footprint;
use life::Life;
pub use life::{Files, Proof};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Fails on a key written by both.
    #[default]
    Snapshot,
    /// Fails also if another wrote a key, or into a range, that this one read.
    Serializable,
}

impl Isolation {
    pub fn parse(name: &str) -> Result<Isolation> {
        match name.to_ascii_lowercase().as_str() {
            "snapshot" => Ok(Isolation::Snapshot),
            "serializable" => Ok(Isolation::Serializable),
            _ => Err(Error::InvalidArgument(format!(
                "isolation {name:?} is not one of \"snapshot\", \"serializable\""
            ))),
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Isolation::Snapshot => "snapshot",
            Isolation::Serializable => "serializable",
        }
    }
}

impl Isolation {
    pub(crate) fn to_proto(self) -> IsolationLevel {
        match self {
            Isolation::Snapshot => IsolationLevel::Snapshot,
            Isolation::Serializable => IsolationLevel::Serializable,
        }
    }

    /// That of transactions which do not choose one.
    pub fn default_of(definition: &LakehouseDefinition) -> Isolation {
        Isolation::of_proto(definition.default_isolation())
    }

    pub(crate) fn of_proto(level: IsolationLevel) -> Isolation {
        match level {
            IsolationLevel::Snapshot => Isolation::Snapshot,
            IsolationLevel::Serializable => Isolation::Serializable,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct TransactionOptions {
    pub isolation: Isolation,
    /// Chosen by the user: recorded in the tree, so that it commits once. Else a fresh UUID.
    pub id: Option<String>,
    pub message: String,
    pub author: String,
    pub properties: BTreeMap<String, String>,
}

/// What whoever asked for a commit of the library's own wants to be read in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Empty: what the library says of such a commit.
    pub message: String,
    pub author: String,
}

impl Note {
    /// The message, or what the library says.
    pub fn message_or(&self, own: &str) -> String {
        if self.message.is_empty() { own.to_string() } else { self.message.clone() }
    }

    /// Of a commit of the library's own.
    pub(crate) fn options(&self, own: &str) -> TransactionOptions {
        let (message, author) = (self.message_or(own), self.author.clone());
        TransactionOptions { message, author, ..TransactionOptions::default() }
    }
}

#[derive(Debug)]
pub struct Transaction {
    lakehouse: Arc<Lakehouse>,
    info: CommittedTransaction,
    isolation: Isolation,
    /// What statements read.
    base: Arc<Version>,
    /// The version up to which conflicts were looked for: the base, but during a commit and until clashes
    /// are resolved.
    validated: Arc<Version>,
    footprint: Arc<Footprint>,
    changes: Changes,
    /// By key: what the layer above says of its changes of tables, for the log.
    told: BTreeMap<String, Vec<Told>>,
    /// Files that its statements have written behind, for the layer above.
    pending: Arc<BackgroundUploads>,
    /// The next root is only tried for when all of its files are there: others commit meanwhile.
    writes_first: bool,
    saved: Saved,
    fence: Fence,
    /// What the commit under way has tried so far; it goes on after clashes.
    effort: Option<commit::Effort>,
    life: Life,
    /// What it writes names files that only an earlier version may still reach (`restore`).
    rests_on_past: bool,
    /// What must hold when it commits, for the layer above to check.
    pub checks: Vec<String>,
    /// What the layer above keeps with a saved transaction.
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

    fn new(
        lakehouse: Arc<Lakehouse>,
        base: Arc<Version>,
        info: CommittedTransaction,
        isolation: Isolation,
        has_chosen_id: bool,
    ) -> Transaction {
        // A handle that slept may know less than who began here: no root is ever created below a base.
        lakehouse.learn(base.clone());
        let pending = BackgroundUploads::new(lakehouse.storage().clone(), lakehouse.environment().clone());
        Transaction {
            life: Life::new(&info.id),
            fence: Fence::of(&base, &lakehouse),
            lakehouse,
            info,
            isolation,
            validated: base.clone(),
            base,
            footprint: Arc::default(),
            changes: Changes::default(),
            told: BTreeMap::new(),
            pending,
            writes_first: false,
            saved: Saved { has_record: has_chosen_id, ..Saved::default() },
            effort: None,
            rests_on_past: false,
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

    /// What it began with, for the log.
    pub fn properties(&self) -> &BTreeMap<String, String> {
        &self.info.properties
    }

    pub fn base(&self) -> &Arc<Version> {
        &self.base
    }

    /// Where statements hand files over that nothing but this transaction names. They last before its root is created,
    /// or before it is saved.
    pub fn pending(&self) -> &Arc<BackgroundUploads> {
        &self.pending
    }

    pub fn has_writes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The keys that it changes, in order; those that it renames with their former and their new names.
    pub fn written_keys(&self) -> impl Iterator<Item = &str> {
        self.changes.writes.keys().map(String::as_str)
    }

    pub fn committed_version(&self) -> Option<u64> {
        self.life.committed_version()
    }

    /// Did its commit end without an answer? [`Transaction::rollback`] settles it.
    pub fn is_unknown(&self) -> bool {
        self.life.is_unknown()
    }

    /// May the files that this transaction wrote be deleted? Asked when it is over.
    pub fn files(&self) -> Files {
        self.life.files()
    }

    /// How often it was saved.
    pub fn sequence(&self) -> u64 {
        self.saved.sequence
    }

    fn footprint_mut(&mut self) -> &mut Footprint {
        Arc::make_mut(&mut self.footprint)
    }

    /// `TransactionClosed` if it takes no statement.
    fn check_open(&self) -> Result<()> {
        self.life.check_open()
    }

    /// The clashes are resolved: the transaction goes on from the version that it was held against. Nothing
    /// that it wrote was changed in between, or it was put on what won.
    fn go_on(&mut self) {
        self.life.go_on();
        if self.life.check_open().is_ok() {
            self.base = self.validated.clone();
        }
    }

    /// `LakehouseMoved` where a commit would be refused since the lakehouse lies elsewhere than it records, and
    /// this transaction has not relocated it, `CorruptFile` if newer versions are damaged or lost. To be asked before
    /// files are written for it.
    pub fn check_writable(&self) -> Result<()> {
        self.lakehouse.check_intact()?;
        self.placement().check_writable()
    }

    /// Where the lakehouse lies, and where it records to lie: as this transaction changes it, or else as the newest
    /// version has it. It may have been relocated since this transaction began, which is no reason to refuse it.
    fn placement(&self) -> Placement {
        match &self.changes.definition {
            Some((_, changed)) => Placement::of(self.lakehouse.storage().root(), changed),
            None => self.lakehouse.placement(),
        }
    }

    /// The definition of the lakehouse as this transaction sees it.
    fn definition(&self) -> &LakehouseDefinition {
        self.changes.definition.as_ref().map_or(&self.base.definition, |(_, changed)| changed)
    }

    /// Location now, own writes included; leaves no trace in the footprint.
    async fn peek(&self, key: &str) -> Result<Option<String>> {
        match self.changes.writes.get(key) {
            Some(write) => Ok(write.value.location().map(str::to_string)),
            None => self.base.get(key).await,
        }
    }

    pub async fn exists(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<bool> {
        Ok(self.locate(kind, namespace, name).await?.is_some())
    }

    pub async fn locate(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<String>> {
        self.check_open()?;
        let key = self.base.config.names.key(kind, namespace, name)?;
        self.locate_key(&key).await
    }

    async fn locate_key(&mut self, key: &str) -> Result<Option<String>> {
        if !self.changes.writes.contains_key(key) {
            self.footprint_mut().read_key(key);
        }
        self.peek(key).await
    }

    /// The definition of an object, own writes included.
    pub async fn read(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<Bytes>> {
        self.check_open()?;
        let key = self.base.config.names.key(kind, namespace, name)?;
        let Some(location) = self.locate_key(&key).await? else { return Ok(None) };
        if let Some(Write { value: changes::NewValue::Staged { bytes, .. }, .. }) =
            self.changes.writes.get(&key)
        {
            return Ok(Some(bytes.clone()));
        }
        self.base.read_definition(&location).await.map(Some)
    }

    /// Keys and locations of a range, own writes included, in key order.
    pub async fn list(&mut self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<(String, String)>> {
        self.check_open()?;
        self.footprint_mut().read_range(range);
        self.peek_range(range, limit).await
    }

    async fn peek_range(&self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<(String, String)>> {
        let own: Vec<(&String, &Write)> = self.changes.writes.range::<str, _>(range.bounds()).collect();
        // Own deletes may hide as many rows as there are own writes.
        let wanted = limit.map(|limit| limit.saturating_add(own.len()));
        let mut scan = self.base.scan(range.clone(), wanted, true);
        let mut merged: BTreeMap<String, String> = BTreeMap::new();
        while let Some(batch) = self.base.unless_expired(scan.next_batch().await).await? {
            let locations = batch.locations.iter().flatten();
            for (key, location) in batch.keys.iter().zip(locations) {
                if let (Some(key), Some(location)) = (key, location) {
                    merged.insert(key.to_string(), location.to_string());
                }
            }
        }
        for (key, write) in own {
            match write.value.location() {
                Some(location) => merged.insert(key.clone(), location.to_string()),
                None => merged.remove(key),
            };
        }
        Ok(merged.into_iter().take(limit.unwrap_or(usize::MAX)).collect())
    }
}

#[cfg(test)]
mod tests;

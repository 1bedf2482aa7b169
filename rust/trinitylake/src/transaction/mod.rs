//! A transaction: reads of one version plus own writes, and the footprint they leave.
//!
//! Nothing is visible before [`Transaction::commit`] (in `commit`) creates a root; whether it may is
//! decided in `conflict`. Definition files are staged in memory until then.

mod arrivals;
mod commit;
pub mod conflict;
pub mod distributed;
pub mod fate;
pub mod footprint;
pub(crate) mod group_commit;
mod intents;
mod objects;
pub mod records;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::definition::LakehouseDefinition;
use crate::definition::proto::IsolationLevel;
use crate::error::{Error, Result};
use crate::key::{KeyRange, ObjectKind, check_transaction_id};
use crate::lakehouse::Lakehouse;
use crate::version::Version;
use crate::version::metadata::CommittedTransaction;
pub use commit::{CommitLimits, Coordination, Outcome};
pub use conflict::{Clash, Clashes};
use footprint::Footprint;

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

/// The new location of a key.
#[derive(Clone, Debug)]
enum NewValue {
    /// A definition file that exists: a renamed object keeps its file.
    Existing(String),
    /// A definition file that the commit writes.
    Staged {
        path: String,
        bytes: Bytes,
        written: bool,
    },
    Deleted,
}

impl NewValue {
    fn location(&self) -> Option<&str> {
        match self {
            NewValue::Existing(path) | NewValue::Staged { path, .. } => Some(path),
            NewValue::Deleted => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Write {
    /// Location in the version the write was made on; `None` if the object is new.
    base: Option<String>,
    value: NewValue,
    /// The last version this write is known not to clash with.
    checked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Committed(u64),
    /// Rolled back, or lost for good.
    Closed,
}

#[derive(Debug)]
pub struct Transaction {
    lakehouse: Arc<Lakehouse>,
    base: Arc<Version>,
    /// The version up to which conflicts were looked for.
    validated: Arc<Version>,
    info: CommittedTransaction,
    isolation: Isolation,
    has_chosen_id: bool,
    footprint: Arc<Footprint>,
    writes: BTreeMap<String, Write>,
    new_definition: Option<(String, Arc<LakehouseDefinition>)>,
    is_definition_written: bool,
    unresolved: Clashes,
    state: State,
    /// Up to this version another process may commit it, from the queue.
    queued_until: u64,
    /// How often it was saved.
    sequence: u64,
    began_at_millis: Option<u64>,
    is_changed_since_save: bool,
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
        Transaction {
            lakehouse,
            validated: base.clone(),
            base,
            info,
            isolation,
            has_chosen_id,
            footprint: Arc::default(),
            writes: BTreeMap::new(),
            new_definition: None,
            is_definition_written: false,
            unresolved: Clashes::default(),
            state: State::Open,
            queued_until: 0,
            sequence: 0,
            began_at_millis: None,
            is_changed_since_save: false,
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

    pub fn base(&self) -> &Arc<Version> {
        &self.base
    }

    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty() || self.new_definition.is_some()
    }

    pub fn committed_version(&self) -> Option<u64> {
        match self.state {
            State::Committed(version) => Some(version),
            State::Open | State::Closed => None,
        }
    }

    /// How often it was saved.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Gives up. What was written to storage is nobody's and left to garbage collection.
    pub fn rollback(&mut self) {
        if self.state == State::Open {
            self.state = State::Closed;
            self.writes.clear();
        }
    }

    fn footprint_mut(&mut self) -> &mut Footprint {
        Arc::make_mut(&mut self.footprint)
    }

    fn check_open(&self) -> Result<()> {
        match self.state {
            State::Open => Ok(()),
            State::Committed(version) => Err(Error::InvalidArgument(format!(
                "transaction {} is over: it was committed as version {version}",
                self.info.id
            ))),
            State::Closed => Err(Error::InvalidArgument(format!(
                "transaction {} is over: it was rolled back or lost a conflict",
                self.info.id
            ))),
        }
    }

    /// Location now, own writes included; leaves no trace in the footprint.
    async fn peek(&self, key: &str) -> Result<Option<String>> {
        match self.writes.get(key) {
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
        if !self.writes.contains_key(&key) {
            self.footprint_mut().read_key(&key);
        }
        self.peek(&key).await
    }

    /// The definition of an object, own writes included.
    pub async fn read(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<Bytes>> {
        let Some(location) = self.locate(kind, namespace, name).await? else { return Ok(None) };
        let key = self.base.config.names.key(kind, namespace, name)?;
        if let Some(Write { value: NewValue::Staged { bytes, .. }, .. }) = self.writes.get(&key) {
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
        let own: Vec<(&String, &Write)> = self.writes.range::<str, _>(range.bounds()).collect();
        // Own deletes may hide as many rows as there are own writes.
        let wanted = limit.map(|limit| limit.saturating_add(own.len()));
        let mut scan = self.base.scan(range.clone(), wanted, true);
        let mut merged: BTreeMap<String, String> = BTreeMap::new();
        while let Some(batch) = scan.next_batch().await? {
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

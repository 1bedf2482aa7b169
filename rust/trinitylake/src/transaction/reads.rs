//! Reads of a transaction: its base version with its own writes on top. Reads are recorded in the footprint.
//!
//! Reads between [`Transaction::begin_watch`] and [`Transaction::end_watch`] are watched, including reads of absent
//! objects and listings, because a check of the caller depends on them. If another transaction changes a watched
//! object, the commit stops at every isolation level and reports the change. The caller may then repeat the check on
//! the newest version and commit again.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::changes::{NewValue, Write};
use super::handle::Transaction;
use crate::error::Result;
use crate::key::{KeyRange, ObjectKind};

impl Transaction {
    /// Returns the current location, including own writes, without recording a read in the footprint.
    pub(super) async fn peek(&self, key: &str) -> Result<Option<String>> {
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

    /// Returns the definition of an object, including own writes.
    pub async fn read(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<Bytes>> {
        self.check_open()?;
        let key = self.base.config.names.key(kind, namespace, name)?;
        match self.locate_key(&key).await? {
            Some(location) => self.definition_at(&key, &location).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the definition of a table without recording a read, because the caller tracks the rows that it reads and
    /// watches them before the commit. If the table does not exist, this is recorded as a read.
    pub async fn open_table(&mut self, namespace: &str, name: &str) -> Result<Option<Bytes>> {
        self.check_open()?;
        let key = self.base.config.names.key(ObjectKind::Table, namespace, name)?;
        match self.peek(&key).await? {
            Some(location) => self.definition_at(&key, &location).await.map(Some),
            None => {
                self.locate_key(&key).await?;
                Ok(None)
            }
        }
    }

    async fn definition_at(&self, key: &str, location: &str) -> Result<Bytes> {
        if let Some(Write { value: NewValue::Staged { bytes, .. }, .. }) = self.changes.writes.get(key) {
            return Ok(bytes.clone());
        }
        self.base.read_definition(location).await
    }

    /// Returns the keys and locations of a range, including own writes, in key order.
    pub async fn list(&mut self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<(String, String)>> {
        self.check_open()?;
        self.footprint_mut().read_range(range);
        self.peek_range(range, limit).await
    }

    pub(super) async fn peek_range(&self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<(String, String)>> {
        let own: Vec<(&String, &Write)> = self.changes.writes.range::<str, _>(range.bounds()).collect();
        // Each own delete may hide a row of the base, so read as many more rows.
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

    /// Forgets all watched reads, and watches every read from now on. The version up to which the transaction was
    /// validated becomes its base. This resolves conflicts on watched reads. `TransactionClosed` if conflicts on tables
    /// are still unresolved.
    pub fn begin_watch(&mut self) -> Result<()> {
        self.state.watch_again()?;
        self.rebase_base();
        let footprint = self.footprint_mut();
        footprint.watched = Default::default();
        footprint.is_watching = true;
        Ok(())
    }

    /// Stops watching reads.
    pub fn end_watch(&mut self) {
        self.footprint_mut().is_watching = false;
    }
}

//! Making a transaction a version (format §8): write, claim the next root, and on a lost race rebase.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message as _;

use super::footprint::Requirement;
use super::{Clash, NewValue, State, Transaction, Write};
use crate::definition::{LakehouseDefinition, proto};
use crate::error::{Error, Result};
use crate::lakehouse::{DOUBT_MILLIS, Published};
use crate::node::CREATED_AT_MILLIS;
use crate::node::codec::{Encoded, encode};
use crate::node::draft::{Message, Text};
use crate::path::transaction_path;
use crate::tree::advance::advance;
use crate::tree::node_store::{PARALLEL_REQUESTS, write_new_file};
use crate::version::Version;

/// How long to go on when others keep winning.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    pub max_attempts: u32,
    pub timeout_millis: u64,
}

impl Default for CommitLimits {
    fn default() -> Self {
        CommitLimits { max_attempts: 200, timeout_millis: 120_000 }
    }
}

/// The first pause after a lost race; it doubles up to the second number, and half of it is chance.
const BACKOFF_MILLIS: u64 = 1;
const BACKOFF_MAX_MILLIS: u64 = 250;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed(u64),
    /// Tables that the table format must put on their newer definitions: resolve each with
    /// [`Transaction::reapply`], then commit again.
    Clashes(Vec<Clash>),
}

impl Transaction {
    /// Commits, or says what stands in the way. A transaction without writes commits to its base.
    pub async fn commit(&mut self, limits: CommitLimits) -> Result<Outcome> {
        self.check_open()?;
        if let Some(clash) = self.unresolved.first() {
            return Err(Error::InvalidArgument(format!(
                "table {}.{} was changed by another transaction: apply the changes to its newer definition first",
                clash.namespace, clash.name
            )));
        }
        if !self.has_writes() {
            self.state = State::Committed(self.base.number);
            return Ok(Outcome::Committed(self.base.number));
        }
        match self.try_commit(limits).await {
            Ok(Outcome::Committed(version)) => {
                self.state = State::Committed(version);
                Ok(Outcome::Committed(version))
            }
            Ok(Outcome::Clashes(clashes)) => {
                self.unresolved.clone_from(&clashes);
                Ok(Outcome::Clashes(clashes))
            }
            Err(error) => {
                self.state = State::Closed;
                Err(error)
            }
        }
    }

    /// A clash resolved: `definition` holds this transaction's change on top of the winner's.
    pub fn reapply(&mut self, clash: &Clash, definition: Bytes) -> Result<()> {
        self.check_open()?;
        let Some(position) = self.unresolved.iter().position(|unresolved| unresolved.key == clash.key) else {
            return Err(Error::InvalidArgument(format!(
                "there is no clash on table {}.{}",
                clash.namespace, clash.name
            )));
        };
        let value = self.stage(crate::key::ObjectKind::Table, &clash.namespace, &clash.name, definition);
        let write = Write { base: Some(clash.winner_location.clone()), value, checked: clash.version };
        self.writes.insert(clash.key.clone(), write);
        self.unresolved.remove(position);
        Ok(())
    }

    async fn try_commit(&mut self, limits: CommitLimits) -> Result<Outcome> {
        if let Some(version) = self.record_chosen_id().await? {
            return Ok(Outcome::Committed(version));
        }
        let lakehouse = self.lakehouse.clone();
        let environment = lakehouse.environment().clone();
        let deadline = environment.elapsed_millis() + limits.timeout_millis;
        let mut attempt = 0;
        let mut backoff = BACKOFF_MILLIS;
        let mut target = lakehouse.known();
        loop {
            if target.number > self.validated.number {
                if self.is_recorded(&target).await? {
                    return self.version_of_record().await.map(Outcome::Committed);
                }
                let clashes = self.catch_up(target.number).await?;
                if !clashes.is_empty() {
                    return Ok(Outcome::Clashes(clashes));
                }
            }
            attempt += 1;
            match self.attempt(deadline.max(environment.elapsed_millis() + DOUBT_MILLIS)).await? {
                Published::Committed(version) => return Ok(Outcome::Committed(version.number)),
                Published::Lost => {}
            }
            if attempt >= limits.max_attempts || environment.elapsed_millis() >= deadline {
                return Err(Error::CommitConflict {
                    message: format!(
                        "gave up after {attempt} attempts: others committed first every time, though nothing this \
                         transaction touched; try again, or raise max_attempts or the timeout"
                    ),
                    keys: Vec::new(),
                    winners: Vec::new(),
                });
            }
            if attempt > 1 {
                environment.sleep(Duration::from_millis(environment.random_below(backoff))).await;
                backoff = (backoff * 2).min(BACKOFF_MAX_MILLIS);
            }
            target = lakehouse.latest().await?;
        }
    }

    /// Validates against everything up to `number`.
    async fn catch_up(&mut self, number: u64) -> Result<Vec<Clash>> {
        let versions = match self.lakehouse.versions(self.validated.number + 1, number).await {
            Ok(versions) => versions,
            Err(Error::VersionExpired(message)) => {
                return Err(Error::TransactionExpired(format!(
                    "transaction {} began at version {} and slept too long: {message}, so nobody can tell what it \
                     missed",
                    self.info.id, self.base.number
                )));
            }
            Err(error) => return Err(error),
        };
        self.validate(&versions).await
    }

    async fn attempt(&mut self, doubt_deadline: u64) -> Result<Published> {
        let lakehouse = self.lakehouse.clone();
        let environment = lakehouse.environment();
        let previous = self.validated.clone();
        let advance = advance(
            lakehouse.nodes(),
            environment.as_ref(),
            &previous.config,
            &previous.root,
            self.messages(),
        )
        .await?;
        let now = environment.now_millis().to_string();
        let nodes = advance
            .nodes
            .into_iter()
            .map(|(path, draft)| {
                let system = [(CREATED_AT_MILLIS, now.clone())];
                let config = &previous.config;
                Ok((path, encode(&system, &draft, config.order, config.compression)?))
            })
            .collect::<Result<Vec<(Text, Encoded)>>>()?;
        try_join(self.write_definitions(), lakehouse.nodes().write(nodes)).await?;

        let mut metadata = lakehouse.next_metadata(&previous, vec![self.info.clone()]);
        let mut definition = previous.definition.clone();
        if let Some((path, new_definition)) = &self.new_definition {
            metadata.lakehouse_definition = path.clone();
            metadata.inline_definition = Some(new_definition.bytes().to_vec());
            definition = new_definition.clone();
        }
        lakehouse.publish(&previous, metadata, &advance.root, definition, doubt_deadline).await
    }

    fn messages(&self) -> Vec<Message> {
        let txn: Text = self.info.id.as_str().into();
        self.writes
            .iter()
            .map(|(key, write)| Message {
                key: key.as_str().into(),
                value: write.value.location().map(Into::into),
                txn: txn.clone(),
            })
            .collect()
    }

    /// Writes the definition files of this transaction, once, in parallel.
    async fn write_definitions(&mut self) -> Result<()> {
        let storage = self.lakehouse.storage().clone();
        let definition =
            self.new_definition.iter().map(|(path, definition): &(String, Arc<LakehouseDefinition>)| {
                (path.clone(), definition.bytes().clone())
            });
        let staged = self.writes.values().filter_map(|write| match &write.value {
            NewValue::Staged { path, bytes, written: false } => Some((path.clone(), bytes.clone())),
            _ => None,
        });
        let files: Vec<(String, Bytes)> = definition.chain(staged).collect();
        stream::iter(files)
            .map(|(path, bytes)| {
                let storage = storage.clone();
                async move { write_new_file(storage.as_ref(), &path, bytes).await }
            })
            .buffer_unordered(PARALLEL_REQUESTS)
            .try_collect::<()>()
            .await?;
        for write in self.writes.values_mut() {
            if let NewValue::Staged { written, .. } = &mut write.value {
                *written = true;
            }
        }
        Ok(())
    }

    /// An id that the user chose commits once: its record is a key like any other, required to be absent.
    /// Returns the version of the first commit if there was one.
    async fn record_chosen_id(&mut self) -> Result<Option<u64>> {
        if !self.has_chosen_id {
            return Ok(None);
        }
        let key = self.base.config.names.transaction_key(&self.info.id)?;
        if self.writes.contains_key(&key) {
            return Ok(None);
        }
        let latest = self.lakehouse.latest().await?;
        if self.is_recorded(&latest).await? {
            return self.version_of_record().await.map(Some);
        }
        let record = proto::DistributedTransactionDef {
            id: self.info.id.clone(),
            isolation: match self.isolation {
                super::Isolation::Snapshot => proto::IsolationLevel::Snapshot.into(),
                super::Isolation::Serializable => proto::IsolationLevel::Serializable.into(),
            },
            beginning_root: self.base.root_path.clone(),
            commit_message: self.info.message.clone(),
            ..Default::default()
        };
        let id = self.lakehouse.environment().uuid();
        let sequence = id.as_u64_pair().0;
        let value = NewValue::Staged {
            path: transaction_path(&self.info.id, sequence),
            bytes: Bytes::from(record.encode_to_vec()),
            written: false,
        };
        self.footprint.require(Requirement::Absent(key.clone()));
        self.writes.insert(key, Write { base: None, value, checked: self.base.number });
        Ok(None)
    }

    /// Was the id that the user chose committed by `version` at the latest?
    async fn is_recorded(&self, version: &Version) -> Result<bool> {
        if !self.has_chosen_id {
            return Ok(false);
        }
        let key = self.base.config.names.transaction_key(&self.info.id)?;
        Ok(version.get(&key).await?.is_some())
    }

    /// The version in which this transaction's id was committed before.
    async fn version_of_record(&self) -> Result<u64> {
        let mut before = None;
        loop {
            let versions = self.lakehouse.log(Some(64), before).await?;
            let by_id =
                |version: &&Arc<Version>| version.metadata.committed.iter().any(|txn| txn.id == self.info.id);
            if let Some(version) = versions.iter().find(by_id) {
                return Ok(version.number);
            }
            match versions.last() {
                Some(oldest) if oldest.number > 0 => before = Some(oldest.number),
                _ => {
                    return Err(Error::VersionExpired(format!(
                        "transaction {} was committed before, in a version that has expired",
                        self.info.id
                    )));
                }
            }
        }
    }
}

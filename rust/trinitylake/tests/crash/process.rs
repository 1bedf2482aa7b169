//! A process that works on a lakehouse and keeps a journal of its attempts and their answers. The journal survives the
//! process.
//!
//! Every definition is the list of the transactions that appended to it, so that a lost or a doubled write shows in any
//! later read. A process continues after a refusal or an error; it ends only when a fault kills it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use trinitylake::environment::testing::TestEnvironment;
use trinitylake::error::{Error, Result};
use trinitylake::key::ObjectKind::{self, Table};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::lakehouse_definition::{LakehouseDefinition, proto};
use trinitylake::storage::faulty::{Fault, FaultyStorage};
use trinitylake::transaction::{CommitLimits, Coordination, Outcome, Transaction, TransactionOptions};

use crate::store::Store;

pub type Name = (&'static str, &'static str);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    Create(ObjectKind, Name),
    Append(ObjectKind, Name),
    Drop(ObjectKind, Name),
    Rename(Name, Name),
    /// A rollback to an earlier version.
    GoBack(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Committed(u64),
    /// This process has certainly not committed the attempt.
    Refused,
    /// No process has committed the transaction, and none can.
    RolledBack,
    /// The process died, or got the answer that the outcome is unknown.
    Unknown,
}

/// One transaction of one process. Two processes that resumed the same transaction have an attempt each.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Data files of the statements, which are uploaded in the background.
    pub files: Vec<String>,
    /// Id of the transaction. A rollback or a registration has a generated id, so this is its message.
    pub id: String,
    pub statements: Vec<Statement>,
    pub answer: Answer,
}

#[derive(Debug)]
pub struct Process {
    pub storage: Arc<FaultyStorage>,
    environment: Arc<TestEnvironment>,
    store: Arc<Store>,
    attempts: Arc<Mutex<Vec<Attempt>>>,
    handles: Mutex<Vec<Arc<Lakehouse>>>,
}

pub fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_string).collect()
}

fn appended(content: &[u8], id: &str) -> Bytes {
    let mut lines = lines(content);
    lines.push(id.to_string());
    lines.join("\n").into()
}

/// A definition with small nodes, so that a few commits flush and split.
pub fn definition() -> LakehouseDefinition {
    let properties = [("root.buffer-size-bytes", "600"), ("inner.buffer-size-bytes", "400")];
    LakehouseDefinition::encode(proto::LakehouseDef {
        order: 4,
        namespace_name_max_size_bytes: 20,
        table_name_max_size_bytes: 20,
        view_name_max_size_bytes: 20,
        properties: properties.map(|(name, value)| (name.to_string(), value.to_string())).into(),
        ..Default::default()
    })
}

impl Process {
    pub fn new(store: &Arc<Store>, faults: Vec<Fault>, seed: u64) -> Process {
        Process {
            storage: Arc::new(FaultyStorage::new(store.clone(), faults)),
            environment: TestEnvironment::seeded(seed),
            store: store.clone(),
            attempts: Arc::default(),
            handles: Mutex::default(),
        }
    }

    /// Another process, which survives this one and writes into the same journal.
    pub fn companion(&self) -> Process {
        Process {
            storage: Arc::new(FaultyStorage::new(self.store.clone(), [])),
            environment: self.environment.clone(),
            store: self.store.clone(),
            attempts: self.attempts.clone(),
            handles: Mutex::default(),
        }
    }

    pub fn attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().unwrap().clone()
    }

    /// Handles that were opened; they can be used as long as the process lives.
    pub fn handles(&self) -> Vec<Arc<Lakehouse>> {
        self.handles.lock().unwrap().clone()
    }

    /// Sleeps until all observations of handles are too old to be used.
    pub fn sleep(&self) {
        self.environment.advance(Duration::from_secs(60));
    }

    /// Creates the lakehouse, or opens it if the answer to its creation was lost.
    pub async fn create(&self) -> Option<Arc<Lakehouse>> {
        for _ in 0..3 {
            let created = Lakehouse::create(self.storage.clone(), self.environment.clone(), definition(), None).await;
            match created {
                Ok(lakehouse) => return Some(self.keep(lakehouse)),
                Err(Error::ObjectAlreadyExists(_)) => return self.open().await,
                Err(_) if self.storage.is_dead() => return None,
                Err(_) => {}
            }
        }
        panic!("one lost request keeps a lakehouse from being created");
    }

    pub async fn open(&self) -> Option<Arc<Lakehouse>> {
        for _ in 0..3 {
            match Lakehouse::open(self.storage.clone(), self.environment.clone(), None).await {
                Ok(lakehouse) => return Some(self.keep(lakehouse)),
                Err(Error::Storage { retryable: true, .. }) if !self.storage.is_dead() => {}
                Err(_) if self.storage.is_dead() => return None,
                Err(error) => panic!("the lakehouse does not open: {error}"),
            }
        }
        panic!("one lost request keeps a lakehouse from being opened");
    }

    fn keep(&self, lakehouse: Arc<Lakehouse>) -> Arc<Lakehouse> {
        self.handles.lock().unwrap().push(lakehouse.clone());
        lakehouse
    }

    /// A transaction on the version that the handle knows.
    pub fn begin(&self, lakehouse: &Arc<Lakehouse>, id: Option<&str>) -> Transaction {
        let options = TransactionOptions { id: id.map(str::to_string), ..TransactionOptions::default() };
        lakehouse.begin(lakehouse.known(), options).unwrap()
    }

    /// Runs a complete transaction. Returns its version if it was certainly committed.
    pub async fn transact(&self, lakehouse: &Arc<Lakehouse>, statements: &[Statement]) -> Option<u64> {
        let transaction = self.begin(lakehouse, None);
        self.fill_and_commit(lakehouse, transaction, &[], statements).await
    }

    /// Like [`Process::transact`], for an open transaction, which may contain `earlier` statements.
    pub async fn fill_and_commit(
        &self,
        lakehouse: &Arc<Lakehouse>,
        mut transaction: Transaction,
        earlier: &[Statement],
        statements: &[Statement],
    ) -> Option<u64> {
        self.fill(&mut transaction, statements).await?;
        self.commit(lakehouse, &mut transaction, &[earlier, statements].concat()).await
    }

    /// Runs statements; `None` if one was refused, or its request failed.
    pub async fn fill(&self, transaction: &mut Transaction, statements: &[Statement]) -> Option<()> {
        let id = transaction.id().to_string();
        for statement in statements {
            apply(transaction, statement, &id).await.ok()?;
        }
        Some(())
    }

    pub async fn commit(
        &self,
        lakehouse: &Arc<Lakehouse>,
        transaction: &mut Transaction,
        statements: &[Statement],
    ) -> Option<u64> {
        self.commit_with(CommitLimits::default(), lakehouse, transaction, statements).await
    }

    /// Runs a complete transaction that joins the intent queue after a lost race.
    pub async fn transact_in_queue(&self, lakehouse: &Arc<Lakehouse>, statements: &[Statement]) -> Option<u64> {
        let limits = CommitLimits { coordination: Some(Coordination::Queue), ..CommitLimits::default() };
        let mut transaction = self.begin(lakehouse, None);
        self.fill(&mut transaction, statements).await?;
        self.commit_with(limits, lakehouse, &mut transaction, statements).await
    }

    async fn commit_with(
        &self,
        limits: CommitLimits,
        lakehouse: &Arc<Lakehouse>,
        transaction: &mut Transaction,
        statements: &[Statement],
    ) -> Option<u64> {
        let attempt = self.try_to(transaction.id(), statements);
        let outcome = transaction.commit(limits).await;
        self.conclude(limits, lakehouse, transaction, attempt, outcome).await
    }

    /// Rebases and commits again until the answer to a commit is final.
    async fn conclude(
        &self,
        limits: CommitLimits,
        lakehouse: &Arc<Lakehouse>,
        transaction: &mut Transaction,
        attempt: usize,
        mut outcome: Result<Outcome>,
    ) -> Option<u64> {
        loop {
            match outcome {
                Ok(Outcome::Committed(version)) => return self.answered(attempt, Ok(version)),
                Err(error) => return self.answered(attempt, Err(error)),
                Ok(Outcome::Conflicts(conflicts)) => {
                    for conflict in conflicts.tables {
                        let theirs = match lakehouse.known().read_definition(&conflict.winner_location).await {
                            Ok(theirs) => theirs,
                            Err(error) => return self.answered(attempt, Err(error)),
                        };
                        let ours = appended(&theirs, transaction.id());
                        transaction.rebase(&conflict, ours).unwrap();
                    }
                }
            }
            outcome = transaction.commit(limits).await;
        }
    }

    /// Rolls back a transaction that other processes may commit. Returns `None` unless the rollback certainly
    /// succeeded.
    pub async fn roll_back(&self, transaction: &mut Transaction) -> Option<()> {
        let attempt = self.try_to(transaction.id(), &[]);
        transaction.rollback().await.ok()?;
        self.attempts.lock().unwrap()[attempt].answer = Answer::RolledBack;
        Some(())
    }

    /// Adds an attempt to the journal; its outcome is open until [`Process::answered`].
    pub fn try_to(&self, id: &str, statements: &[Statement]) -> usize {
        let files = statements.iter().filter_map(|statement| data_file(statement, id)).collect();
        let statements = statements.to_vec();
        let attempt = Attempt { id: id.to_string(), statements, files, answer: Answer::Unknown };
        let mut attempts = self.attempts.lock().unwrap();
        attempts.push(attempt);
        attempts.len() - 1
    }

    /// Notes the answer to an attempt of a living process: any answer but an unknown outcome is certain.
    pub fn answered(&self, attempt: usize, answer: Result<u64>) -> Option<u64> {
        let (answer, version) = match answer {
            Ok(version) => (Answer::Committed(version), Some(version)),
            Err(Error::CommitStateUnknown(_)) => (Answer::Unknown, None),
            Err(_) if self.storage.is_dead() => (Answer::Unknown, None),
            Err(_) => (Answer::Refused, None),
        };
        self.attempts.lock().unwrap()[attempt].answer = answer;
        version
    }
}

/// Path of the data file of an append to a table, uploaded in the background.
fn data_file(statement: &Statement, id: &str) -> Option<String> {
    match statement {
        Statement::Append(Table, (namespace, name)) => Some(format!("data/{id}/{namespace}-{name}")),
        _ => None,
    }
}

async fn apply(transaction: &mut Transaction, statement: &Statement, id: &str) -> Result<()> {
    match statement {
        Statement::Create(kind, (namespace, name)) => {
            transaction.create(*kind, namespace, name, Bytes::from(id.to_string())).await
        }
        Statement::Append(kind, (namespace, name)) => {
            let missing = || Error::ObjectNotFound(format!("{namespace}.{name}"));
            let content = transaction.read(*kind, namespace, name).await?.ok_or_else(missing)?;
            if let Some(path) = data_file(statement, id) {
                transaction.pending().put(&path, Bytes::from(path.clone())).await?;
            }
            transaction.replace(*kind, namespace, name, appended(&content, id)).await
        }
        Statement::Drop(kind, (namespace, name)) => transaction.drop_object(*kind, namespace, name).await,
        Statement::Rename(from, to) => transaction.rename(Table, *from, *to).await,
        Statement::GoBack(_) => unreachable!("a rollback is not a statement of a transaction"),
    }
}

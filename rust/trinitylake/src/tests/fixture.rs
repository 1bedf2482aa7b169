//! Test fixtures: files in memory, a small lakehouse on them, and storage that runs work of other writers in between.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;

use crate::environment::testing::TestEnvironment;
use crate::error::Result;
use crate::file_names::{GC_MARKER_PREFIX, LATEST_HINT_PATH, TRANSACTION_PREFIX, root_version};
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
pub use crate::storage::memory_files::MemoryFiles;
use crate::storage::{FileInfo, PutOutcome, Storage};
use crate::transaction::commit::intent_queue::{Waited, wait_in_queue};
use crate::transaction::commit::submission::Submission;
use crate::transaction::{CommitLimits, Coordination, Isolation, Outcome, Transaction, TransactionOptions};
use crate::version::Version;

pub type Job = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The request before which a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worst {
    /// Before a root is created.
    Root,
    /// Before the hint is read.
    Hint,
    /// Before the markers of running collections are listed.
    Collecting,
    /// Before a saved state of a transaction, or a record, is read.
    Record,
    /// Before a root is read, and after all concurrent requests were answered.
    ReadingRoot,
}

/// Storage that runs jobs of another writer at the worst moment: before each request of one type, it runs one waiting
/// job to its end.
pub struct Intruder {
    pub files: Arc<MemoryFiles>,
    worst: Worst,
    jobs: Mutex<VecDeque<Job>>,
}

impl std::fmt::Debug for Intruder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Intruder").finish_non_exhaustive()
    }
}

impl Intruder {
    pub fn new(files: &Arc<MemoryFiles>) -> Arc<Intruder> {
        Intruder::at(files, Worst::Root)
    }

    pub fn at_hint(files: &Arc<MemoryFiles>) -> Arc<Intruder> {
        Intruder::at(files, Worst::Hint)
    }

    pub fn at_collecting(files: &Arc<MemoryFiles>) -> Arc<Intruder> {
        Intruder::at(files, Worst::Collecting)
    }

    pub fn at_record(files: &Arc<MemoryFiles>) -> Arc<Intruder> {
        Intruder::at(files, Worst::Record)
    }

    pub fn at_reading_root(files: &Arc<MemoryFiles>) -> Arc<Intruder> {
        Intruder::at(files, Worst::ReadingRoot)
    }

    fn at(files: &Arc<MemoryFiles>, worst: Worst) -> Arc<Intruder> {
        Arc::new(Intruder { files: files.clone(), worst, jobs: Mutex::default() })
    }

    async fn intrude(&self, moment: Worst) {
        let job = if moment == self.worst { self.jobs().pop_front() } else { None };
        if let Some(job) = job {
            job().await;
        }
    }

    pub fn add<F: Future<Output = ()> + Send + 'static>(&self, job: impl FnOnce() -> F + Send + 'static) {
        self.jobs().push_back(Box::new(|| Box::pin(job())));
    }

    pub fn waiting(&self) -> usize {
        self.jobs().len()
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Storage for Intruder {
    fn root(&self) -> &str {
        self.files.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        if path == LATEST_HINT_PATH {
            self.intrude(Worst::Hint).await;
        }
        if path.starts_with(TRANSACTION_PREFIX) {
            self.intrude(Worst::Record).await;
        }
        if root_version(path).is_some() && self.waiting() > 0 && self.worst == Worst::ReadingRoot {
            tokio::task::yield_now().await;
            self.intrude(Worst::ReadingRoot).await;
        }
        self.files.get(path).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.files.get_range(path, range).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.files.head(path).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        if root_version(path).is_some() {
            self.intrude(Worst::Root).await;
        }
        self.files.put_if_absent(path, bytes).await
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.files.sync(paths).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.files.put_hint(path, bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        if prefix == GC_MARKER_PREFIX {
            self.intrude(Worst::Collecting).await;
        }
        self.files.list(prefix).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.files.delete(path).await
    }
}

/// A lakehouse definition with small nodes, so that a few commits create a tree of several levels.
pub fn small_definition() -> LakehouseDefinition {
    let properties = [("root.buffer-size-bytes", "600"), ("inner.buffer-size-bytes", "400")];
    LakehouseDefinition::encode(proto::LakehouseDef {
        name: "lake".into(),
        order: 4,
        namespace_name_max_size_bytes: 20,
        table_name_max_size_bytes: 20,
        view_name_max_size_bytes: 20,
        properties: properties.map(|(name, value)| (name.to_string(), value.to_string())).into(),
        ..Default::default()
    })
}

pub async fn create(storage: Arc<dyn Storage>, environment: &Arc<TestEnvironment>) -> Arc<Lakehouse> {
    Lakehouse::create(storage, environment.clone(), small_definition(), None).await.unwrap()
}

/// A new lakehouse in memory, with its files and its environment.
pub async fn new_lakehouse() -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<Lakehouse>) {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files.clone(), &environment).await;
    (files, environment, lakehouse)
}

pub async fn open(storage: Arc<dyn Storage>, environment: &Arc<TestEnvironment>) -> Arc<Lakehouse> {
    Lakehouse::open(storage, environment.clone(), None).await.unwrap()
}

/// A transaction on the latest version.
pub async fn begin(lakehouse: &Arc<Lakehouse>, isolation: Isolation) -> Transaction {
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap()
}

/// A transaction that creates a namespace.
pub async fn creating(lakehouse: &Arc<Lakehouse>, namespace: &str) -> Transaction {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    transaction.create(ObjectKind::Namespace, namespace, "", text(namespace)).await.unwrap();
    transaction
}

/// Limits of a commit that uses the queue.
pub fn in_queue() -> CommitLimits {
    CommitLimits { coordination: Some(Coordination::Queue), ..CommitLimits::default() }
}

/// Commits a transaction without conflicts on tables.
pub async fn commit(transaction: &mut Transaction) -> Result<u64> {
    match transaction.commit(CommitLimits::default()).await? {
        Outcome::Committed(version) => Ok(version),
        Outcome::Conflicts(conflicts) => panic!("unexpected conflicts: {conflicts:?}"),
    }
}

/// Leaves an intent of the transaction, like a process that dies while it waits.
pub async fn leave_intent(lakehouse: &Arc<Lakehouse>, transaction: &mut Transaction, last_version: u64) {
    transaction.write_files().await.unwrap();
    let submission = Submission { last_version: Some(last_version), ..transaction.submission() };
    lead_in_queue(lakehouse, submission).await;
}

/// Waits in the queue until the submission may create a root.
pub async fn lead_in_queue(lakehouse: &Arc<Lakehouse>, submission: Submission) {
    let path = lakehouse.commits().intent_path(lakehouse.environment().as_ref(), None);
    let waited = wait_in_queue(lakehouse.publisher(), path, &[submission], u64::MAX).await;
    assert!(matches!(waited, Waited::Lead(_)));
}

pub async fn add_namespace(lakehouse: &Arc<Lakehouse>, namespace: &str) -> Result<u64> {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    transaction.create(ObjectKind::Namespace, namespace, "", text(namespace)).await?;
    commit(&mut transaction).await
}

pub async fn add_table(lakehouse: &Arc<Lakehouse>, namespace: &str, table: &str) -> Result<u64> {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    transaction.create(ObjectKind::Table, namespace, table, text(table)).await?;
    commit(&mut transaction).await
}

/// A definition for tests, which the core does not decode.
pub fn text(content: &str) -> Bytes {
    Bytes::from(content.to_string())
}

/// All keys and locations of a version.
pub async fn contents(version: &Version) -> BTreeMap<String, String> {
    let mut scan = version.scan(crate::key::KeyRange::all(), None, true);
    let mut contents = BTreeMap::new();
    while let Some(batch) = scan.next_batch().await.unwrap() {
        let locations = batch.locations.unwrap();
        let rows = batch.keys.iter().flatten().zip(locations.iter().flatten());
        contents.extend(rows.map(|(key, location)| (key.to_string(), location.to_string())));
    }
    contents
}

/// Names of all objects, in the form of messages.
pub async fn names(version: &Version) -> Vec<String> {
    let name = |key: &String| version.config.names.decode(key).unwrap().to_string();
    contents(version).await.keys().map(name).collect()
}

/// Checks that the tree follows all rules.
pub async fn assert_whole(version: &Version) {
    let shape = version.shape().await.unwrap();
    assert!(shape.problems.is_empty(), "version {}: {:?}", version.number, shape.problems);
}

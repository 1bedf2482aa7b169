//! A transaction. Threads that share one use it one after the other.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use arrow_array::StringArray;
use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tokio::sync::Mutex;
use trinitylake::key::KeyRange;
use trinitylake::transaction::saved::list::SavedTransaction as CoreSaved;
use trinitylake::transaction::{
    CommitLimits, ConflictingTable as CoreConflictingTable, Conflicts as CoreConflicts, Coordination, Files, Outcome,
    Transaction as CoreTransaction,
};
use trinitylake::version::summary_format::{Rows, TableChange};

use crate::append_queue::{Locked, QueuedAppends};
use crate::arrow;
use crate::errors::to_python;
use crate::runtime::{run, run_quick, run_to_end};
use crate::storage::Storage;
use crate::version::{Listing, Version, listing_range, names_of, parse_kind};

#[pyclass(frozen, module = "trinitylake._core")]
pub struct ConflictingTable {
    inner: CoreConflictingTable,
}

#[pymethods]
impl ConflictingTable {
    #[getter]
    fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn winner_location(&self) -> &str {
        &self.inner.winner_location
    }

    #[getter]
    fn version(&self) -> u64 {
        self.inner.version
    }
}

/// Conflicts of a commit that the caller can resolve.
#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct Conflicts {
    tables: Vec<Py<ConflictingTable>>,
    watched: Vec<String>,
}

impl Conflicts {
    fn new(py: Python<'_>, conflicts: CoreConflicts) -> PyResult<Self> {
        let tables = conflicts.tables.into_iter().map(|inner| Py::new(py, ConflictingTable { inner }));
        Ok(Conflicts { tables: tables.collect::<PyResult<_>>()?, watched: conflicts.watched })
    }
}

/// A saved transaction that can be resumed.
#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct SavedTransaction {
    id: String,
    isolation: &'static str,
    message: String,
    author: String,
    properties: BTreeMap<String, String>,
    base_version: u64,
    began_at_millis: u64,
    expire_at_millis: u64,
    sequence: u64,
}

impl From<CoreSaved> for SavedTransaction {
    fn from(saved: CoreSaved) -> Self {
        SavedTransaction {
            id: saved.id,
            isolation: saved.isolation.word(),
            message: saved.message,
            author: saved.author,
            properties: saved.properties,
            base_version: saved.base_version,
            began_at_millis: saved.began_at_millis,
            expire_at_millis: saved.expire_at_millis,
            sequence: saved.sequence,
        }
    }
}

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Transaction {
    pub inner: Arc<Mutex<CoreTransaction>>,
    id: String,
    isolation: &'static str,
    /// Stored outside of the transaction's lock, so that it can be read during a commit.
    base: RwLock<Arc<trinitylake::version::Version>>,
    /// Storage of the lakehouse whose writes are uploaded in the background, until a commit or save.
    storage: Py<Storage>,
}

impl Transaction {
    pub fn new(py: Python<'_>, transaction: CoreTransaction, storage: &Py<Storage>) -> PyResult<Self> {
        let storage = Py::new(py, storage.get().with_pending(transaction.pending().clone()))?;
        Ok(Transaction {
            storage,
            id: transaction.id().to_string(),
            isolation: transaction.isolation().word(),
            base: RwLock::new(transaction.base().clone()),
            inner: Arc::new(Mutex::new(transaction)),
        })
    }

    fn current_base(&self) -> Arc<trinitylake::version::Version> {
        self.base.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads or changes the transaction in memory. If another thread holds the lock, waits for it without the GIL,
    /// because that thread may wait for the GIL. Otherwise keeps the GIL, because releasing it takes longer than most
    /// of this work, in particular if many threads wait for it.
    fn locked<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut CoreTransaction) -> T + Send) -> T {
        if let Ok(mut transaction) = self.inner.try_lock() {
            return act(&mut transaction);
        }
        py.detach(|| act(&mut self.inner.blocking_lock()))
    }
}

macro_rules! with {
    ($self:ident, $py:ident, $run:ident, |$transaction:ident| $future:expr) => {
        $run($py, async {
            let mut guard = $self.inner.lock().await;
            let $transaction: &mut CoreTransaction = &mut guard;
            $future.await
        })
    };
}

fn limits(
    max_attempts: Option<u32>,
    timeout_seconds: Option<f64>,
    coordination: Option<&str>,
) -> PyResult<CommitLimits> {
    let default = CommitLimits::default();
    let millis = |seconds: f64| (seconds.max(0.0) * 1000.0) as u64;
    Ok(CommitLimits {
        max_attempts: max_attempts.unwrap_or(default.max_attempts),
        timeout_millis: timeout_seconds.map_or(default.timeout_millis, millis),
        coordination: coordination.map(Coordination::parse).transpose().map_err(to_python)?,
    })
}

fn outcome_to_python(py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    match outcome {
        Outcome::Committed(version) => version.into_py_any(py),
        Outcome::Conflicts(conflicts) => Conflicts::new(py, conflicts)?.into_py_any(py),
    }
}

#[pymethods]
impl Transaction {
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    #[getter]
    fn isolation(&self) -> &str {
        self.isolation
    }

    #[getter]
    fn properties(&self, py: Python<'_>) -> BTreeMap<String, String> {
        self.locked(py, |transaction| transaction.properties().clone())
    }

    #[getter]
    fn base(&self) -> Version {
        Version { inner: self.current_base() }
    }

    /// Storage of the lakehouse. Files that are written through it are uploaded in the background; they exist and are
    /// durable when the transaction is committed or saved.
    #[getter]
    fn storage(&self, py: Python<'_>) -> Py<Storage> {
        self.storage.clone_ref(py)
    }

    /// Returns the keys that the transaction has changed.
    fn written_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.locked(py, |transaction| StringArray::from_iter_values(transaction.written_keys()));
        arrow::batch(py, vec![("key", Arc::new(keys))])
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn exists(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<bool> {
        let kind = parse_kind(kind)?;
        with!(self, py, run_quick, |transaction| transaction.exists(kind, namespace, name))
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let kind = parse_kind(kind)?;
        let bytes = with!(self, py, run_quick, |transaction| transaction.read(kind, namespace, name))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn open_table<'py>(&self, py: Python<'py>, namespace: &str, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = with!(self, py, run_quick, |transaction| transaction.open_table(namespace, name))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    #[pyo3(signature = (kind, namespace=None, limit=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        namespace: Option<&str>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let names = self.current_base().config.names;
        let range = listing_range(names, parse_kind(kind)?, namespace)?;
        let rows = with!(self, py, run, |transaction| transaction.list(&range, limit))?;
        let mut listing = Listing::new(names);
        for (key, location) in rows {
            listing.push(&key, &location);
        }
        listing.finish(py)
    }

    /// Returns the namespaces and names of the objects that `list` would return, for callers that avoid importing
    /// Arrow.
    #[pyo3(signature = (kind, namespace=None, limit=None))]
    fn names(
        &self,
        py: Python<'_>,
        kind: &str,
        namespace: Option<&str>,
        limit: Option<usize>,
    ) -> PyResult<Vec<(String, String)>> {
        let names = self.current_base().config.names;
        let range = listing_range(names, parse_kind(kind)?, namespace)?;
        let rows = with!(self, py, run, |transaction| transaction.list(&range, limit))?;
        Ok(rows.iter().filter_map(|(key, _)| names_of(names, key)).collect())
    }

    /// Returns the first `limit` keys with a prefix, from `start` on, including own writes.
    fn keys<'py>(&self, py: Python<'py>, prefix: &str, start: &str, limit: usize) -> PyResult<Bound<'py, PyAny>> {
        let mut range = KeyRange::prefix(prefix);
        if start > range.start.as_str() {
            range.start = start.to_string();
        }
        let rows = with!(self, py, run, |transaction| transaction.list(&range, Some(limit)))?;
        let keys = StringArray::from_iter_values(rows.iter().map(|(key, _)| key));
        arrow::batch(py, vec![("key", Arc::new(keys))])
    }

    fn depend_on_version(&self, py: Python<'_>, source: &Version) -> PyResult<()> {
        with!(self, py, run, |transaction| transaction.depend_on_version(&source.inner))
    }

    fn put_back(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str, location: &str) -> PyResult<bool> {
        let kind = parse_kind(kind)?;
        with!(self, py, run, |transaction| transaction.put_back(kind, namespace, name, location))
    }

    fn create(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str, definition: &[u8]) -> PyResult<()> {
        let (kind, definition) = (parse_kind(kind)?, Bytes::copy_from_slice(definition));
        with!(self, py, run_quick, |transaction| transaction.create(kind, namespace, name, definition))
    }

    fn replace(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str, definition: &[u8]) -> PyResult<()> {
        let (kind, definition) = (parse_kind(kind)?, Bytes::copy_from_slice(definition));
        with!(self, py, run_quick, |transaction| transaction.replace(kind, namespace, name, definition))
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn drop(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<()> {
        let kind = parse_kind(kind)?;
        with!(self, py, run_quick, |transaction| transaction.drop_object(kind, namespace, name))
    }

    fn rename(
        &self,
        py: Python<'_>,
        kind: &str,
        namespace: &str,
        name: &str,
        new_namespace: &str,
        new_name: &str,
    ) -> PyResult<()> {
        let kind = parse_kind(kind)?;
        let (from, to) = ((namespace, name), (new_namespace, new_name));
        with!(self, py, run, |transaction| transaction.rename(kind, from, to))
    }

    fn set_lakehouse_definition(&self, py: Python<'_>, definition: &[u8]) -> PyResult<()> {
        let definition = Bytes::copy_from_slice(definition);
        self.locked(py, |transaction| transaction.set_lakehouse_definition(definition)).map_err(to_python)
    }

    /// Describes the changes of a table for the log. Each change has a verb, the row counts (added, removed, changed),
    /// and a text that follows the name of the table.
    fn describe(
        &self,
        py: Python<'_>,
        namespace: &str,
        name: &str,
        changes: Vec<(String, u64, u64, u64, String)>,
    ) -> PyResult<()> {
        let changes = changes.into_iter().map(|(verb, added, removed, changed, tail)| TableChange {
            verb,
            rows: Rows { added, removed, changed },
            tail,
        });
        let changes = changes.collect();
        self.locked(py, |transaction| transaction.describe(namespace, name, changes)).map_err(to_python)
    }

    /// The summary in the log; before the commit, the summary of the changes so far.
    #[getter]
    fn summary(&self, py: Python<'_>) -> String {
        self.locked(py, |transaction| transaction.summary().as_str().to_string())
    }

    /// Adds files that were written before this transaction began.
    #[pyo3(signature = (paths, since_base=false))]
    fn adopt(&self, py: Python<'_>, paths: Vec<String>, since_base: bool) -> PyResult<()> {
        with!(self, py, run, |transaction| transaction.adopt(paths, since_base))
    }

    /// Explains why a file is missing: raises `VersionExpired` or `TransactionExpired` if the version or the
    /// transaction has expired.
    fn check_retained(&self, py: Python<'_>) -> PyResult<()> {
        with!(self, py, run, |transaction| transaction.check_retained())
    }

    /// Raises `LakehouseMoved` if the lakehouse must not be written to at the root where it was opened.
    fn check_writable(&self, py: Python<'_>) -> PyResult<()> {
        self.locked(py, |transaction| transaction.check_writable()).map_err(to_python)
    }

    /// Records the root at which the lakehouse was opened. Returns whether this changes the definition.
    #[pyo3(signature = (former=Vec::new()))]
    fn relocate(&self, py: Python<'_>, former: Vec<String>) -> PyResult<bool> {
        self.locked(py, |transaction| transaction.relocate(&former)).map_err(to_python)
    }

    /// Commits; returns the committed version, or the conflicts to resolve. First uploads `files`, like
    /// `storage.put_many`, because a separate call would release the GIL once more. Not interrupted by signals, because
    /// the caller of an interrupted commit would not know its outcome.
    ///
    /// `companions` are transactions, and `queued` are appends, whose changes are part of this transaction. They are
    /// committed with it or not at all; after conflicts the caller passes them again. With `replaces_first` or
    /// `queued`, this transaction replaces the first companion in the log.
    #[pyo3(signature = (max_attempts=None, timeout_seconds=None, coordination=None, files=Vec::new(),
                        companions=Vec::new(), queued=None, replaces_first=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn commit(
        &self,
        py: Python<'_>,
        max_attempts: Option<u32>,
        timeout_seconds: Option<f64>,
        coordination: Option<&str>,
        files: Vec<(String, PyBackedBytes)>,
        companions: Vec<PyRef<'_, Transaction>>,
        queued: Option<PyRef<'_, QueuedAppends>>,
        replaces_first: bool,
    ) -> PyResult<Py<PyAny>> {
        let replaces_first = replaces_first || queued.is_some();
        let own = queued.as_ref().map_or(Vec::new(), |queued| queued.transactions.clone());
        let queued = queued.map(|queued| queued.inner.clone());
        let companions = companions.iter().map(|companion| companion.inner.clone()).chain(own);
        let companions: Vec<_> = companions.collect();
        let limits = limits(max_attempts, timeout_seconds, coordination)?;
        let storage = self.storage.get();
        let files = files.into_iter().map(|(path, bytes)| (path, Bytes::from_owner(bytes)));
        let outcome = with!(self, py, run_to_end, |transaction| async {
            storage.create_all(files).await?;
            // The future is boxed below, because it has about ten thousand bytes, which would be moved with each
            // enclosing future.
            let mut companions = Locked::all(&companions).await;
            let mut queued = match queued {
                Some(queued) => Some(queued.lock_owned().await),
                None => None,
            };
            let queued = queued.as_deref_mut();
            Box::pin(transaction.commit_with(&mut companions, queued, replaces_first, limits)).await
        })?;
        outcome_to_python(py, outcome)
    }

    fn rebase(&self, py: Python<'_>, conflict: &ConflictingTable, definition: &[u8]) -> PyResult<()> {
        let definition = Bytes::copy_from_slice(definition);
        self.locked(py, |transaction| transaction.rebase(&conflict.inner, definition)).map_err(to_python)
    }

    fn begin_watch(&self, py: Python<'_>) -> PyResult<()> {
        let base = self.locked(py, |transaction| transaction.begin_watch().map(|()| transaction.base().clone()));
        *self.base.write().unwrap_or_else(PoisonError::into_inner) = base.map_err(to_python)?;
        Ok(())
    }

    fn end_watch(&self, py: Python<'_>) {
        self.locked(py, CoreTransaction::end_watch);
    }

    /// Rolls back the transaction for all processes. Not interrupted by signals, because the rollback may have to
    /// create a version.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        with!(self, py, run_to_end, |transaction| transaction.rollback()).map(drop)
    }

    /// Whether the outcome of the commit is unknown.
    #[getter]
    fn is_unknown(&self, py: Python<'_>) -> bool {
        self.locked(py, |transaction| transaction.is_unknown())
    }

    /// Whether no version can ever refer to the files that the transaction wrote.
    #[getter]
    fn files_are_unreachable(&self, py: Python<'_>) -> bool {
        self.locked(py, |transaction| matches!(transaction.files(), Files::Unreachable(_)))
    }

    #[getter]
    fn has_writes(&self, py: Python<'_>) -> bool {
        self.locked(py, |transaction| transaction.has_writes())
    }

    /// Whether the user chose the id, or the transaction was saved.
    #[getter]
    fn has_chosen_id(&self, py: Python<'_>) -> bool {
        self.locked(py, |transaction| transaction.has_chosen_id())
    }

    #[getter]
    fn committed_version(&self, py: Python<'_>) -> Option<u64> {
        self.locked(py, |transaction| transaction.committed_version())
    }

    /// How often the transaction was saved.
    #[getter]
    fn sequence(&self, py: Python<'_>) -> u64 {
        self.locked(py, |transaction| transaction.sequence())
    }

    #[getter]
    fn attachment<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.locked(py, |transaction| transaction.attachment.clone()))
    }

    #[getter]
    fn checks(&self, py: Python<'_>) -> Vec<String> {
        self.locked(py, |transaction| transaction.checks.clone())
    }

    fn save(&self, py: Python<'_>, attachment: &[u8], checks: Vec<String>) -> PyResult<u64> {
        let attachment = Bytes::copy_from_slice(attachment);
        self.locked(py, |transaction| (transaction.attachment, transaction.checks) = (attachment, checks));
        with!(self, py, run_to_end, |transaction| transaction.save())
    }
}

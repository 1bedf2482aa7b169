//! A handle on one lakehouse.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::Array;
use arrow_array::builder::StringBuilder;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3_arrow::input::AnyRecordBatch;
use trinitylake::bulk_registration::{Registered, check, check_size, register_parts, register_since};
use trinitylake::environment::SystemEnvironment;
use trinitylake::error::Error;
use trinitylake::expiry::{Retention, expire_by};
use trinitylake::gc::Options;
use trinitylake::lakehouse::Lakehouse as CoreLakehouse;
use trinitylake::lakehouse_definition::LakehouseDefinition;
use trinitylake::transaction::saved::list;
use trinitylake::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use trinitylake::transaction::saved::transaction_record::is_committed;
use trinitylake::transaction::{Coordination, Isolation, Note, Transaction as CoreTransaction, TransactionOptions};
use trinitylake::tree_compaction::{TreeSize, compact};

use crate::append_queue::QueuedAppends;
use crate::arrow;
use crate::bulk_registration::parts_of;
use crate::distributed_gc::DistributedGc;
use crate::errors::to_python;
use crate::gc::{GcReport, Usage, begin_distributed, collect, measure};
use crate::runtime::{run, run_quick, run_to_end};
use crate::storage::Storage;
use crate::transaction::{SavedTransaction, Transaction};
use crate::version::{Version, VersionInfo, parse_kind};

/// Number of nodes and messages of a tree, and its size in bytes.
type TreeSizes = (usize, usize, usize);

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Lakehouse {
    inner: Arc<CoreLakehouse>,
    storage: Py<Storage>,
}

impl Lakehouse {
    pub fn core(&self) -> &Arc<CoreLakehouse> {
        &self.inner
    }

    /// Creates a handle whose storage also resolves locations below former roots of the lakehouse.
    fn new(py: Python<'_>, inner: Arc<CoreLakehouse>, storage: &Py<Storage>) -> PyResult<Lakehouse> {
        let storage = Py::new(py, storage.get().with_other_roots(inner.placement().other_roots()))?;
        Ok(Lakehouse { inner, storage })
    }
}

#[pymethods]
impl Lakehouse {
    #[staticmethod]
    #[pyo3(signature = (storage, definition, cache_size_bytes=None))]
    fn create(
        py: Python<'_>,
        storage: Py<Storage>,
        definition: &[u8],
        cache_size_bytes: Option<u64>,
    ) -> PyResult<Lakehouse> {
        let definition =
            LakehouseDefinition::decode(Bytes::copy_from_slice(definition), "(new lakehouse)").map_err(to_python)?;
        let files = storage.get().shared();
        let created = CoreLakehouse::create(files, SystemEnvironment::shared(), definition, cache_size_bytes);
        Lakehouse::new(py, run(py, created)?, &storage)
    }

    #[staticmethod]
    #[pyo3(signature = (storage, cache_size_bytes=None))]
    fn open(py: Python<'_>, storage: Py<Storage>, cache_size_bytes: Option<u64>) -> PyResult<Lakehouse> {
        let files = storage.get().shared();
        let opened = CoreLakehouse::open(files, SystemEnvironment::shared(), cache_size_bytes);
        Lakehouse::new(py, run(py, opened)?, &storage)
    }

    #[getter]
    fn storage(&self, py: Python<'_>) -> Py<Storage> {
        self.storage.clone_ref(py)
    }

    /// Whether the lakehouse is at its recorded root URI, or has none recorded.
    #[getter]
    fn is_placed(&self) -> bool {
        self.inner.placement().is_recorded()
    }

    fn latest(&self, py: Python<'_>) -> PyResult<Version> {
        // A local disk answers quickly, so keep the GIL at first.
        Ok(Version { inner: run_quick(py, self.inner.latest())? })
    }

    fn latest_for(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<Version> {
        let kind = parse_kind(kind)?;
        Ok(Version { inner: run(py, self.inner.latest_for(kind, namespace, name))? })
    }

    fn recently_latest(&self) -> Option<Version> {
        self.inner.recently_latest().map(|inner| Version { inner })
    }

    fn version(&self, py: Python<'_>, number: u64) -> PyResult<Version> {
        Ok(Version { inner: run_quick(py, self.inner.version(number))? })
    }

    fn versions(&self, py: Python<'_>, first: u64, last: u64) -> PyResult<Vec<Version>> {
        let tip = self.inner.known();
        let versions = run(py, self.inner.versions(first, last, &tip))?;
        Ok(versions.into_iter().map(|inner| Version { inner }).collect())
    }

    fn version_at(&self, py: Python<'_>, timestamp_millis: i64) -> PyResult<Version> {
        Ok(Version { inner: run(py, self.inner.version_at(timestamp_millis))? })
    }

    #[pyo3(signature = (limit, before=None))]
    fn log(&self, py: Python<'_>, limit: usize, before: Option<u64>) -> PyResult<Vec<VersionInfo>> {
        run(py, async {
            let mut history = self.inner.history(before).await?;
            let mut log = Vec::new();
            loop {
                // Only the summary of each root stays in memory.
                let page = history.page(limit - log.len()).await?;
                if page.is_empty() {
                    return Ok(log);
                }
                log.extend(page.iter().map(VersionInfo::of));
            }
        })
    }

    /// If this handle knows that versions were lost: the path of the missing file, and a message with the next step.
    #[getter]
    fn loss(&self) -> Option<(String, String)> {
        self.inner.loss().map(|error| match error {
            Error::CorruptFile { path, message } => (path, message),
            other => (String::new(), other.to_string()),
        })
    }

    fn oldest(&self, py: Python<'_>) -> PyResult<u64> {
        run(py, self.inner.oldest_version())
    }

    /// Returns the versions that changed an object, newest first, each with the location before and after the change.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[allow(clippy::type_complexity, reason = "rows of three columns")]
    fn key_history(
        &self,
        py: Python<'_>,
        kind: &str,
        namespace: &str,
        name: &str,
        newest: u64,
        oldest: u64,
        limit: usize,
    ) -> PyResult<Vec<(u64, Option<String>, Option<String>)>> {
        let kind = parse_kind(kind)?;
        let steps = run(py, async {
            let key = self.inner.latest().await?.config.names.key(kind, namespace, name)?;
            self.inner.key_history(&key, newest, oldest, limit).await
        })?;
        Ok(steps.into_iter().map(|step| (step.version, step.before, step.after)).collect())
    }

    /// Begins a transaction. With `restart`, an earlier transaction of the same id that was not committed is discarded,
    /// and `base` is ignored.
    #[pyo3(signature = (isolation="snapshot", id=None, message="", author="", properties=None, base=None, restart=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn begin(
        &self,
        py: Python<'_>,
        isolation: &str,
        id: Option<String>,
        message: &str,
        author: &str,
        properties: Option<BTreeMap<String, String>>,
        base: Option<&Version>,
        restart: bool,
    ) -> PyResult<Transaction> {
        let options = TransactionOptions {
            isolation: Isolation::parse(isolation).map_err(to_python)?,
            id,
            message: message.to_string(),
            author: author.to_string(),
            properties: properties.unwrap_or_default(),
        };
        if restart {
            let transaction = run(py, CoreTransaction::restart(&self.inner, options))?;
            return Transaction::new(py, transaction, &self.storage);
        }
        let base = match base {
            Some(version) => version.inner.clone(),
            None => run_quick(py, self.inner.latest())?,
        };
        Transaction::new(py, self.inner.begin(base, options).map_err(to_python)?, &self.storage)
    }

    /// Queues appends to a table, which is given by its id, namespace and name. `rows` is an Arrow IPC stream with the
    /// rows of all appends; each of `transactions` has the log entry of one append.
    fn queue_appends(
        &self,
        py: Python<'_>,
        id: &str,
        table: (String, String),
        transactions: Vec<PyRef<'_, Transaction>>,
        rows: PyBackedBytes,
    ) -> PyResult<QueuedAppends> {
        let transactions = transactions.iter().map(|one| one.inner.clone()).collect();
        QueuedAppends::new(py, &self.inner, id, (&table.0, &table.1), transactions, Bytes::from_owner(rows))
    }

    /// Whether the lakehouse has a queue, through which commits of several processes can share a version.
    #[getter]
    fn has_queue(&self) -> bool {
        self.inner.known().config.coordination == Coordination::Queue
    }

    /// Whether other processes commit at this time.
    #[getter]
    fn is_contended(&self) -> bool {
        self.inner.is_contended()
    }

    fn resume(&self, py: Python<'_>, id: &str) -> PyResult<Transaction> {
        Transaction::new(py, run(py, CoreTransaction::resume(&self.inner, id))?, &self.storage)
    }

    fn saved_transactions(&self, py: Python<'_>) -> PyResult<Vec<SavedTransaction>> {
        Ok(run(py, list::saved(&self.inner))?.into_iter().map(SavedTransaction::from).collect())
    }

    fn outcome(&self, py: Python<'_>, id: &str) -> PyResult<(&'static str, Option<u64>)> {
        Ok(match run(py, outcome_of(&self.inner, id))? {
            TransactionOutcome::Committed(version) => ("committed", version),
            TransactionOutcome::Undone { version, .. } => ("undone", Some(version)),
            TransactionOutcome::RolledBack => ("rolled back", None),
            TransactionOutcome::NotCommitted => ("not committed", None),
            TransactionOutcome::Unknown => ("unknown", None),
        })
    }

    fn is_committed(&self, py: Python<'_>, id: &str) -> PyResult<bool> {
        run(py, is_committed(&self.inner, id))
    }

    #[pyo3(signature = (number, message="", author=""))]
    fn rollback(&self, py: Python<'_>, number: u64, message: &str, author: &str) -> PyResult<u64> {
        Ok(run_to_end(py, self.inner.rollback(number, message, author))?.number)
    }

    /// Expires versions. Returns the expired versions, the size of their roots, the oldest retained version, and the
    /// size of the retained roots.
    #[pyo3(signature = (before=None, maximum_age_millis=None, minimum_versions=None, dry_run=false, message="", author=""))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn expire(
        &self,
        py: Python<'_>,
        before: Option<u64>,
        maximum_age_millis: Option<u64>,
        minimum_versions: Option<u64>,
        dry_run: bool,
        message: &str,
        author: &str,
    ) -> PyResult<(Vec<u64>, u64, u64, u64)> {
        let retention = Retention { before, maximum_age_millis, minimum_versions };
        let note = Note { message: message.into(), author: author.into() };
        let expired = run(py, expire_by(&self.inner, retention, &note, dry_run))?;
        Ok((expired.versions, expired.size_bytes, expired.oldest, expired.kept_size_bytes))
    }

    /// Deletes unreferenced files.
    #[pyo3(signature = (grace_millis=None, dry_run=false, examples=0, on_progress=None, message="", author=""))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn vacuum(
        &self,
        py: Python<'_>,
        grace_millis: Option<u64>,
        dry_run: bool,
        examples: usize,
        on_progress: Option<Py<PyAny>>,
        message: &str,
        author: &str,
    ) -> PyResult<GcReport> {
        let note = Note { message: message.into(), author: author.into() };
        collect(py, &self.inner, Options { grace_millis, dry_run, examples, note }, on_progress)
    }

    /// Begins a collection that an engine distributes to its executors.
    #[pyo3(signature = (grace_millis=None, dry_run=false, message="", author=""))]
    fn begin_distributed_gc(
        &self,
        py: Python<'_>,
        grace_millis: Option<u64>,
        dry_run: bool,
        message: &str,
        author: &str,
    ) -> PyResult<DistributedGc> {
        let note = Note { message: message.into(), author: author.into() };
        begin_distributed(py, &self.inner, Options { grace_millis, dry_run, examples: 0, note })
    }

    /// Measures the disk usage by purpose.
    #[pyo3(signature = (expiring_before=0, small_file_size_bytes=0, on_progress=None))]
    fn usage(
        &self,
        py: Python<'_>,
        expiring_before: u64,
        small_file_size_bytes: u64,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Usage> {
        measure(py, &self.inner, expiring_before, small_file_size_bytes, on_progress)
    }

    fn tag(&self, py: Python<'_>, name: &str) -> PyResult<Version> {
        Ok(Version { inner: run(py, self.inner.tag(name))? })
    }

    #[pyo3(signature = (objects, message="", author="", replace=false, dry_run=false, since=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn register(
        &self,
        py: Python<'_>,
        objects: AnyRecordBatch,
        message: &str,
        author: &str,
        replace: bool,
        dry_run: bool,
        since: Option<&Version>,
    ) -> PyResult<Option<u64>> {
        let latest = run_quick(py, self.inner.latest())?;
        let since = since.map_or_else(|| latest.clone(), |version| version.inner.clone());
        let names = latest.config.names;
        let mut keys = StringBuilder::new();
        let mut locations = StringBuilder::new();
        let (mut keys_size_bytes, mut locations_size_bytes) = (0, 0);
        for batch in objects.into_reader()? {
            let batch = batch.map_err(arrow::failure)?;
            let column = |name: &str| arrow::string_column(&batch, name);
            let (kinds, namespaces, objects, places) =
                (column("kind")?, column("namespace")?, column("name")?, column("location")?);
            for row in 0..batch.num_rows() {
                if kinds.is_null(row) || namespaces.is_null(row) || places.is_null(row) {
                    return Err(to_python(Error::InvalidArgument(format!("row {row} has a null"))));
                }
                let name = if objects.is_null(row) { "" } else { objects.value(row) };
                let key = names.key(parse_kind(kinds.value(row))?, namespaces.value(row), name);
                let (key, location) = (key.map_err(to_python)?, places.value(row));
                keys_size_bytes += key.len();
                locations_size_bytes += location.len();
                check_size(keys_size_bytes.max(locations_size_bytes)).map_err(to_python)?;
                keys.append_value(key);
                locations.append_value(location);
            }
        }
        let (keys, locations) = (keys.finish(), locations.finish());
        if dry_run {
            run(py, check(&self.inner, keys, locations, replace))?;
            return Ok(None);
        }
        let registered = register_since(&self.inner, &since, (keys, locations), replace, message, author);
        Ok(Some(run_to_end(py, registered)?.number))
    }

    #[pyo3(signature = (force=false, dry_run=false, message="", author=""))]
    fn compact(
        &self,
        py: Python<'_>,
        force: bool,
        dry_run: bool,
        message: &str,
        author: &str,
    ) -> PyResult<(Option<u64>, TreeSizes, TreeSizes)> {
        let done = run_to_end(py, compact(&self.inner, force, dry_run, message, author))?;
        let sizes = |size: TreeSize| (size.nodes, size.messages, size.size_bytes);
        Ok((done.version.map(|version| version.number), sizes(done.before), sizes(done.after)))
    }

    #[pyo3(signature = (base, n_rows, parts, message="", author="", registered=(0, 0, 0)))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn register_parts(
        &self,
        py: Python<'_>,
        base: &Version,
        n_rows: usize,
        parts: AnyRecordBatch,
        message: &str,
        author: &str,
        registered: (u64, u64, u64),
    ) -> PyResult<u64> {
        let (namespaces, tables, views) = registered;
        let registered = Registered { namespaces, tables, views };
        let (leaves, loose) = parts_of(base.inner.config.names, parts)?;
        let parts = (n_rows, leaves, loose);
        let registered = register_parts(&self.inner, &base.inner, parts, registered, message, author);
        Ok(run_to_end(py, registered)?.number)
    }
}

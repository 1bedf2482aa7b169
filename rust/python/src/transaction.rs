//! One transaction. Threads that share it take turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trinitylake::transaction::{Clash as CoreClash, CommitLimits, Outcome, Transaction as CoreTransaction};

use crate::errors::to_python;
use crate::runtime::{run, run_to_end};
use crate::version::{Listing, Version, listing_range, parse_kind};

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Clash {
    inner: CoreClash,
}

#[pymethods]
impl Clash {
    #[getter]
    fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn base_location(&self) -> &str {
        &self.inner.base_location
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

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Transaction {
    inner: Mutex<CoreTransaction>,
    id: String,
    isolation: &'static str,
    base: Arc<trinitylake::version::Version>,
}

impl Transaction {
    pub fn new(transaction: CoreTransaction) -> Self {
        Transaction {
            id: transaction.id().to_string(),
            isolation: transaction.isolation().word(),
            base: transaction.base().clone(),
            inner: Mutex::new(transaction),
        }
    }

    /// Only to be called without the GIL: the thread that holds the lock may wait for it.
    fn lock(&self) -> MutexGuard<'_, CoreTransaction> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock is held across awaits, by futures that never leave the thread that blocks on them; a
/// `std::sync::MutexGuard` says it could not be sent, so the future is made inside of the closure.
macro_rules! with {
    ($self:ident, $py:ident, $run:ident, |$transaction:ident| $future:expr) => {{
        let shared = $self;
        $py.detach(|| {
            let mut guard = shared.lock();
            let $transaction: &mut CoreTransaction = &mut guard;
            Python::attach(|py| $run(py, $future))
        })
    }};
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
    fn base(&self) -> Version {
        Version { inner: self.base.clone() }
    }

    #[getter]
    fn has_writes(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().has_writes())
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn exists(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<bool> {
        let kind = parse_kind(kind)?;
        with!(self, py, run, |transaction| transaction.exists(kind, namespace, name))
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
        let bytes = with!(self, py, run, |transaction| transaction.read(kind, namespace, name))?;
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
        let names = self.base.config.names;
        let range = listing_range(names, parse_kind(kind)?, namespace)?;
        let rows = with!(self, py, run, |transaction| transaction.list(&range, limit))?;
        let mut listing = Listing::new(names);
        for (key, location) in rows {
            listing.push(&key, &location);
        }
        listing.finish(py)
    }

    fn create(
        &self,
        py: Python<'_>,
        kind: &str,
        namespace: &str,
        name: &str,
        definition: &[u8],
    ) -> PyResult<()> {
        let (kind, definition) = (parse_kind(kind)?, Bytes::copy_from_slice(definition));
        with!(self, py, run, |transaction| transaction.create(kind, namespace, name, definition))
    }

    fn replace(
        &self,
        py: Python<'_>,
        kind: &str,
        namespace: &str,
        name: &str,
        definition: &[u8],
    ) -> PyResult<()> {
        let (kind, definition) = (parse_kind(kind)?, Bytes::copy_from_slice(definition));
        with!(self, py, run, |transaction| transaction.replace(kind, namespace, name, definition))
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn drop(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<()> {
        let kind = parse_kind(kind)?;
        with!(self, py, run, |transaction| transaction.drop_object(kind, namespace, name))
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
        py.detach(|| self.lock().set_lakehouse_definition(definition)).map_err(to_python)
    }

    /// The committed version, or the clashes to resolve. Not interrupted by signals: a commit that stops
    /// half-way would leave its caller not knowing what it did.
    #[pyo3(signature = (max_attempts=None, timeout_seconds=None))]
    fn commit(
        &self,
        py: Python<'_>,
        max_attempts: Option<u32>,
        timeout_seconds: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let default = CommitLimits::default();
        let limits = CommitLimits {
            max_attempts: max_attempts.unwrap_or(default.max_attempts),
            timeout_millis: timeout_seconds
                .map_or(default.timeout_millis, |seconds| (seconds.max(0.0) * 1000.0) as u64),
        };
        match with!(self, py, run_to_end, |transaction| transaction.commit(limits))? {
            Outcome::Committed(version) => version.into_py_any(py),
            Outcome::Clashes(clashes) => {
                clashes.into_iter().map(|inner| Clash { inner }).collect::<Vec<_>>().into_py_any(py)
            }
        }
    }

    fn reapply(&self, py: Python<'_>, clash: &Clash, definition: &[u8]) -> PyResult<()> {
        let definition = Bytes::copy_from_slice(definition);
        py.detach(|| self.lock().reapply(&clash.inner, definition)).map_err(to_python)
    }

    fn rollback(&self, py: Python<'_>) {
        py.detach(|| self.lock().rollback());
    }
}

//! Appends that wait for a process that appends their rows.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::{Mutex, OwnedMutexGuard};
use trinitylake::lakehouse::Lakehouse as CoreLakehouse;
use trinitylake::transaction::{QueuedAppends as CoreQueuedAppends, Transaction as CoreTransaction};

use crate::runtime::{run, run_to_end};

/// A transaction that this call has locked.
pub struct Locked(OwnedMutexGuard<CoreTransaction>);

impl Locked {
    pub async fn all(transactions: &[Arc<Mutex<CoreTransaction>>]) -> Vec<Locked> {
        join_all(transactions.iter().map(|one| one.clone().lock_owned()))
            .await
            .into_iter()
            .map(Locked)
            .collect()
    }
}

impl AsMut<CoreTransaction> for Locked {
    fn as_mut(&mut self) -> &mut CoreTransaction {
        &mut self.0
    }
}

#[pyclass(frozen, module = "trinitylake._core")]
pub struct QueuedAppends {
    pub inner: Arc<Mutex<CoreQueuedAppends>>,
    lakehouse: Arc<CoreLakehouse>,
    /// Those of this process; none for appends of another one.
    pub transactions: Vec<Arc<Mutex<CoreTransaction>>>,
    rows: Bytes,
}

impl QueuedAppends {
    pub fn new(
        py: Python<'_>,
        lakehouse: &Arc<CoreLakehouse>,
        id: &str,
        table: (&str, &str),
        transactions: Vec<Arc<Mutex<CoreTransaction>>>,
        rows: Bytes,
    ) -> PyResult<QueuedAppends> {
        let inner = run(py, async {
            let mut locked = Locked::all(&transactions).await;
            CoreQueuedAppends::new(lakehouse, id, table, &mut locked, rows)
        })?;
        Ok(QueuedAppends::of(lakehouse, inner, transactions))
    }

    fn of(
        lakehouse: &Arc<CoreLakehouse>,
        inner: CoreQueuedAppends,
        transactions: Vec<Arc<Mutex<CoreTransaction>>>,
    ) -> QueuedAppends {
        let rows = inner.rows.clone();
        QueuedAppends { inner: Arc::new(Mutex::new(inner)), lakehouse: lakehouse.clone(), transactions, rows }
    }
}

#[pymethods]
impl QueuedAppends {
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.rows)
    }

    /// Waits for the own turn. Returns the appends of others, whose rows the caller has to append with its own, or None
    /// if the own ones are committed.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Vec<QueuedAppends>>> {
        let waited = run(py, async {
            let mut transactions = Locked::all(&self.transactions).await;
            self.inner.lock().await.wait(&self.lakehouse, &mut transactions).await
        })?;
        let of_others = |inner| QueuedAppends::of(&self.lakehouse, inner, Vec::new());
        Ok(waited.map(|others| others.into_iter().map(of_others).collect()))
    }

    /// Deletes a file of queued appends of another process, if the caller cannot append its rows.
    fn refuse(&self, py: Python<'_>) -> PyResult<()> {
        run(py, async {
            self.inner.lock().await.refuse(&self.lakehouse).await;
            Ok::<_, trinitylake::error::Error>(())
        })
    }

    /// Aborts the appends for all processes. Returns the version if one contains them. Signals do not interrupt it.
    fn withdraw(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        run_to_end(py, async {
            CoreQueuedAppends::withdraw(&mut Locked::all(&self.transactions).await).await
        })
    }
}

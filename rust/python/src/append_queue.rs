//! Appends that wait until this process or another one appends their rows.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::{Mutex, OwnedMutexGuard};
use trinitylake::error::Error;
use trinitylake::lakehouse::Lakehouse as CoreLakehouse;
use trinitylake::transaction::{QueuedAppends as CoreQueuedAppends, Transaction as CoreTransaction};

use crate::runtime::{run, run_to_end};

/// A transaction that this call has locked.
pub struct Locked(OwnedMutexGuard<CoreTransaction>);

impl Locked {
    pub async fn all(transactions: &[Arc<Mutex<CoreTransaction>>]) -> Vec<Locked> {
        join_all(transactions.iter().map(|one| one.clone().lock_owned())).await.into_iter().map(Locked).collect()
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
    pub transactions: Vec<Arc<Mutex<CoreTransaction>>>,
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
        Ok(QueuedAppends { inner: Arc::new(Mutex::new(inner)), lakehouse: lakehouse.clone(), transactions })
    }
}

#[pymethods]
impl QueuedAppends {
    /// Waits until this process becomes the leader of the queue, or another process has committed its appends. A leader
    /// gets the rows of other processes, and has to append them together with its own. None if the appends are
    /// committed.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let rows = run(py, async {
            let mut transactions = Locked::all(&self.transactions).await;
            let mut queued = self.inner.lock().await;
            let leads = queued.wait(&self.lakehouse, &mut transactions).await?;
            Ok::<_, Error>(leads.then(|| queued.rows_of_others().cloned().collect::<Vec<Bytes>>()))
        })?;
        Ok(rows.map(|rows| rows.iter().map(|rows| PyBytes::new(py, rows)).collect()))
    }

    /// Removes the rows at these positions of the result of `wait`, because the caller cannot append them. The
    /// processes that queued these rows append them.
    #[allow(clippy::needless_pass_by_value, reason = "argument of Python")]
    fn refuse(&self, py: Python<'_>, positions: Vec<usize>) -> PyResult<()> {
        run(py, async {
            self.inner.lock().await.refuse(&self.lakehouse, &positions).await;
            Ok::<_, Error>(())
        })
    }

    /// Aborts the appends for all processes, or returns the version that contains them. Not interrupted by signals.
    fn withdraw(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        run_to_end(py, async { CoreQueuedAppends::withdraw(&mut Locked::all(&self.transactions).await).await })
    }
}

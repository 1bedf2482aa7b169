//! Several transactions that are committed by one call: Python's lock is given up once for all of them.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use trinitylake::error::{Error, Result as CoreResult};
use trinitylake::transaction::{Outcome, Transaction as CoreTransaction, commit_together as core_commit};

use crate::errors::to_python;
use crate::runtime::run_to_end;
use crate::transaction::{Transaction, limits, outcome_to_python};

/// A transaction, and files that are handed over with it.
type Companion = (Py<Transaction>, Vec<(String, PyBackedBytes)>);

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(commit_together, module)?)
}

/// For each what `commit` would return, or the exception that it would raise. Each has files that are handed over first.
#[pyfunction]
#[pyo3(signature = (company, max_attempts=None, timeout_seconds=None, coordination=None))]
fn commit_together(
    py: Python<'_>,
    company: Vec<Companion>,
    max_attempts: Option<u32>,
    timeout_seconds: Option<f64>,
    coordination: Option<&str>,
) -> PyResult<Vec<Py<PyAny>>> {
    let limits = limits(max_attempts, timeout_seconds, coordination)?;
    let (transactions, files): (Vec<Py<Transaction>>, Vec<_>) = company.into_iter().unzip();
    let inner: Vec<_> = transactions.iter().map(|transaction| transaction.get().inner.clone()).collect();
    let mut by_address: Vec<usize> = (0..inner.len()).collect();
    by_address.sort_by_key(|&number| Arc::as_ptr(&inner[number]));
    if by_address.windows(2).any(|two| Arc::ptr_eq(&inner[two[0]], &inner[two[1]])) {
        return Err(to_python(Error::InvalidArgument("a transaction can be committed only once".into())));
    }
    let stores: Vec<_> = transactions.iter().map(|transaction| transaction.get().storage.get()).collect();
    let answers = run_to_end(py, async {
        // In one order everywhere, so that two calls never wait for each other.
        let mut guards = Vec::with_capacity(inner.len());
        for number in by_address {
            guards.push((number, inner[number].lock().await));
        }
        guards.sort_by_key(|(number, _)| *number);
        let handed_over = stores.iter().zip(files).map(|(storage, files)| {
            storage.create_all(files.into_iter().map(|(path, bytes)| (path, Bytes::from_owner(bytes))))
        });
        let handed_over = join_all(handed_over).await;
        let ready = guards.iter_mut().zip(&handed_over).filter(|(_, files)| files.is_ok());
        let mut ready: Vec<&mut CoreTransaction> = ready.map(|((_, guard), _)| &mut **guard).collect();
        let mut outcomes = core_commit(&mut ready, limits).await.into_iter();
        let answer = |files: CoreResult<()>| files.and_then(|()| outcomes.next().unwrap_or_else(unanswered));
        Ok(handed_over.into_iter().map(answer).collect::<Vec<_>>())
    })?;
    let to_python = |answer: CoreResult<Outcome>| match answer {
        Ok(outcome) => outcome_to_python(py, outcome),
        Err(error) => Ok(to_python(error).into_value(py).into_any()),
    };
    answers.into_iter().map(to_python).collect()
}

/// There is an answer for each: never seen.
fn unanswered() -> CoreResult<Outcome> {
    Err(Error::CommitStateUnknown("the commit gave no answer".into()))
}

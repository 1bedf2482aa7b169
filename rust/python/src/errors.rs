//! Conversion of errors of the core to Python exceptions: one class for each kind of error.

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use trinitylake::error::Error;

/// Returns the exception of `trinitylake.errors` for an error of the core.
pub fn to_python(error: Error) -> PyErr {
    Python::attach(|py| match build(py, &error) {
        Ok(exception) => exception,
        Err(failure) => failure,
    })
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let message = error.to_string();
    // No wildcard, so that a new kind of error does not compile without a class.
    let (class, attributes): (&str, Option<Bound<'_, PyDict>>) = match error {
        Error::ObjectNotFound(_) => ("ObjectNotFound", None),
        Error::ObjectAlreadyExists(_) => ("ObjectAlreadyExists", None),
        Error::NamespaceNotEmpty(_) => ("NamespaceNotEmpty", None),
        Error::InvalidName(_) => ("InvalidName", None),
        Error::InvalidLocation(_) => ("InvalidLocation", None),
        Error::InvalidArgument(_) => ("InvalidArgument", None),
        Error::CommitConflict { keys, winners, .. } => {
            let winners: Vec<(u64, &str, &str, &str)> = winners
                .iter()
                .map(|winner| (winner.version, &*winner.transaction_id, &*winner.message, &*winner.author))
                .collect();
            let attributes = PyDict::new(py);
            attributes.set_item("keys", keys)?;
            attributes.set_item("winners", winners)?;
            ("CommitConflict", Some(attributes))
        }
        Error::CommitStateUnknown(_) => ("CommitStateUnknown", None),
        Error::TransactionExpired(_) => ("TransactionExpired", None),
        Error::TransactionClosed(_) => ("TransactionClosed", None),
        Error::VersionNotFound(_) => ("VersionNotFound", None),
        Error::VersionExpired(_) => ("VersionExpired", None),
        Error::CorruptFile { path, .. } => ("CorruptFile", Some([("path", path)].into_py_dict(py)?)),
        Error::UnsupportedVersion(_) => ("UnsupportedVersion", None),
        Error::FileNotFound { .. } => ("StorageError", Some([("retryable", false)].into_py_dict(py)?)),
        Error::Storage { retryable, .. } => ("StorageError", Some([("retryable", *retryable)].into_py_dict(py)?)),
        Error::StorageRefused(_) => ("StorageError", Some([("retryable", false)].into_py_dict(py)?)),
        Error::PermissionDenied(_) => ("PermissionDenied", None),
        Error::NotALakehouse(_) => ("NotALakehouse", None),
        Error::LakehouseMoved(_) => ("LakehouseMoved", None),
    };
    let class = py.import("trinitylake.errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((message,), attributes.as_ref())?))
}

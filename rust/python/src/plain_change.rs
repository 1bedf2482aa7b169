//! Bodies of commits to one table that set and remove properties, and do nothing else.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use trinitylake::transaction::table_properties::{PropertyChange, plain_change as core_plain_change};

/// Namespace and name, the id that the table must have, and what is set (dict) and removed (list), one after the other.
type PlainChange<'py> = (Option<Bound<'py, PyTuple>>, Option<String>, Vec<Bound<'py, PyAny>>);

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(plain_change, module)?)
}

/// `None` for a body that says more or something else, or is wrong.
#[pyfunction]
fn plain_change<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Option<PlainChange<'py>>> {
    let Some(plain) = core_plain_change(body) else { return Ok(None) };
    let identifier = plain.identifier.map(|parts| PyTuple::new(py, parts)).transpose()?;
    let changes = plain.changes.into_iter().map(|change| match change {
        PropertyChange::Set(properties) => {
            let set = PyDict::new(py);
            for (name, value) in properties {
                set.set_item(name, value)?;
            }
            Ok(set.into_any())
        }
        PropertyChange::Remove(names) => Ok(PyList::new(py, names)?.into_any()),
    });
    Ok(Some((identifier, plain.table_uuid, changes.collect::<PyResult<_>>()?)))
}

//! Manifests of Iceberg tables, and Bloom filters of Parquet files.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use trinitylake::iceberg;

use crate::arrow;
use crate::errors::to_python;

/// For each value whether the file may contain it. `None` if the filter cannot be evaluated.
#[pyfunction]
#[pyo3(signature = (filter, values))]
fn bloom_filter_may_hold<'py>(
    py: Python<'py>,
    filter: &[u8],
    values: PyArray,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let found = iceberg::bloom_filter::may_hold(filter, values.array());
    found.map(|found| arrow::array(py, Arc::new(found))).transpose()
}

#[pyfunction]
fn data_manifests(list: &[u8], path: &str) -> PyResult<Option<Vec<String>>> {
    iceberg::data_manifests(&Bytes::copy_from_slice(list), path).map_err(to_python)
}

#[pyfunction]
fn data_files(manifest: &[u8], path: &str) -> PyResult<Vec<(String, String, i64, i64)>> {
    let files = iceberg::data_files(&Bytes::copy_from_slice(manifest), path).map_err(to_python)?;
    Ok(files.into_iter().map(|one| (one.location, one.format, one.n_rows, one.size_bytes)).collect())
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(data_manifests, module)?)?;
    module.add_function(wrap_pyfunction!(data_files, module)?)?;
    module.add_function(wrap_pyfunction!(bloom_filter_may_hold, module)?)
}

//! Bloom filters of Parquet files.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use trinitylake::iceberg;

use crate::arrow;

/// Returns for each value whether the file may contain it. `None` if the filter cannot be evaluated.
#[pyfunction]
#[pyo3(signature = (filter, values))]
pub fn bloom_filter_may_hold<'py>(
    py: Python<'py>,
    filter: &[u8],
    values: PyArray,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let found = iceberg::bloom_filter::may_hold(filter, values.array());
    found.map(|found| arrow::array(py, Arc::new(found))).transpose()
}

//! What Bloom filters and footers of Parquet files say.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use trinitylake::iceberg;

use crate::arrow;

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

/// For each row group, the size of the texts of each column. `None` if the footer does not say.
#[pyfunction]
fn text_sizes(tail: Vec<u8>) -> Option<Vec<Vec<Option<u64>>>> {
    iceberg::text_sizes::text_sizes(&Bytes::from(tail))
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(bloom_filter_may_hold, module)?)?;
    module.add_function(wrap_pyfunction!(text_sizes, module)?)
}

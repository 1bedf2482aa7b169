//! The rows of small Parquet files of a local disk, and what Bloom filters and footers say.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3_arrow::{PyArray, PyRecordBatch, PySchema};

use crate::arrow;

/// What a file holds; None if it is larger than was said of it, or no file: a pipe would be waited for, for ever.
fn contents(path: &str, max_size_bytes: u64) -> std::io::Result<Option<Bytes>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > max_size_bytes {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    std::fs::File::open(path)?.take(max_size_bytes).read_to_end(&mut bytes)?;
    Ok(Some(Bytes::from(bytes)))
}

/// The rows of the first files, and of how many.
#[pyfunction]
#[pyo3(signature = (paths, columns, max_size_bytes, max_file_size_bytes))]
fn read_together<'py>(
    py: Python<'py>,
    paths: Vec<String>,
    columns: PySchema,
    max_size_bytes: usize,
    max_file_size_bytes: u64,
) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let columns = columns.into_inner();
    let (batch, count) = py.detach(|| {
        let files = paths.iter().map(|path| contents(path, max_file_size_bytes).ok().flatten());
        trinitylake_rows::read_together(files, &columns, max_size_bytes)
    });
    Ok((PyRecordBatch::new(batch).into_pyarrow(py)?, count))
}

/// Of each value, whether it may be in a file; None if the filter does not say.
#[pyfunction]
#[pyo3(signature = (filter, values))]
fn bloom_filter_may_hold<'py>(
    py: Python<'py>,
    filter: &[u8],
    values: PyArray,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let found = trinitylake_rows::bloom_filter::may_hold(filter, values.array());
    found.map(|found| arrow::array(py, Arc::new(found))).transpose()
}

/// For each row group, and each of its columns, the bytes of its texts; None if the footer does not say.
#[pyfunction]
fn text_sizes(tail: Vec<u8>) -> Option<Vec<Vec<Option<u64>>>> {
    trinitylake_rows::text_sizes::text_sizes(&Bytes::from(tail))
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(bloom_filter_may_hold, module)?)?;
    module.add_function(wrap_pyfunction!(text_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(read_together, module)?)
}

//! Functions on Arrow columns of paths, keys and names.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::{PyArray, PyRecordBatch};
use trinitylake::environment::SystemEnvironment;
use trinitylake::key::NameSizes;
use trinitylake::optimized_path::optimize;
use trinitylake::root_uri::RootUri;
use trinitylake::{arrow_columns, definition_file};
use trinitylake::{file_names, object_name};

use crate::arrow;
use crate::errors::to_python;
use crate::version::parse_kind;

pub fn name_sizes((namespace, table, view): (usize, usize, usize)) -> NameSizes {
    NameSizes { namespace, table, view }
}

#[pyfunction]
fn optimize_paths<'py>(py: Python<'py>, paths: PyArray) -> PyResult<Bound<'py, PyAny>> {
    let paths = arrow::strings(&paths)?;
    let optimized = py.detach(|| arrow_columns::optimize_paths(&paths)).map_err(to_python)?;
    arrow::array(py, Arc::new(optimized))
}

#[pyfunction]
fn optimize_path(path: &str) -> String {
    optimize(path)
}

#[pyfunction]
fn root_path(version: u64) -> String {
    file_names::root_path(version)
}

#[pyfunction]
fn root_version(path: &str) -> Option<u64> {
    file_names::root_version(path)
}

#[pyfunction]
#[pyo3(signature = (kind, namespace, name, max_size_bytes=200))]
fn definition_path(kind: &str, namespace: &str, name: &str, max_size_bytes: usize) -> PyResult<String> {
    let id = SystemEnvironment::shared().uuid();
    Ok(file_names::definition_path(parse_kind(kind)?, namespace, name, id, max_size_bytes))
}

#[pyfunction]
fn encode_definition_file<'py>(py: Python<'py>, path: &str, definition: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &definition_file::encode_file(path, definition))
}

#[pyfunction]
fn decode_definition_file<'py>(py: Python<'py>, path: &str, file: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let file = Bytes::copy_from_slice(file);
    let definition = definition_file::decode_file(path, &file).map_err(to_python)?;
    Ok(PyBytes::new(py, &definition))
}

#[pyfunction]
fn managed_table_folder(namespace: &str, name: &str, id: &str) -> String {
    trinitylake::managed_table_folder::managed_table_folder(namespace, name, id)
}

#[pyfunction]
fn encode_keys<'py>(
    py: Python<'py>,
    kind: &str,
    namespaces: PyArray,
    names: Option<PyArray>,
    sizes: (usize, usize, usize),
) -> PyResult<Bound<'py, PyAny>> {
    let kind = parse_kind(kind)?;
    let namespaces = arrow::strings(&namespaces)?;
    let names = names.as_ref().map(arrow::strings).transpose()?;
    let keys = py
        .detach(|| arrow_columns::encode_keys(kind, &namespaces, names.as_ref(), name_sizes(sizes)))
        .map_err(to_python)?;
    arrow::array(py, Arc::new(keys))
}

#[pyfunction]
fn decode_keys<'py>(py: Python<'py>, keys: PyArray, sizes: (usize, usize, usize)) -> PyResult<Bound<'py, PyAny>> {
    let keys = arrow::strings(&keys)?;
    let decoded = py.detach(|| arrow_columns::decode_keys(&keys, name_sizes(sizes))).map_err(to_python)?;
    PyRecordBatch::new(decoded).into_pyarrow(py)
}

#[pyfunction]
fn check_name(name: &str, max_size_bytes: usize) -> PyResult<()> {
    object_name::check_name("object", name, max_size_bytes).map_err(to_python)
}

#[pyfunction]
fn normalize_root(uri: &str) -> PyResult<String> {
    Ok(RootUri::parse(uri).map_err(to_python)?.as_str().to_string())
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(optimize_paths, module)?)?;
    module.add_function(wrap_pyfunction!(optimize_path, module)?)?;
    module.add_function(wrap_pyfunction!(root_path, module)?)?;
    module.add_function(wrap_pyfunction!(root_version, module)?)?;
    module.add_function(wrap_pyfunction!(definition_path, module)?)?;
    module.add_function(wrap_pyfunction!(encode_definition_file, module)?)?;
    module.add_function(wrap_pyfunction!(decode_definition_file, module)?)?;
    module.add_function(wrap_pyfunction!(managed_table_folder, module)?)?;
    module.add_function(wrap_pyfunction!(encode_keys, module)?)?;
    module.add_function(wrap_pyfunction!(decode_keys, module)?)?;
    module.add_function(wrap_pyfunction!(check_name, module)?)?;
    module.add_function(wrap_pyfunction!(normalize_root, module)?)
}

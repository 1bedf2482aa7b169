//! Copies versions, and the files that they reference, to another lakehouse.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use trinitylake::environment::{Environment, SystemEnvironment};
use trinitylake::export::{CopiedTree, ExportNote, publish, publish_same};
use trinitylake::lakehouse_definition::LakehouseDefinition;
use trinitylake::storage::copy::{CopiedFile, copy_files as copy};
use trinitylake::tree::diff::new_nodes;
use trinitylake::version::expiry_boundary;

use crate::arrow;
use crate::errors::to_python;
use crate::lakehouse::Lakehouse;
use crate::runtime::{run, run_to_end};
use crate::storage::Storage;
use crate::version::Version;

/// Copies files to the same paths. Returns the number and total size of the copied files, and the number of files that
/// already existed.
#[pyfunction]
fn copy_files(
    py: Python<'_>,
    source: &Storage,
    target: &Storage,
    files: Vec<(String, Option<u64>)>,
    is_resumed: bool,
    is_same_store: bool,
) -> PyResult<(u64, u64, u64)> {
    let files = files.into_iter().map(|(path, size_bytes)| CopiedFile { path, size_bytes }).collect();
    let (source, target) = (source.retrying(), target.retrying());
    let done = run(py, async { copy(source.as_ref(), target.as_ref(), files, is_resumed, is_same_store).await })?;
    Ok((done.files, done.size_bytes, done.present))
}

/// Returns the node files below the root of a version, except those in the tree of an older version.
#[pyfunction]
#[pyo3(signature = (newer, older=None))]
fn new_node_paths(py: Python<'_>, newer: &Version, older: Option<&Version>) -> PyResult<Vec<String>> {
    let older = older.map(|older| (older.inner.nodes().as_ref(), &older.inner.root));
    run(py, new_nodes(older, (newer.inner.nodes().as_ref(), &newer.inner.root)))
}

/// Publishes a tree in the target lakehouse, as its next version or its first one.
#[pyfunction]
#[pyo3(signature = (storage, definition, target=None, source=None, objects=None, changes=None, properties=Vec::new(), message="", author="", after=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
fn publish_tree(
    py: Python<'_>,
    storage: &Storage,
    definition: &[u8],
    target: Option<&Lakehouse>,
    source: Option<&Version>,
    objects: Option<(PyArray, PyArray)>,
    changes: Option<Vec<(String, Option<String>)>>,
    properties: Vec<(String, String)>,
    message: &str,
    author: &str,
    after: Option<u64>,
) -> PyResult<u64> {
    let definition = decoded(definition)?;
    let tree = match (source, objects, changes) {
        (Some(version), _, _) => CopiedTree::Of(version.inner.as_ref()),
        (None, Some((keys, locations)), _) => {
            CopiedTree::Objects(Box::new((arrow::strings(&keys)?, arrow::strings(&locations)?)))
        }
        (None, None, changes) => CopiedTree::Changes(changes.unwrap_or_default()),
    };
    let note = ExportNote { message: message.into(), author: author.into(), after, properties };
    let environment: Arc<dyn Environment> = SystemEnvironment::shared();
    let files = storage.retrying();
    let target = target.map(|target| target.core().clone());
    run_to_end(py, publish(&files, &environment, target.as_ref(), tree, definition, note))
}

/// Publishes a version in the target lakehouse under the same number.
#[pyfunction]
fn publish_version(py: Python<'_>, storage: &Storage, source: &Version, definition: &[u8]) -> PyResult<()> {
    let definition = decoded(definition)?;
    let environment: Arc<dyn Environment> = SystemEnvironment::shared();
    let files = storage.retrying();
    run_to_end(py, async {
        publish_same(&files, &environment, &source.inner, definition).await?;
        trinitylake::version::discovery::write_hint(files.as_ref(), source.inner.number).await;
        Ok(())
    })
}

/// Publishes an expiry boundary in the target lakehouse.
#[pyfunction]
fn publish_boundary(py: Python<'_>, storage: &Storage, version: u64) -> PyResult<()> {
    let files = storage.retrying();
    run(py, async { expiry_boundary::publish(files.as_ref(), version).await })
}

fn decoded(definition: &[u8]) -> PyResult<LakehouseDefinition> {
    LakehouseDefinition::decode(Bytes::copy_from_slice(definition), "(lakehouse)").map_err(to_python)
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(copy_files, module)?)?;
    module.add_function(wrap_pyfunction!(new_node_paths, module)?)?;
    module.add_function(wrap_pyfunction!(publish_tree, module)?)?;
    module.add_function(wrap_pyfunction!(publish_version, module)?)?;
    module.add_function(wrap_pyfunction!(publish_boundary, module)?)
}

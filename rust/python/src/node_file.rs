//! Functions for programs that read node files themselves: read a node, search it, merge buffers.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, StringArray};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::input::AnyRecordBatch;
use trinitylake::error::Error;
use trinitylake::node::codec::decode;
use trinitylake::node::mutable_node::{Message, coalesce};
use trinitylake::node::{Found, Node};

use crate::arrow;
use crate::errors::to_python;

#[pyclass(frozen, module = "trinitylake._core")]
pub struct NodeFile {
    #[pyo3(get)]
    path: String,
    node: Node,
}

fn invalid(message: impl Into<String>) -> PyErr {
    to_python(Error::InvalidArgument(message.into()))
}

#[pymethods]
impl NodeFile {
    /// Leaf = 0; None for an inner node whose writer did not record it.
    #[getter]
    fn height(&self) -> Option<u32> {
        self.node.height()
    }

    #[getter]
    fn n_keys(&self) -> usize {
        self.node.n_keys()
    }

    #[getter]
    fn order(&self) -> usize {
        self.node.order()
    }

    #[getter]
    fn system(&self) -> BTreeMap<&str, &str> {
        self.node.system_rows().collect()
    }

    #[getter]
    fn table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows = self.node.table_rows();
        arrow::batch(py, vec![("key", Arc::new(rows.0)), ("value", Arc::new(rows.1)), ("pnode", Arc::new(rows.2))])
    }

    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let messages = self.node.messages().map(Message::from).collect();
        messages_batch(py, messages)
    }

    /// Result of a search in the node: ("message", value or None), ("row", value), ("child", path) or ("absent", None).
    fn search(&self, key: &str) -> (&'static str, Option<&str>) {
        match self.node.search(key) {
            Found::Message(value) => ("message", value),
            Found::Row(value) => ("row", Some(value)),
            Found::Child(i) => ("child", Some(self.node.child(i))),
            Found::Absent => ("absent", None),
        }
    }

    fn __repr__(&self) -> String {
        let node = &self.node;
        let height = node.height().map_or("unknown".to_string(), |height| height.to_string());
        format!("NodeFile(height={height}, n_keys={}, n_messages={})", node.n_keys(), node.n_messages())
    }
}

fn messages_batch(py: Python<'_>, messages: Vec<Message>) -> PyResult<Bound<'_, PyAny>> {
    let keys = StringArray::from_iter_values(messages.iter().map(|message| &*message.key));
    let values: StringArray = messages.iter().map(|message| message.value.as_deref()).collect();
    let txns = StringArray::from_iter_values(messages.iter().map(|message| &*message.txn));
    arrow::batch(py, vec![("key", Arc::new(keys)), ("value", Arc::new(values)), ("txn", Arc::new(txns))])
}

#[pyfunction]
#[pyo3(signature = (data, path=""))]
fn read_node(py: Python<'_>, data: &Bound<'_, PyBytes>, path: &str) -> PyResult<NodeFile> {
    let bytes = Bytes::copy_from_slice(data.as_bytes());
    let node = py.detach(|| decode(bytes, path, None)).map_err(to_python)?;
    Ok(NodeFile { path: path.to_string(), node })
}

/// Merges write buffers, ordered from oldest to newest. Returns the newest message of each key, sorted by key.
#[pyfunction]
fn merge_messages(py: Python<'_>, buffers: Vec<AnyRecordBatch>) -> PyResult<Bound<'_, PyAny>> {
    let mut messages = Vec::new();
    for buffer in buffers {
        for batch in buffer.into_reader()? {
            let batch = batch.map_err(arrow::failure)?;
            let column = |name: &str| arrow::string_column(&batch, name);
            let (keys, values, txns) = (column("key")?, column("value")?, column("txn")?);
            for row in 0..batch.num_rows() {
                if keys.is_null(row) || txns.is_null(row) {
                    return Err(invalid(format!("row {row} is not a message: key and txn must not be null")));
                }
                messages.push(Message::new(
                    keys.value(row).into(),
                    values.is_valid(row).then(|| values.value(row).into()),
                    txns.value(row).into(),
                ));
            }
        }
    }
    let mut merged = coalesce(messages);
    merged.sort_by(|a, b| a.key.cmp(&b.key));
    messages_batch(py, merged)
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_node, module)?)?;
    module.add_function(wrap_pyfunction!(merge_messages, module)?)
}

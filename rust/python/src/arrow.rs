//! Arrow data from and to Python, through the PyCapsule interface.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::prelude::*;
use pyo3_arrow::{PyArray, PyRecordBatch};
use trinitylake::error::Error;

use crate::errors::to_python;

pub fn failure(error: ArrowError) -> PyErr {
    to_python(Error::InvalidArgument(error.to_string()))
}

/// Converts an Arrow column of any string type to `StringArray`.
pub fn strings(array: &PyArray) -> PyResult<StringArray> {
    strings_of(array.array())
}

fn strings_of(array: &ArrayRef) -> PyResult<StringArray> {
    match array.data_type() {
        DataType::Utf8 => Ok(array.as_string::<i32>().clone()),
        DataType::LargeUtf8 => Ok(array.as_string::<i64>().iter().collect()),
        DataType::Utf8View => Ok(array.as_string_view().iter().collect()),
        DataType::Null => Ok(StringArray::new_null(array.len())),
        other => Err(to_python(Error::InvalidArgument(format!("expected a column of strings, got {other}")))),
    }
}

/// Returns a column of strings from a record batch.
pub fn string_column(batch: &RecordBatch, name: &str) -> PyResult<StringArray> {
    match batch.column_by_name(name) {
        Some(column) => strings_of(column),
        None => Err(to_python(Error::InvalidArgument(format!("the column {name:?} is missing")))),
    }
}

pub fn string_schema(columns: &[&str]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|column| Field::new(*column, DataType::Utf8, true)).collect::<Vec<_>>()))
}

/// Returns a pyarrow record batch with these columns.
pub fn batch<'py>(py: Python<'py>, columns: Vec<(&str, ArrayRef)>) -> PyResult<Bound<'py, PyAny>> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(failure)?;
    PyRecordBatch::new(batch).into_pyarrow(py)
}

/// Returns a pyarrow array.
pub fn array(py: Python<'_>, array: ArrayRef) -> PyResult<Bound<'_, PyAny>> {
    py.import("pyarrow")?.call_method1("array", (PyArray::from_array_ref(array),))
}

//! Registration of many objects by several processes, each of which writes some leaves of the tree. Before that, an
//! engine sorts the objects by unpadded keys.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::builder::{StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, StringArray, UInt64Array};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use pyo3_arrow::input::AnyRecordBatch;
use trinitylake::config::TreeConfig;
use trinitylake::environment::{Environment, SystemEnvironment};
use trinitylake::error::{Error, Result};
use trinitylake::key::NameSizes;
use trinitylake::lakehouse_definition::LakehouseDefinition;
use trinitylake::node::mutable_node::Row;
use trinitylake::storage::Storage as CoreStorage;
use trinitylake::tree::bulk_build::NodeWriter;
use trinitylake::tree::distributed_bulk_build::{Leaf, LeafWriter as CoreWriter, LooseRow};
use trinitylake::unpadded_key::{key_of, unpadded_key};

use crate::arrow::{self, string_column};
use crate::errors::to_python;
use crate::paths_and_keys::name_sizes;
use crate::runtime::run;
use crate::storage::Storage;

const COLUMNS: [&str; 4] = ["number", "path", "text", "location"];

#[pyclass(frozen, module = "trinitylake._core")]
pub struct LeafWriter {
    storage: Arc<dyn CoreStorage>,
    environment: Arc<dyn Environment>,
    config: TreeConfig,
    /// `None` after the writer has finished or failed.
    writer: Mutex<Option<CoreWriter>>,
}

#[pymethods]
impl LeafWriter {
    #[new]
    fn new(storage: &Storage, definition: &[u8], n_rows: usize, first_row: usize) -> PyResult<LeafWriter> {
        let definition = LakehouseDefinition::decode(Bytes::copy_from_slice(definition), "(lakehouse)");
        let config = definition.and_then(|definition| TreeConfig::of(&definition)).map_err(to_python)?;
        Ok(LeafWriter {
            storage: storage.shared(),
            environment: SystemEnvironment::shared(),
            config,
            writer: Mutex::new(Some(CoreWriter::new(n_rows, config.order, first_row))),
        })
    }

    fn write<'py>(&self, py: Python<'py>, objects: AnyRecordBatch) -> PyResult<Bound<'py, PyAny>> {
        let names = self.config.names;
        let mut writer = self.take()?;
        let target =
            NodeWriter { storage: self.storage.as_ref(), environment: self.environment.as_ref(), config: &self.config };
        let mut leaves = Vec::new();
        for batch in objects.into_reader()? {
            let batch = batch.map_err(arrow::failure)?;
            let (texts, locations) = (string_column(&batch, "text")?, string_column(&batch, "location")?);
            let rows: Result<Vec<Row>> = texts.iter().zip(locations.iter()).map(|row| row_of(names, row)).collect();
            leaves.extend(run(py, writer.push(&target, rows.map_err(to_python)?))?);
        }
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        let rows = leaves.iter().map(|leaf| (leaf.number, Some(&*leaf.path), leaf.separator.as_ref()));
        parts_batch(py, names, rows)
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let loose = self.take()?.finish();
        parts_batch(py, self.config.names, loose.iter().map(|(number, row)| (*number, None, Some(row))))
    }
}

impl LeafWriter {
    fn take(&self) -> PyResult<CoreWriter> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        writer.ok_or_else(|| to_python(Error::InvalidArgument("this writer has finished, or failed".into())))
    }
}

fn row_of(names: NameSizes, row: (Option<&str>, Option<&str>)) -> Result<Row> {
    let (Some(text), Some(location)) = row else {
        return Err(Error::InvalidArgument("each object needs one location, and nulls are not allowed".into()));
    };
    Ok(Row { key: key_of(names, text)?.into(), value: location.into() })
}

/// Returns a record batch with one row for each leaf (its path, and the row after the leaf) and one for each loose row
/// (without a path).
fn parts_batch<'py, 'a>(
    py: Python<'py>,
    names: NameSizes,
    rows: impl Iterator<Item = (usize, Option<&'a str>, Option<&'a Row>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let (mut numbers, mut paths) = (UInt64Builder::new(), StringBuilder::new());
    let (mut texts, mut locations) = (StringBuilder::new(), StringBuilder::new());
    for (number, path, row) in rows {
        numbers.append_value(number as u64);
        paths.append_option(path);
        texts.append_option(row.and_then(|row| unpadded_key(names, &row.key)));
        locations.append_option(row.map(|row| &*row.value));
    }
    let [number, path, text, location] = COLUMNS;
    arrow::batch(
        py,
        vec![
            (number, Arc::new(numbers.finish())),
            (path, Arc::new(paths.finish())),
            (text, Arc::new(texts.finish())),
            (location, Arc::new(locations.finish())),
        ],
    )
}

/// The inverse of [`parts_batch`].
pub fn parts_of(names: NameSizes, batches: AnyRecordBatch) -> PyResult<(Vec<Leaf>, Vec<LooseRow>)> {
    let (mut leaves, mut loose) = (Vec::new(), Vec::new());
    for batch in batches.into_reader()? {
        let batch = batch.map_err(arrow::failure)?;
        let numbers: &UInt64Array = batch
            .column_by_name(COLUMNS[0])
            .and_then(|numbers| numbers.as_primitive_opt::<UInt64Type>())
            .ok_or_else(|| to_python(Error::InvalidArgument("the column \"number\" is missing".into())))?;
        let [paths, texts, locations] = [
            string_column(&batch, COLUMNS[1])?,
            string_column(&batch, COLUMNS[2])?,
            string_column(&batch, COLUMNS[3])?,
        ];
        for i in 0..batch.num_rows() {
            let number = numbers.value(i) as usize;
            let text = texts.is_valid(i).then(|| texts.value(i));
            let location = locations.is_valid(i).then(|| locations.value(i));
            let row = || row_of(names, (text, location)).map_err(to_python);
            if paths.is_null(i) {
                loose.push((number, row()?));
            } else {
                let separator = if text.is_some() { Some(row()?) } else { None };
                leaves.push(Leaf { number, path: paths.value(i).into(), separator });
            }
        }
    }
    Ok((leaves, loose))
}

#[pyfunction]
fn unpadded_keys<'py>(py: Python<'py>, keys: PyArray, sizes: (usize, usize, usize)) -> PyResult<Bound<'py, PyAny>> {
    let names = name_sizes(sizes);
    let keys = arrow::strings(&keys)?;
    let text = |key: Option<&str>| {
        let Some(key) = key else { return Ok(None) };
        let unknown = || Error::InvalidName(format!("{:?} is not a key of this lakehouse", key.trim_end()));
        unpadded_key(names, key).ok_or_else(unknown).map(Some)
    };
    let texts: Result<Vec<Option<String>>> = py.detach(|| keys.iter().map(text).collect());
    arrow::array(py, Arc::new(StringArray::from(texts.map_err(to_python)?)))
}

/// Refuses strings that are not unpadded keys in a lakehouse with these name sizes.
#[pyfunction]
fn check_unpadded_keys(py: Python<'_>, texts: PyArray, sizes: (usize, usize, usize)) -> PyResult<()> {
    let names = name_sizes(sizes);
    let texts = arrow::strings(&texts)?;
    let checked: Result<()> =
        py.detach(|| texts.iter().try_for_each(|text| key_of(names, text.unwrap_or_default()).map(|_| ())));
    checked.map_err(to_python)
}

pub fn add_functions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LeafWriter>()?;
    module.add_function(wrap_pyfunction!(unpadded_keys, module)?)?;
    module.add_function(wrap_pyfunction!(check_unpadded_keys, module)?)
}

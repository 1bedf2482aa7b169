//! Functions for a garbage collection that an engine distributes to its executors.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::builder::{StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, StringArray};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PyArray;
use trinitylake::environment::SystemEnvironment;
use trinitylake::error::{Error, Result};
use trinitylake::gc::MAX_REPORTED_FOLDERS;
use trinitylake::gc::distributed::{DistributedGc as CoreGc, Fresh, Sort, delete, links};
use trinitylake::gc::file_classifier::{Classified, Classifier as CoreClassifier, Known};
use trinitylake::gc::file_kind::folder_of;
use trinitylake::gc::file_references::IcebergTables;
use trinitylake::gc::walk::Walk as CoreWalk;
use trinitylake::storage::{FileInfo, Place, RetryingStorage, Storage as CoreStorage};

use crate::arrow;
use crate::errors::to_python;
use crate::runtime::run;
use crate::storage::Storage;

/// The coordinator of a distributed collection.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct DistributedGc {
    tables: IcebergTables,
    /// `None` while it is in use.
    gc: Mutex<Option<CoreGc>>,
    #[pyo3(get)]
    before_millis: u64,
    #[pyo3(get)]
    oldest: u64,
    #[pyo3(get)]
    roots: Vec<u64>,
}

impl DistributedGc {
    pub fn new(gc: CoreGc, tables: IcebergTables) -> DistributedGc {
        DistributedGc {
            tables,
            before_millis: gc.before_millis,
            oldest: gc.oldest,
            roots: gc.roots.clone(),
            gc: Mutex::new(Some(gc)),
        }
    }
}

#[pymethods]
impl DistributedGc {
    /// Maximum number of folders in a report.
    #[getter]
    fn max_reported_folders(&self) -> usize {
        MAX_REPORTED_FOLDERS
    }

    fn fence<'py>(&self, py: Python<'py>, has_roots: bool) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let (version, fresh) = in_use(&self.gc, |gc| run(py, gc.fence(&self.tables, has_roots)), "the collection")?;
        Ok((version, PyBytes::new(py, &fresh.to_bytes())))
    }

    fn end(&self, py: Python<'_>, knows_all: bool) -> PyResult<()> {
        let end = |gc: &mut CoreGc| {
            run(py, async {
                gc.end(knows_all).await;
                Ok(())
            })
        };
        in_use(&self.gc, end, "the collection")
    }
}

/// Runs the work with exclusive use of the value. `InvalidArgument` if another thread uses the value.
fn in_use<V, T>(place: &Mutex<Option<V>>, work: impl FnOnce(&mut V) -> PyResult<T>, name: &str) -> PyResult<T> {
    let lock = || place.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = lock().take();
    let mut value =
        taken.ok_or_else(|| to_python(Error::InvalidArgument(format!("another thread uses {name}; wait for it"))))?;
    let result = work(&mut value);
    *lock() = Some(value);
    result
}

/// The storage without its cache.
fn files_of(storage: &Storage) -> Arc<dyn CoreStorage> {
    Arc::new(RetryingStorage::new(storage.counted(), SystemEnvironment::shared()))
}

/// Returns the files that the given files reference.
#[pyfunction]
fn gc_links<'py>(py: Python<'py>, storage: &Storage, sorts: PyArray, names: PyArray) -> PyResult<Bound<'py, PyAny>> {
    let tables = IcebergTables::new(storage.root_uri(), storage.former_roots()).map_err(to_python)?;
    let (sorts, names) = (arrow::strings(&sorts)?, arrow::strings(&names)?);
    let given = sorts.iter().flatten().zip(names.iter().flatten());
    let given = given.map(|(sort, name)| Ok((Sort::of_word(sort)?, name.to_string())));
    let given = given.collect::<Result<Vec<_>>>().map_err(to_python)?;
    let files = files_of(storage);
    let found = run(py, links(files.as_ref(), &tables, given))?;
    let (mut sorts, mut names) = (StringBuilder::new(), StringBuilder::new());
    for (sort, name) in found {
        sorts.append_value(sort.word());
        names.append_value(name);
    }
    arrow::batch(py, vec![("sort", Arc::new(sorts.finish())), ("name", Arc::new(names.finish()))])
}

fn listed(py: Python<'_>, files: Vec<FileInfo>) -> PyResult<Bound<'_, PyAny>> {
    let mut paths = StringBuilder::new();
    let (mut sizes, mut times) = (UInt64Builder::new(), UInt64Builder::new());
    for file in files {
        paths.append_value(file.path);
        sizes.append_value(file.size_bytes);
        times.append_value(file.modified_millis);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("path", Arc::new(paths.finish())),
        ("size_bytes", Arc::new(sizes.finish())),
        ("modified_millis", Arc::new(times.finish())),
    ];
    arrow::batch(py, columns)
}

/// A place of a walk: a folder, and the path after which its listing begins, if it does not begin at the start.
type PlaceParts = (String, Option<String>);

/// Divides a walk through the lakehouse into about `wanted` places. Returns the places, and the files that are in none
/// of them.
#[pyfunction]
fn split_walk<'py>(
    py: Python<'py>,
    storage: &Storage,
    wanted: usize,
) -> PyResult<(Vec<PlaceParts>, Bound<'py, PyAny>)> {
    let (places, files) = run(py, CoreWalk::begin(files_of(storage)).divided(wanted))?;
    let places = places.into_iter().map(|place| (place.folder, place.after)).collect();
    Ok((places, listed(py, files)?))
}

/// A walk through the given places.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct Walk {
    /// `None` while it is in use.
    walk: Mutex<Option<CoreWalk>>,
}

#[pymethods]
impl Walk {
    #[new]
    fn new(storage: &Storage, places: Vec<PlaceParts>) -> Walk {
        let places = places.into_iter().map(|(folder, after)| Place { folder, after }).collect();
        Walk { walk: Mutex::new(Some(CoreWalk::through(files_of(storage), places))) }
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let files = in_use(&self.walk, |walk| run(py, walk.next()), "the walk")?;
        files.map(|files| listed(py, files)).transpose()
    }
}

/// Marks of one file, computed by the engine.
struct Mark {
    is_reached: bool,
    is_foreign: bool,
    is_in_table: bool,
}

impl Known for Mark {
    fn contains(&self, _path: &str) -> bool {
        self.is_reached
    }

    fn is_foreign(&self, _path: &str) -> bool {
        self.is_foreign
    }

    fn is_in_table(&self, _path: &str) -> bool {
        self.is_in_table
    }
}

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Classifier {
    /// `None` while it is in use.
    classifier: Mutex<Option<CoreClassifier>>,
}

#[pymethods]
impl Classifier {
    #[new]
    fn new(storage: &Storage, before_millis: u64, oldest: u64) -> Classifier {
        let classifier = CoreClassifier::new(files_of(storage), before_millis, oldest);
        Classifier { classifier: Mutex::new(Some(classifier)) }
    }

    /// Classifies files. Takes columns of paths, sizes, modification times and marks. A mark is "reached", the type of
    /// the file's folder ("foreign" or "table"), or "". Returns the columns verdict, kind and folder.
    fn classify<'py>(
        &self,
        py: Python<'py>,
        paths: PyArray,
        sizes: PyArray,
        times: PyArray,
        marks: PyArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (paths, marks) = (arrow::strings(&paths)?, arrow::strings(&marks)?);
        let number = |array: &PyArray, row: usize| array.array().as_primitive::<UInt64Type>().value(row);
        let rows = (0..paths.len()).map(|row| FileInfo {
            path: paths.value(row).to_string(),
            size_bytes: number(&sizes, row),
            modified_millis: number(&times, row),
        });
        let rows: Vec<FileInfo> = rows.collect();
        let classify = |classifier: &mut CoreClassifier| run(py, classify_all(classifier, &rows, &marks));
        let classified = in_use(&self.classifier, classify, "the classifier")?;
        let (mut verdicts, mut kinds, mut folders) = (StringBuilder::new(), StringBuilder::new(), StringBuilder::new());
        for (classified, file) in classified.into_iter().zip(&rows) {
            let (verdict, kind) = match classified {
                Classified::Kept(kind) => ("kept", Some(kind)),
                Classified::Young(kind) => ("young", Some(kind)),
                Classified::Garbage(kind) => ("garbage", Some(kind)),
                Classified::Foreign => ("foreign", None),
                Classified::Unknown => ("unknown", None),
            };
            verdicts.append_value(verdict);
            kinds.append_option(kind.map(|kind| kind.word()));
            folders.append_option(kind.and_then(|kind| folder_of(kind, &file.path)));
        }
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("verdict", Arc::new(verdicts.finish())),
            ("kind", Arc::new(kinds.finish())),
            ("folder", Arc::new(folders.finish())),
        ];
        arrow::batch(py, columns)
    }
}

async fn classify_all(
    classifier: &mut CoreClassifier,
    files: &[FileInfo],
    marks: &StringArray,
) -> Result<Vec<Classified>> {
    let mut classified = Vec::with_capacity(files.len());
    for (row, file) in files.iter().enumerate() {
        let word = marks.value(row);
        let mark = Mark { is_reached: word == "reached", is_foreign: word == "foreign", is_in_table: word == "table" };
        classified.push(classifier.classify(file, &mark).await?);
    }
    Ok(classified)
}

/// Deletes garbage except the files in `fresh`.
#[pyfunction]
fn delete_garbage(py: Python<'_>, storage: &Storage, paths: PyArray, fresh: &[u8]) -> PyResult<u64> {
    let paths = arrow::strings(&paths)?.iter().flatten().map(str::to_string).collect();
    let (files, fresh) = (files_of(storage), Fresh::of_bytes(fresh));
    run(py, delete(files.as_ref(), paths, &fresh))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DistributedGc>()?;
    module.add_class::<Walk>()?;
    module.add_class::<Classifier>()?;
    module.add_function(wrap_pyfunction!(gc_links, module)?)?;
    module.add_function(wrap_pyfunction!(split_walk, module)?)?;
    module.add_function(wrap_pyfunction!(delete_garbage, module)?)
}

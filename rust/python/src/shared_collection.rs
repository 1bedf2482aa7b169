//! The pieces of a garbage collection that an engine shares among its executors.

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
use trinitylake::gc::MAX_TOLD_FOLDERS;
use trinitylake::gc::classify::{Classified, Classifier as CoreJudge, Known};
use trinitylake::gc::contents::IcebergTables;
use trinitylake::gc::kind::folder_of;
use trinitylake::gc::shared::{Fresh, Shared, Sort, delete, links};
use trinitylake::gc::walk::Walk as CoreWalk;
use trinitylake::storage::{FileInfo, Place, RetryingStorage, Storage as CoreStorage};

use crate::arrow;
use crate::errors::to_python;
use crate::runtime::run;
use crate::storage::Storage;

/// What one machine does of it.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct SharedCollection {
    tables: IcebergTables,
    /// `None` while it is in use.
    shared: Mutex<Option<Shared>>,
    #[pyo3(get)]
    before_millis: u64,
    #[pyo3(get)]
    oldest: u64,
    #[pyo3(get)]
    roots: Vec<u64>,
}

impl SharedCollection {
    pub fn new(shared: Shared, tables: IcebergTables) -> SharedCollection {
        SharedCollection {
            tables,
            before_millis: shared.before_millis,
            oldest: shared.oldest,
            roots: shared.roots.clone(),
            shared: Mutex::new(Some(shared)),
        }
    }
}

#[pymethods]
impl SharedCollection {
    /// Folders that a report tells of.
    #[getter]
    fn max_told_folders(&self) -> usize {
        MAX_TOLD_FOLDERS
    }

    fn look<'py>(&self, py: Python<'py>, has_roots: bool) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let taken = self.shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut shared =
            taken.ok_or_else(|| to_python(Error::InvalidArgument("the collection is in use".into())))?;
        let looked = run(py, shared.look(&self.tables, has_roots));
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
        let (version, fresh) = looked?;
        Ok((version, PyBytes::new(py, &fresh.to_bytes())))
    }

    fn end(&self, py: Python<'_>, knows_all: bool) -> PyResult<()> {
        let taken = self.shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut shared =
            taken.ok_or_else(|| to_python(Error::InvalidArgument("the collection is in use".into())))?;
        run(py, async {
            shared.end(knows_all).await;
            Ok(())
        })
    }
}

/// As it is now: nothing that was read before is taken for granted.
fn files_of(storage: &Storage) -> Arc<dyn CoreStorage> {
    Arc::new(RetryingStorage::new(storage.counted(), SystemEnvironment::shared()))
}

/// What some files that are reached name.
#[pyfunction]
fn collection_links<'py>(
    py: Python<'py>,
    storage: &Storage,
    sorts: PyArray,
    names: PyArray,
) -> PyResult<Bound<'py, PyAny>> {
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

/// A folder, and the path after which a list of it goes on.
type PlaceParts = (String, Option<String>);

/// Places below the root for others to walk through, and the files that are in none of them.
#[pyfunction]
fn divided_walk<'py>(
    py: Python<'py>,
    storage: &Storage,
    wanted: usize,
) -> PyResult<(Vec<PlaceParts>, Bound<'py, PyAny>)> {
    let (places, files) = run(py, CoreWalk::begin(files_of(storage)).divided(wanted))?;
    let places = places.into_iter().map(|place| (place.folder, place.after)).collect();
    Ok((places, listed(py, files)?))
}

/// A walk through some places.
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
        let taken = self.walk.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut walk = taken.ok_or_else(|| to_python(Error::InvalidArgument("the walk is in use".into())))?;
        let files = run(py, walk.next());
        *self.walk.lock().unwrap_or_else(PoisonError::into_inner) = Some(walk);
        files?.map(|files| listed(py, files)).transpose()
    }
}

/// What a mark told of one file.
struct Told {
    is_reached: bool,
    is_foreign: bool,
    is_in_table: bool,
}

impl Known for Told {
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

/// Says what becomes of files.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct Classifier {
    /// `None` while it is in use.
    judge: Mutex<Option<CoreJudge>>,
}

#[pymethods]
impl Classifier {
    #[new]
    fn new(storage: &Storage, before_millis: u64, oldest: u64) -> Classifier {
        Classifier { judge: Mutex::new(Some(CoreJudge::new(files_of(storage), before_millis, oldest))) }
    }

    /// Columns of strings and numbers, and of what the mark told of each: "" for nothing, else "reached", "foreign" or
    /// "table" for the folder that it lies in. Returns verdict, kind and folder.
    fn judge<'py>(
        &self,
        py: Python<'py>,
        paths: PyArray,
        sizes: PyArray,
        times: PyArray,
        told: PyArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (paths, told) = (arrow::strings(&paths)?, arrow::strings(&told)?);
        let number = |array: &PyArray, row: usize| array.array().as_primitive::<UInt64Type>().value(row);
        let rows = (0..paths.len()).map(|row| FileInfo {
            path: paths.value(row).to_string(),
            size_bytes: number(&sizes, row),
            modified_millis: number(&times, row),
        });
        let rows: Vec<FileInfo> = rows.collect();
        let taken = self.judge.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut judge =
            taken.ok_or_else(|| to_python(Error::InvalidArgument("the judge is in use".into())))?;
        let judged = run(py, judged(&mut judge, &rows, &told));
        *self.judge.lock().unwrap_or_else(PoisonError::into_inner) = Some(judge);
        let (mut verdicts, mut kinds, mut folders) =
            (StringBuilder::new(), StringBuilder::new(), StringBuilder::new());
        for (judged, file) in judged?.into_iter().zip(&rows) {
            let (verdict, kind) = match judged {
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

async fn judged(judge: &mut CoreJudge, files: &[FileInfo], told: &StringArray) -> Result<Vec<Classified>> {
    let mut judged = Vec::with_capacity(files.len());
    for (row, file) in files.iter().enumerate() {
        let word = told.value(row);
        let told = Told {
            is_reached: word == "reached",
            is_foreign: word == "foreign",
            is_in_table: word == "table",
        };
        judged.push(judge.classify(file, &told).await?);
    }
    Ok(judged)
}

/// Deletes garbage, but for what `fresh` of the last look says must stay.
#[pyfunction]
fn delete_garbage(py: Python<'_>, storage: &Storage, paths: PyArray, fresh: &[u8]) -> PyResult<u64> {
    let paths = arrow::strings(&paths)?.iter().flatten().map(str::to_string).collect();
    let (files, fresh) = (files_of(storage), Fresh::of_bytes(fresh));
    run(py, delete(files.as_ref(), paths, &fresh))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SharedCollection>()?;
    module.add_class::<Walk>()?;
    module.add_class::<Classifier>()?;
    module.add_function(wrap_pyfunction!(collection_links, module)?)?;
    module.add_function(wrap_pyfunction!(divided_walk, module)?)?;
    module.add_function(wrap_pyfunction!(delete_garbage, module)?)
}

//! Garbage collection, and what it reports.

use pyo3::prelude::*;
use trinitylake::collection::contents::IcebergTables;
use trinitylake::collection::{Count, OnProgress, Options, Progress, Report, vacuum};
use trinitylake::lakehouse::Lakehouse as CoreLakehouse;

use std::sync::Arc;

use crate::errors::to_python;
use crate::runtime::run;

/// Files and bytes.
type Counted = (u64, u64);

#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct Collection {
    version: Option<u64>,
    before_millis: u64,
    deleted: Vec<(&'static str, u64, u64)>,
    deleted_by_folder: Vec<(String, u64, u64)>,
    kept: Vec<(&'static str, u64, u64)>,
    young: Counted,
    unknown: Counted,
    foreign: Counted,
    deleted_paths: Vec<String>,
    unknown_paths: Vec<String>,
    roots: u64,
}

impl Collection {
    fn of(report: Report) -> Collection {
        let counted = |count: Count| (count.files, count.size_bytes);
        let by_kind = |(kind, count): (trinitylake::collection::kind::Kind, Count)| {
            (kind.word(), count.files, count.size_bytes)
        };
        let by_folder = |(folder, count): (String, Count)| (folder, count.files, count.size_bytes);
        Collection {
            version: report.version,
            before_millis: report.before_millis,
            deleted: report.deleted.into_iter().map(by_kind).collect(),
            deleted_by_folder: report.deleted_by_folder.into_iter().map(by_folder).collect(),
            kept: report.kept.into_iter().map(by_kind).collect(),
            young: counted(report.young),
            unknown: counted(report.unknown),
            foreign: counted(report.foreign),
            deleted_paths: report.deleted_paths,
            unknown_paths: report.unknown_paths,
            roots: report.roots,
        }
    }
}

/// Runs a collection. `on_progress` is called with what is done ("marked" or "swept") and how many files.
pub fn collect(
    py: Python<'_>,
    lakehouse: &Arc<CoreLakehouse>,
    options: Options,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Collection> {
    let placement = lakehouse.placement();
    let tables =
        IcebergTables::new(lakehouse.storage().root(), &placement.other_roots()).map_err(to_python)?;
    let tell: OnProgress = Arc::new(move |progress: Progress| {
        if let Some(on_progress) = &on_progress {
            let (what, files) = match progress {
                Progress::Marked(files) => ("marked", files),
                Progress::Swept(files) => ("swept", files),
            };
            // Whoever only watches does not end the work by failing.
            let _ = Python::attach(|py| on_progress.call1(py, (what, files)));
        }
    });
    Ok(Collection::of(run(py, vacuum(lakehouse, &tables, options, &tell))?))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Collection>()
}

//! Garbage collection and disk usage.

use pyo3::prelude::*;
use trinitylake::gc::disk_usage::{TableUsage, usage};
use trinitylake::gc::distributed::DistributedGc as CoreGc;
use trinitylake::gc::file_references::IcebergTables;
use trinitylake::gc::{Count, OnProgress, Options, Progress, Report, vacuum};
use trinitylake::lakehouse::Lakehouse as CoreLakehouse;

use std::sync::Arc;

use crate::distributed_gc::DistributedGc;
use crate::errors::to_python;
use crate::runtime::run;

/// Number and size of files.
type Counted = (u64, u64);

#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct GcReport {
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

impl GcReport {
    fn of(report: Report) -> GcReport {
        let counted = |count: Count| (count.files, count.size_bytes);
        let by_kind =
            |(kind, count): (trinitylake::gc::file_kind::Kind, Count)| (kind.word(), count.files, count.size_bytes);
        let by_folder = |(folder, count): (String, Count)| (folder, count.files, count.size_bytes);
        GcReport {
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

/// One row of the disk usage: the folder, the namespace and name of its table (if the latest version has one), what
/// retains the files, their kind, their number, their size.
type UsageRow = (String, Option<(String, String)>, &'static str, &'static str, u64, u64);

/// Disk usage by purpose.
#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct Usage {
    version: u64,
    by_kind: Vec<(&'static str, &'static str, u64, u64)>,
    by_folder: Vec<UsageRow>,
    small: Vec<(String, u64, u64)>,
    unknown: Counted,
    foreign: Counted,
}

/// Measures the disk usage of a lakehouse.
pub fn measure(
    py: Python<'_>,
    lakehouse: &Arc<CoreLakehouse>,
    expiring_before: u64,
    small_file_size_bytes: u64,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Usage> {
    let tables = tables_of(lakehouse)?;
    let report = progress_callback(on_progress);
    let found = run(py, usage(lakehouse, &tables, expiring_before, small_file_size_bytes, &report))?;
    let rows = |(folder, table): (&String, &TableUsage)| {
        let row = |((held, kind), count): (&(_, _), &Count)| {
            let (held, kind): (&trinitylake::gc::disk_usage::Held, &trinitylake::gc::file_kind::Kind) = (held, kind);
            (folder.clone(), table.name.clone(), held.word(), kind.word(), count.files, count.size_bytes)
        };
        table.by_kind.iter().map(row).collect::<Vec<UsageRow>>()
    };
    let small = found.by_folder.iter().filter(|(_, table)| table.small.files > 0);
    let small = small.map(|(folder, table)| (folder.clone(), table.small.files, table.small.size_bytes)).collect();
    Ok(Usage {
        version: found.version,
        by_kind: found
            .by_kind
            .iter()
            .map(|((held, kind), count)| (held.word(), kind.word(), count.files, count.size_bytes))
            .collect(),
        by_folder: found.by_folder.iter().flat_map(rows).collect(),
        small,
        unknown: (found.unknown.files, found.unknown.size_bytes),
        foreign: (found.foreign.files, found.foreign.size_bytes),
    })
}

fn tables_of(lakehouse: &Arc<CoreLakehouse>) -> PyResult<IcebergTables> {
    IcebergTables::new(lakehouse.storage().root(), &lakehouse.placement().other_roots()).map_err(to_python)
}

/// Runs a collection. `on_progress` is called with the step ("marked" or "swept") and the number of files.
pub fn collect(
    py: Python<'_>,
    lakehouse: &Arc<CoreLakehouse>,
    options: Options,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<GcReport> {
    let tables = tables_of(lakehouse)?;
    let report = progress_callback(on_progress);
    Ok(GcReport::of(run(py, vacuum(lakehouse, &tables, options, &report))?))
}

/// Begins a collection that an engine distributes to its executors.
pub fn begin_distributed(py: Python<'_>, lakehouse: &Arc<CoreLakehouse>, options: Options) -> PyResult<DistributedGc> {
    let tables = tables_of(lakehouse)?;
    Ok(DistributedGc::new(run(py, CoreGc::begin(lakehouse, options))?, tables))
}

fn progress_callback(on_progress: Option<Py<PyAny>>) -> OnProgress {
    Arc::new(move |progress: Progress| {
        if let Some(on_progress) = &on_progress {
            let (what, files) = match progress {
                Progress::Marked(files) => ("marked", files),
                Progress::Swept(files) => ("swept", files),
            };
            // An error in the progress callback does not end the work.
            let _ = Python::attach(|py| on_progress.call1(py, (what, files)));
        }
    })
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GcReport>()?;
    module.add_class::<Usage>()
}

//! Checks and repairs of a lakehouse.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::Mutex;
use trinitylake::environment::SystemEnvironment;
use trinitylake::error::Error;
use trinitylake::fsck::repair::repair as mend;
use trinitylake::fsck::{Finding as CoreFinding, Fsck as CoreFsck, Scope};
use trinitylake::transaction::Note;

use crate::errors::to_python;
use crate::runtime::{run, run_to_end};
use crate::storage::Storage;

/// A fault of one file.
#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct Finding {
    kind: &'static str,
    path: String,
    message: String,
    versions: Vec<u64>,
    affected: Vec<String>,
}

impl From<CoreFinding> for Finding {
    fn from(finding: CoreFinding) -> Self {
        let CoreFinding { kind, path, message, versions, affected } = finding;
        Finding { kind: kind.word(), path, message, versions, affected }
    }
}

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Fsck {
    inner: Mutex<CoreFsck>,
}

type FoundTable<'py> = (String, String, String, Bound<'py, PyBytes>);

#[pymethods]
impl Fsck {
    #[new]
    #[pyo3(signature = (storage, scope, first=0, last=0, wants_tables=false))]
    fn new(
        py: Python<'_>,
        storage: &Storage,
        scope: &str,
        first: u64,
        last: u64,
        wants_tables: bool,
    ) -> PyResult<Fsck> {
        let scope = match scope {
            "latest" => Scope::Latest,
            "range" => Scope::Range(first, last),
            "all" => Scope::All,
            other => {
                return Err(to_python(Error::InvalidArgument(format!("{other:?} is not a scope of a check"))));
            }
        };
        let fsck = run(py, CoreFsck::begin(storage.retrying(), scope, wants_tables))?;
        Ok(Fsck { inner: Mutex::new(fsck) })
    }

    /// Continues the check. Returns the new findings and the definitions of the tables that were read: namespace, name,
    /// location, bytes. `None` at the end of the check.
    #[allow(clippy::type_complexity, reason = "two columns of what was found")]
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Vec<Finding>, Vec<FoundTable<'py>>)>> {
        let step = run(py, async { self.inner.lock().await.next().await })?;
        Ok(step.map(|step| {
            let tables = step
                .tables
                .into_iter()
                .map(|table| (table.namespace, table.name, table.location, PyBytes::new(py, &table.definition)));
            (step.findings.into_iter().map(Finding::from).collect(), tables.collect())
        }))
    }

    /// Returns the numbers of checked versions, of all versions to check, of nodes read, and of definitions read.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        run(py, async {
            let fsck = self.inner.lock().await;
            Ok((fsck.counts.versions, fsck.total_versions(), fsck.counts.nodes, fsck.counts.definitions))
        })
    }
}

/// Repairs a lakehouse. Returns the newest version that the repair created, and descriptions of what was recovered and
/// of what was lost.
#[pyfunction]
#[pyo3(signature = (storage, dry_run=false, message="", author=""))]
fn repair(
    py: Python<'_>,
    storage: &Storage,
    dry_run: bool,
    message: &str,
    author: &str,
) -> PyResult<(Option<u64>, Vec<String>, Vec<String>)> {
    let note = Note { message: message.into(), author: author.into() };
    let done = run_to_end(py, mend(storage.retrying(), SystemEnvironment::shared(), dry_run, note))?;
    Ok((done.version, done.saved, done.lost))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Finding>()?;
    module.add_class::<Fsck>()?;
    module.add_function(wrap_pyfunction!(repair, module)?)
}

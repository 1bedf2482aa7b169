//! An immutable version: lookups, listings, scans, differences.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, StringArray, UInt64Array};
use futures::{StreamExt, TryStreamExt, stream};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::{PyArray, PyRecordBatchReader};
use trinitylake::error::Error;
use trinitylake::file_names::root_version;
use trinitylake::key::{KeyRange, NameSizes, ObjectKind};
use trinitylake::tree::search::get_many;
use trinitylake::version::Version as CoreVersion;
use trinitylake::version::history::Past;
use trinitylake::version::root_metadata::CommittedTransaction;

use crate::arrow;
use crate::difference::difference_batch;
use crate::errors::to_python;
use crate::runtime::{run, run_quick};
use crate::scan_reader::ScanReader;

const PARALLEL_READS: usize = 32;

pub fn parse_kind(kind: &str) -> PyResult<ObjectKind> {
    match kind {
        "namespace" => Ok(ObjectKind::Namespace),
        "table" => Ok(ObjectKind::Table),
        "view" => Ok(ObjectKind::View),
        other => Err(to_python(Error::InvalidArgument(format!(
            "{other:?} is not one of \"namespace\", \"table\", \"view\""
        )))),
    }
}

/// Returns the range of keys of a listing.
pub fn listing_range(names: NameSizes, kind: ObjectKind, namespace: Option<&str>) -> PyResult<KeyRange> {
    match kind {
        ObjectKind::Namespace => names.namespaces_below(namespace),
        _ => names.objects_in(kind, namespace),
    }
    .map_err(to_python)
}

/// Returns namespace and name of a key. `None` for keys of another form, which belong to extensions.
pub fn names_of(names: NameSizes, key: &str) -> Option<(String, String)> {
    names.decode_parts(key).map(|(_, namespace, name)| (namespace.to_string(), name.to_string()))
}

/// Returns namespace, name and location of listed keys.
pub struct Listing {
    names: NameSizes,
    namespace: StringBuilder,
    name: StringBuilder,
    location: StringBuilder,
}

impl Listing {
    pub fn new(names: NameSizes) -> Self {
        let column = StringBuilder::new;
        Listing { names, namespace: column(), name: column(), location: column() }
    }

    pub fn push(&mut self, key: &str, location: &str) {
        // Keys of another form belong to extensions and are not objects of this lakehouse.
        if let Some((_, namespace, name)) = self.names.decode_parts(key) {
            self.namespace.append_value(namespace);
            self.name.append_value(name);
            self.location.append_value(location);
        }
    }

    pub fn finish<'py>(mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        arrow::batch(
            py,
            vec![
                ("namespace", Arc::new(self.namespace.finish())),
                ("name", Arc::new(self.name.finish())),
                ("location", Arc::new(self.location.finish())),
            ],
        )
    }
}

#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct TransactionInfo {
    id: String,
    isolation: String,
    message: String,
    author: String,
    began_at_version: u64,
    properties: BTreeMap<String, String>,
    summary: String,
}

impl From<&CommittedTransaction> for TransactionInfo {
    fn from(committed: &CommittedTransaction) -> Self {
        let CommittedTransaction { id, isolation, message, author, began_at_version, properties, summary } =
            committed.clone();
        let summary = summary.as_str().to_string();
        TransactionInfo { id, isolation, message, author, began_at_version, properties, summary }
    }
}

#[pyclass(frozen, module = "trinitylake._core")]
pub struct VersionInfo {
    #[pyo3(get)]
    version: u64,
    #[pyo3(get)]
    created_at_millis: u64,
    #[pyo3(get)]
    rollback_from: Option<u64>,
    /// The reason why the version cannot be read. All other fields are empty then.
    #[pyo3(get)]
    problem: Option<String>,
    committed: Vec<CommittedTransaction>,
}

impl VersionInfo {
    pub fn of(past: &Past) -> VersionInfo {
        match &past.version {
            Ok(version) => Version::info_of(version),
            Err(problem) => VersionInfo {
                version: past.number,
                created_at_millis: 0,
                rollback_from: None,
                problem: Some(problem.to_string()),
                committed: Vec::new(),
            },
        }
    }
}

#[pymethods]
impl VersionInfo {
    #[getter]
    fn transactions(&self) -> Vec<TransactionInfo> {
        self.committed.iter().map(TransactionInfo::from).collect()
    }
}

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Version {
    pub inner: Arc<CoreVersion>,
}

impl Version {
    pub fn info_of(version: &CoreVersion) -> VersionInfo {
        VersionInfo {
            version: version.number,
            created_at_millis: version.metadata.created_at_millis,
            rollback_from: version.metadata.rollback_from_root.as_deref().and_then(root_version),
            problem: None,
            committed: version.metadata.committed.clone(),
        }
    }
}

#[pymethods]
impl Version {
    #[getter]
    fn number(&self) -> u64 {
        self.inner.number
    }

    #[getter]
    fn info(&self) -> VersionInfo {
        Version::info_of(&self.inner)
    }

    #[getter]
    fn definition<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.inner.definition.bytes())
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn locate(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<Option<String>> {
        run_quick(py, self.inner.locate(parse_kind(kind)?, namespace, name))
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn exists(&self, py: Python<'_>, kind: &str, namespace: &str, name: &str) -> PyResult<bool> {
        Ok(self.locate(py, kind, namespace, name)?.is_some())
    }

    fn locate_keys<'py>(&self, py: Python<'py>, keys: PyArray) -> PyResult<Bound<'py, PyAny>> {
        let keys = arrow::strings(&keys)?;
        let found = run(py, async {
            let found = get_many(self.inner.nodes(), &self.inner.root, &keys).await?;
            let mut locations = StringBuilder::with_capacity(found.len(), found.len() * 96);
            for location in &found {
                locations.append_option(location.as_ref().map(|location| location.as_str()));
            }
            Ok(locations.finish())
        })?;
        arrow::array(py, Arc::new(found))
    }

    #[pyo3(signature = (kind, namespace, name=""))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = run(py, self.inner.read(parse_kind(kind)?, namespace, name))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Whether the root contains a definition file, so that reading it makes no request.
    fn holds_definition(&self, path: &str) -> bool {
        self.inner.metadata.held_definition(path).is_some()
    }

    fn read_many<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        names: Vec<(String, String)>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let kind = parse_kind(kind)?;
        let version = &self.inner;
        let definitions: Vec<_> = run(
            py,
            stream::iter(names)
                .map(|(namespace, name)| async move { version.read(kind, &namespace, &name).await })
                .buffered(PARALLEL_READS)
                .try_collect(),
        )?;
        Ok(definitions.into_iter().map(|bytes| bytes.map(|bytes| PyBytes::new(py, &bytes))).collect())
    }

    /// Returns the namespaces and names of the objects that `list` would return, for callers that avoid importing
    /// Arrow.
    #[pyo3(signature = (kind, namespace=None, limit=None))]
    fn names(
        &self,
        py: Python<'_>,
        kind: &str,
        namespace: Option<&str>,
        limit: Option<usize>,
    ) -> PyResult<Vec<(String, String)>> {
        let names = self.inner.config.names;
        let range = listing_range(names, parse_kind(kind)?, namespace)?;
        run(py, async {
            let mut listed = Vec::new();
            let mut scan = self.inner.scan(range, limit, false);
            while let Some(batch) = self.inner.unless_expired(scan.next_batch().await).await? {
                listed.extend(batch.keys.iter().flatten().filter_map(|key| names_of(names, key)));
            }
            Ok(listed)
        })
    }

    #[pyo3(signature = (kind, namespace=None, limit=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        namespace: Option<&str>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let names = self.inner.config.names;
        let range = listing_range(names, parse_kind(kind)?, namespace)?;
        let listing = run(py, async {
            let mut listing = Listing::new(names);
            let mut scan = self.inner.scan(range, limit, true);
            while let Some(batch) = self.inner.unless_expired(scan.next_batch().await).await? {
                let locations = batch.locations.iter().flatten();
                for (key, location) in batch.keys.iter().zip(locations) {
                    listing.push(key.unwrap_or_default(), location.unwrap_or_default());
                }
            }
            Ok(listing)
        })?;
        listing.finish(py)
    }

    #[pyo3(signature = (prefix="", columns=None, start=None, end=None, limit=None))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        prefix: &str,
        columns: Option<Vec<String>>,
        start: Option<String>,
        end: Option<String>,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let with_locations = match columns.as_deref() {
            None => true,
            Some([key]) if key == "key" => false,
            Some([key, location]) if key == "key" && location == "location" => true,
            Some(other) => {
                return Err(to_python(Error::InvalidArgument(format!(
                    "a scan has the columns [\"key\"] or [\"key\", \"location\"], not {other:?}"
                ))));
            }
        };
        let range = match (prefix, start, end) {
            ("", None, None) => KeyRange::all(),
            (prefix, None, None) => KeyRange::prefix(prefix),
            ("", start, end) => KeyRange { start: start.unwrap_or_default(), end },
            _ => {
                return Err(to_python(Error::InvalidArgument("a prefix, or start and end, not both".into())));
            }
        };
        let scan = self.inner.scan(range, limit, with_locations);
        let schema = arrow::string_schema(if with_locations { &["key", "location"] } else { &["key"] });
        PyRecordBatchReader::new(Box::new(ScanReader { scan, schema })).into_pyarrow(py)
    }

    fn diff<'py>(&self, py: Python<'py>, newer: &Version) -> PyResult<Bound<'py, PyAny>> {
        let differences = run(py, self.inner.diff(&newer.inner))?;
        difference_batch(py, self.inner.config.names, differences, None)
    }

    /// Like `diff` from the previous version to this one, but with a first column: the number of the transaction that
    /// made the change.
    fn changes<'py>(&self, py: Python<'py>, previous: &Version) -> PyResult<Bound<'py, PyAny>> {
        let (differences, changes) = run(py, async {
            let differences = previous.inner.diff(&self.inner).await?;
            Ok((differences, self.inner.changes(&previous.inner).await?))
        })?;
        let by_key = changes.iter().map(|change| (change.key.as_str(), change.transaction)).collect();
        difference_batch(py, self.inner.config.names, differences, Some(by_key))
    }

    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = run(py, self.inner.shape())?;
        if let Some(problem) = shape.problems.first() {
            let (path, message) = problem.split_once(": ").unwrap_or(("(tree)", problem));
            return Err(to_python(Error::corrupt(path, message)));
        }
        let texts = |pick: fn(&trinitylake::tree::invariant::NodeShape) -> Option<&str>| -> ArrayRef {
            Arc::new(shape.nodes.iter().map(pick).collect::<StringArray>())
        };
        let numbers = |pick: fn(&trinitylake::tree::invariant::NodeShape) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(shape.nodes.iter().map(pick)))
        };
        arrow::batch(
            py,
            vec![
                ("path", texts(|node| Some(&node.path))),
                ("parent", texts(|node| Some(node.parent.as_str()).filter(|parent| !parent.is_empty()))),
                ("height", numbers(|node| node.height.into())),
                ("n_keys", numbers(|node| node.n_keys as u64)),
                ("n_messages", numbers(|node| node.n_messages as u64)),
                ("size_bytes", numbers(|node| node.size_bytes as u64)),
                ("first_key", texts(|node| node.first_key.as_deref())),
                ("last_key", texts(|node| node.last_key.as_deref())),
            ],
        )
    }

    fn __repr__(&self) -> String {
        format!("Version({})", self.inner.number)
    }
}

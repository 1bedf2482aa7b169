//! Files below a root, for the Python layers that read and write files themselves: Iceberg metadata and data.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use trinitylake::environment::SystemEnvironment;
use trinitylake::error::{Error, Result};
use trinitylake::root_uri::{self, RootUri, Scheme};
use trinitylake::storage::options::other_clients::{S3Settings as CoreS3Settings, iceberg_properties as properties_of};
use trinitylake::storage::{
    BackgroundUploads, CachingStorage, CountingStorage, Durability, FileEnd, FileUpload, PutOutcome, RetryingStorage,
    Storage as CoreStorage, checked_range, file_cache, open,
};
use trinitylake::tree::node_store::NodeStore;
use trinitylake::version::expired_versions::check_retained;

use crate::errors::to_python;
use crate::runtime::{run, runtime};

/// Maximum number of files that one call transfers at the same time.
const PARALLEL_REQUESTS: usize = 32;

#[pyclass(frozen, module = "trinitylake._core")]
pub struct Storage {
    opened: Arc<Opened>,
    /// Former roots of the lakehouse. Locations below a former root are resolved below the current root.
    other_roots: Vec<String>,
    counting: Arc<CountingStorage>,
    /// The store with a cache of immutable files: of all such files on a remote store, of definitions on a disk.
    files: Arc<dyn CoreStorage>,
    /// The same store, with retries of failed requests, for calls from Python.
    retrying: Arc<RetryingStorage>,
    /// The background uploads of a transaction, for which its commit waits. `None` if this storage does not belong to a
    /// transaction.
    pending: Option<Arc<BackgroundUploads>>,
}

/// Arguments with which the storage was opened, for opening it again in another process. The storages of all
/// transactions share them.
struct Opened {
    root: RootUri,
    options: Option<HashMap<String, String>>,
    durability: Option<String>,
}

impl Storage {
    /// Returns this storage, but with these former roots: locations below them are resolved as well.
    pub fn with_other_roots(&self, other_roots: Vec<String>) -> Self {
        let (opened, counting, files) = (self.opened.clone(), self.counting.clone(), self.files.clone());
        let (retrying, pending) = (self.retrying.clone(), self.pending.clone());
        Storage { opened, other_roots, counting, files, retrying, pending }
    }

    pub fn shared(&self) -> Arc<dyn CoreStorage> {
        self.files.clone()
    }

    /// The store with its cache and retries.
    pub fn retrying(&self) -> Arc<dyn CoreStorage> {
        self.retrying.clone()
    }

    /// The store without the cache, with counted requests.
    pub fn counted(&self) -> Arc<dyn CoreStorage> {
        self.counting.clone()
    }

    pub fn root_uri(&self) -> &str {
        self.opened.root.as_str()
    }

    pub fn former_roots(&self) -> &[String] {
        &self.other_roots
    }

    /// Returns this storage for the writes of a transaction: files are uploaded in the background, and the commit waits
    /// for them.
    pub fn with_pending(&self, pending: Arc<BackgroundUploads>) -> Self {
        Storage { pending: Some(pending), ..self.with_other_roots(self.other_roots.clone()) }
    }

    /// Returns the content of a file that is still in memory, because its upload may not have ended.
    fn pending_bytes(&self, path: &str) -> Option<Bytes> {
        self.pending.as_ref()?.read(path)
    }

    pub async fn create_all(&self, files: impl Iterator<Item = (String, Bytes)>) -> Result<()> {
        use futures::{StreamExt, TryStreamExt, stream};
        stream::iter(files)
            .map(|(path, bytes)| async move { self.create(&path, bytes).await })
            .buffer_unordered(PARALLEL_REQUESTS)
            .try_collect()
            .await
    }

    async fn create(&self, path: &str, bytes: Bytes) -> Result<()> {
        match &self.pending {
            Some(pending) if pending.has(path) => Err(exists(path)),
            Some(pending) => pending.put(path, bytes).await,
            None => put_new(&self.retrying, path, bytes).await,
        }
    }
}

#[pymethods]
impl Storage {
    #[new]
    #[pyo3(signature = (root, options=None, durability=None, other_roots=Vec::new()))]
    fn new(
        root: &str,
        options: Option<HashMap<String, String>>,
        durability: Option<&str>,
        other_roots: Vec<String>,
    ) -> PyResult<Self> {
        let root = RootUri::parse(root).map_err(to_python)?;
        let parsed = durability.map_or(Ok(Durability::default()), Durability::from_str).map_err(to_python)?;
        let given = options.clone().unwrap_or_default();
        let storage = open(&root, &given, parsed).map_err(to_python)?;
        let counting = Arc::new(CountingStorage::new(storage));
        let files: Arc<dyn CoreStorage> = match root.scheme() {
            Scheme::File | Scheme::Memory => counting.clone(),
            Scheme::S3 | Scheme::Gcs | Scheme::Azure => Arc::new(CachingStorage::new(counting.clone())),
        };
        Ok(Storage {
            opened: Arc::new(Opened { root, options, durability: durability.map(str::to_string) }),
            other_roots,
            retrying: with_retries(&files),
            counting,
            files,
            pending: None,
        })
    }

    /// Arguments for pickling, with which tasks on other machines open the same storage. They contain credentials.
    #[allow(clippy::type_complexity, reason = "the arguments of `new`")]
    fn __getnewargs__(&self) -> (&str, Option<HashMap<String, String>>, Option<&str>, Vec<String>) {
        let Opened { root, options, durability } = self.opened.as_ref();
        (root.as_str(), options.clone(), durability.as_deref(), self.other_roots.clone())
    }

    #[getter]
    fn root(&self) -> &str {
        self.opened.root.as_str()
    }

    /// Known former roots of the lakehouse. Locations below a former root are resolved below the current root.
    #[getter]
    fn other_roots(&self) -> Vec<String> {
        self.other_roots.clone()
    }

    fn get<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = match self.pending_bytes(path) {
            Some(bytes) => bytes,
            None => run(py, self.retrying.get(path))?,
        };
        Ok(PyBytes::new(py, &bytes))
    }

    fn get_range<'py>(&self, py: Python<'py>, path: &str, offset: u64, length: u64) -> PyResult<Bound<'py, PyBytes>> {
        let range = offset..offset.saturating_add(length);
        if let Some(bytes) = self.pending_bytes(path) {
            let range = checked_range(path, range, bytes.len() as u64).map_err(to_python)?;
            return Ok(PyBytes::new(py, &bytes[range.start as usize..range.end as usize]));
        }
        let bytes = run(py, self.retrying.get_range(path, range))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn get_ranges<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        ranges: Vec<(u64, u64)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        use futures::{StreamExt, TryStreamExt, stream};
        if self.pending_bytes(path).is_some() {
            return ranges.into_iter().map(|(offset, length)| self.get_range(py, path, offset, length)).collect();
        }
        let storage = self.retrying.as_ref();
        let ranges = stream::iter(ranges);
        let fetched: Vec<Bytes> = run(
            py,
            ranges
                .map(|(offset, length)| storage.get_range(path, offset..offset.saturating_add(length)))
                .buffered(PARALLEL_REQUESTS)
                .try_collect(),
        )?;
        Ok(fetched.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    fn get_end<'py>(&self, py: Python<'py>, path: &str, max_size_bytes: u64) -> PyResult<(Bound<'py, PyBytes>, u64)> {
        let FileEnd { bytes, size_bytes } = match self.pending_bytes(path) {
            Some(bytes) => FileEnd::of_whole(bytes, max_size_bytes),
            None => run(py, self.retrying.get_end(path, max_size_bytes))?,
        };
        Ok((PyBytes::new(py, &bytes), size_bytes))
    }

    fn read_ahead(&self, mut paths: Vec<String>, max_size_bytes: u64) -> PyResult<()> {
        use futures::{StreamExt, stream};
        paths.retain(|path| self.pending_bytes(path).is_none());
        let storage = self.retrying.clone();
        // A later read of one of these files waits for this request, finds the file in the cache, or repeats the
        // request if it failed.
        runtime()?.spawn(async move {
            let storage = &storage;
            let files = stream::iter(&paths);
            files
                .for_each_concurrent(PARALLEL_REQUESTS, |path| async move {
                    _ = storage.get_end(path, max_size_bytes).await;
                })
                .await;
        });
        Ok(())
    }

    /// Returns the storage without any caches, for checks of the current content of the store.
    fn uncached(&self) -> Storage {
        let (opened, other_roots) = (self.opened.clone(), self.other_roots.clone());
        let (counting, files): (_, Arc<dyn CoreStorage>) = (self.counting.clone(), self.counting.clone());
        Storage { opened, other_roots, retrying: with_retries(&files), counting, files, pending: None }
    }

    /// Replaces a table's metadata file for an erasure of rows: its content `before` by the content `after`. False if
    /// the file has another content.
    fn replace(&self, py: Python<'_>, path: &str, before: Vec<u8>, after: Vec<u8>) -> PyResult<bool> {
        run(py, self.retrying.replace(path, &before.into(), &after.into()))
    }

    /// Time of the store before which the newest known garbage collection deleted files; 0 if none is known.
    #[getter]
    fn collected_before_millis(&self) -> u64 {
        self.counting.collected_before_millis()
    }

    /// Raises `VersionExpired` if a version of this lakehouse is no longer retained.
    fn check_retained(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        let nodes = Arc::new(NodeStore::new(self.retrying(), 0));
        run(py, check_retained(&nodes, version))
    }

    fn size(&self, py: Python<'_>, path: &str) -> PyResult<u64> {
        match self.pending_bytes(path) {
            Some(bytes) => Ok(bytes.len() as u64),
            None => Ok(run(py, self.retrying.head(path))?.size_bytes),
        }
    }

    fn exists(&self, py: Python<'_>, path: &str) -> PyResult<bool> {
        if self.pending.as_ref().is_some_and(|pending| pending.has(path)) {
            return Ok(true);
        }
        run(py, self.retrying.exists(path))
    }

    fn put(&self, py: Python<'_>, path: &str, data: PyBackedBytes) -> PyResult<()> {
        run(py, self.create(path, Bytes::from_owner(data)))
    }

    /// Begins a file that is written part by part. None if this storage does not belong to a transaction, or if the
    /// store does not accept files in parts.
    fn begin(&self, py: Python<'_>, path: &str) -> PyResult<Option<FileInParts>> {
        let Some(pending) = &self.pending else { return Ok(None) };
        if pending.has(path) {
            return Err(to_python(exists(path)));
        }
        let begun = run(py, pending.begin(path))?;
        Ok(begun.map(|file| FileInParts(Mutex::new(Some(file)))))
    }

    fn put_many(&self, py: Python<'_>, files: Vec<(String, Vec<u8>)>) -> PyResult<()> {
        run(py, self.create_all(files.into_iter().map(|(path, data)| (path, Bytes::from(data)))))
    }

    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<(String, u64, u64)>> {
        let files = run(py, async {
            if let Some(pending) = &self.pending {
                pending.written().await?;
            }
            self.retrying.list(prefix).await
        })?;
        Ok(files.into_iter().map(|file| (file.path, file.size_bytes, file.modified_millis)).collect())
    }

    fn delete(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        match &self.pending {
            Some(pending) if pending.has(path) => run(py, pending.delete(path)),
            Some(_) | None => run(py, self.retrying.delete(path)),
        }
    }

    /// Deletes files in parallel and ignores failures, because garbage collection deletes remaining files.
    fn delete_unneeded(&self, py: Python<'_>, paths: Vec<String>) -> PyResult<()> {
        use futures::{StreamExt, stream};
        let delete = |path: String| async move {
            _ = match &self.pending {
                Some(pending) if pending.has(&path) => pending.delete(&path).await,
                Some(_) | None => self.retrying.delete(&path).await,
            };
        };
        run(py, async {
            stream::iter(paths).for_each_concurrent(PARALLEL_REQUESTS, delete).await;
            Ok::<_, trinitylake::error::Error>(())
        })
    }

    fn counters(&self) -> HashMap<&'static str, u64> {
        self.counting.counters().entries().into_iter().collect()
    }

    fn __repr__(&self) -> String {
        format!("Storage({:?})", self.opened.root.as_str())
    }
}

/// A file of a transaction that is written part by part. If it is dropped before it is finished, it is removed.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct FileInParts(Mutex<Option<FileUpload>>);

impl FileInParts {
    fn file(&self) -> MutexGuard<'_, Option<FileUpload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl FileInParts {
    fn write(&self, py: Python<'_>, part: PyBackedBytes) -> PyResult<()> {
        let written = py.detach(|| match self.file().as_mut() {
            Some(file) => file.write(&part),
            None => Err(is_closed()),
        });
        written.map_err(to_python)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let finished = py.detach(|| self.file().take().ok_or_else(is_closed)?.finish());
        finished.map_err(to_python)
    }

    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.file().take()));
    }
}

fn is_closed() -> Error {
    Error::TransactionClosed("the file was finished or aborted and accepts no more data".to_string())
}

fn with_retries(storage: &Arc<dyn CoreStorage>) -> Arc<RetryingStorage> {
    Arc::new(RetryingStorage::new(storage.clone(), SystemEnvironment::shared()))
}

async fn put_new(storage: &RetryingStorage, path: &str, bytes: Bytes) -> Result<()> {
    match storage.create(path, &bytes).await? {
        PutOutcome::Created => Ok(()),
        PutOutcome::AlreadyExists => Err(exists(path)),
    }
}

fn exists(path: &str) -> Error {
    Error::ObjectAlreadyExists(format!("{path}: the file exists"))
}

/// S3 settings from the storage options and the environment.
#[pyclass(frozen, get_all, module = "trinitylake._core")]
pub struct S3Settings {
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    session_token: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
    is_bucket_in_host: bool,
}

#[pymethods]
impl S3Settings {
    #[new]
    fn new(storage_options: HashMap<String, String>) -> PyResult<Self> {
        let CoreS3Settings { access_key_id, secret_access_key, session_token, region, endpoint, is_bucket_in_host } =
            CoreS3Settings::from_options(&storage_options).map_err(to_python)?;
        Ok(S3Settings { access_key_id, secret_access_key, session_token, region, endpoint, is_bucket_in_host })
    }
}

#[pyfunction]
fn iceberg_properties(root: &str, storage_options: HashMap<String, String>) -> PyResult<BTreeMap<String, String>> {
    let root = RootUri::parse(root).map_err(to_python)?;
    properties_of(root.scheme(), &storage_options).map_err(to_python)
}

#[pyfunction]
fn scheme_spellings() -> BTreeMap<&'static str, &'static str> {
    root_uri::scheme_spellings().collect()
}

#[pyfunction]
fn is_named_once(path: &str) -> bool {
    file_cache::is_named_once(path)
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Storage>()?;
    module.add_class::<S3Settings>()?;
    module.add_function(wrap_pyfunction!(is_named_once, module)?)?;
    module.add_function(wrap_pyfunction!(scheme_spellings, module)?)?;
    module.add_function(wrap_pyfunction!(iceberg_properties, module)?)
}

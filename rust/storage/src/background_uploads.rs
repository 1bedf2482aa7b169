//! Background uploads of a transaction: the upload of a file starts as soon as its bytes are known, and the transaction
//! waits for all uploads once, before it creates a file that references them (docs/decisions/0033).
//!
//! Invariants:
//! - [`BackgroundUploads::written`] returns when every file was created, or with the error of a file that could not be
//!   created. The files are durable after [`Storage::sync`] of the returned paths.
//! - At most [`MAX_PENDING_BYTES`] are uploaded at the same time, or one larger file, in at most [`MAX_REQUESTS`]
//!   requests. A caller that adds more waits.
//! - [`BackgroundUploads::read`] returns a file until its upload has ended.
//! - A forked child does not have the tasks of its parent. It writes unfinished files itself, which is safe because
//!   names are unique.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use tokio::sync::Semaphore;

use crate::retry_policy::{current_deadline_millis, within};
use crate::storage_trait::{FileInParts, Storage};
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;

/// Maximum number of bytes of one transaction that are uploaded at the same time.
pub const MAX_PENDING_BYTES: usize = 64 << 20;
/// Maximum number of concurrent requests of one transaction.
pub const MAX_REQUESTS: usize = 32;
/// Maximum number of uploaded bytes that stay in memory, because the transaction may read them again.
const MAX_KEPT_BYTES: usize = 16 << 20;
/// Maximum size of a file that stays in memory. Larger files are read from the store again.
const MAX_KEPT_FILE_SIZE_BYTES: usize = 1 << 20;

pub struct BackgroundUploads {
    storage: Arc<dyn Storage>,
    environment: Arc<dyn Environment>,
    limits: PerProcess<Limits>,
    state: Mutex<State>,
    /// Whether the transaction has ended, so that files that were not sent are no longer needed.
    is_cancelled: Arc<AtomicBool>,
    /// Deadline of the waiting commit on the elapsed clock.
    deadline_millis: Arc<AtomicU64>,
}

/// Limits of running uploads.
struct Limits {
    bytes: Arc<Semaphore>,
    max_bytes: usize,
    requests: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, File>,
    kept_bytes: usize,
}

struct File {
    /// Content of the file. It is dropped after the upload, or at the end of the transaction if `is_kept` is set.
    bytes: Option<Bytes>,
    is_kept: bool,
    is_durable: bool,
    process: u32,
    progress: Arc<Progress>,
    ended: Shared<oneshot::Receiver<()>>,
}

/// Result of an upload. It has no lock, because a forked child might inherit a locked one.
#[derive(Default)]
struct Progress {
    answer: OnceLock<Result<()>>,
    has_failed_once: AtomicBool,
}

impl std::fmt::Debug for BackgroundUploads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("BackgroundUploads").field("files", &self.state().files.len()).finish_non_exhaustive()
    }
}

impl BackgroundUploads {
    pub fn new(storage: Arc<dyn Storage>, environment: Arc<dyn Environment>) -> Arc<BackgroundUploads> {
        Self::bounded(storage, environment, MAX_PENDING_BYTES, MAX_REQUESTS)
    }

    fn bounded(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        max_bytes: usize,
        max_requests: usize,
    ) -> Arc<BackgroundUploads> {
        let limits = move || Limits {
            bytes: Arc::new(Semaphore::new(max_bytes)),
            max_bytes,
            requests: Arc::new(Semaphore::new(max_requests)),
        };
        Arc::new(BackgroundUploads {
            storage,
            environment,
            limits: PerProcess::new(limits),
            state: Mutex::default(),
            is_cancelled: Arc::default(),
            deadline_millis: Arc::new(AtomicU64::new(u64::MAX)),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the upload of a file with a unique name. Waits while the limits are reached. Fails if an earlier upload
    /// of this transaction failed.
    pub async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.check_alive(path)?;
        let limits = self.limits.get();
        let size = bytes.len().min(limits.max_bytes) as u32;
        let most = limits.bytes.clone();
        let permits = most.acquire_many_owned(size).await.map_err(|_| transaction_ended(path))?;
        self.check_alive(path)?;
        let progress = Arc::new(Progress::default());
        let (done, ended) = oneshot::channel();
        self.state().add(path, &bytes, progress.clone(), ended.shared());
        let attempts = Attempts {
            path: path.to_string(),
            bytes,
            storage: self.storage.clone(),
            environment: self.environment.clone(),
            requests: limits.requests.clone(),
            is_cancelled: self.is_cancelled.clone(),
            deadline_millis: self.deadline_millis.clone(),
            progress,
        };
        let work = async move {
            attempts.run().await;
            drop((permits, done));
        };
        self.environment.background(Box::pin(work)).await;
        Ok(())
    }

    /// Begins a file that is written part by part, so that it is never in memory as a whole. `None` if the store
    /// accepts whole files only. Fails if an earlier upload of this transaction failed.
    pub async fn begin(self: &Arc<Self>, path: &str) -> Result<Option<FileUpload>> {
        self.check_alive(path)?;
        let mut retries = self.storage.retry_policy().begin(self.environment.as_ref());
        let begun = loop {
            match self.storage.begin_unsynced(path).await {
                Err(Error::Storage { retryable: true, .. }) if retries.pause().await => {}
                begun => break begun?,
            }
        };
        let begin = |file| FileUpload { file, path: path.to_string(), pending: Arc::clone(self) };
        Ok(begun.map(begin))
    }

    fn check_alive(&self, path: &str) -> Result<()> {
        if self.is_cancelled.load(Ordering::SeqCst) {
            return Err(transaction_ended(path));
        }
        self.state().sweep()
    }

    /// Returns the content of a file if it is still in memory. The upload may not have ended.
    pub fn read(&self, path: &str) -> Option<Bytes> {
        self.state().files.get(path).and_then(|file| file.bytes.clone())
    }

    /// Whether the file belongs to this transaction's uploads.
    pub fn has(&self, path: &str) -> bool {
        self.state().files.contains_key(path)
    }

    /// Whether the upload of a file has failed.
    pub fn has_failed(&self) -> bool {
        self.state().sweep().is_err()
    }

    /// Whether all uploads have ended and are synced.
    pub fn is_settled(&self) -> bool {
        let state = self.state();
        state.files.values().all(|file| file.is_durable && matches!(file.progress.answer.get(), Some(Ok(()))))
    }

    /// Waits until every file is written and returns the paths that still need a sync. Fails with the error of the
    /// first file that could not be written. No file is retried after the deadline of the caller.
    pub async fn written(&self) -> Result<Vec<String>> {
        let deadline_millis = current_deadline_millis();
        self.deadline_millis.store(deadline_millis, Ordering::SeqCst);
        let process = std::process::id();
        loop {
            let next = {
                let mut state = self.state();
                state.sweep()?;
                let open = state.files.iter().find(|(_, file)| file.progress.answer.get().is_none());
                open.map(|(path, file)| {
                    (path.clone(), file.bytes.clone(), file.process, file.progress.clone(), file.ended.clone())
                })
            };
            let Some((path, bytes, owner, progress, ended)) = next else { break };
            if owner != process {
                let answer = match bytes {
                    Some(bytes) => self.storage.write_unsynced(&path, bytes).await,
                    None => Err(transaction_ended(&path)),
                };
                let _ = progress.answer.set(answer);
                continue;
            }
            self.wait_for(&path, &progress, ended, deadline_millis).await?;
        }
        let state = self.state();
        let unsynced = state.files.iter().filter(|(_, file)| !file.is_durable);
        Ok(unsynced.map(|(path, _)| path.clone()).collect())
    }

    async fn wait_for(
        &self,
        path: &str,
        progress: &Progress,
        ended: Shared<oneshot::Receiver<()>>,
        deadline_millis: u64,
    ) -> Result<()> {
        let mut ended = ended;
        loop {
            let left = deadline_millis.saturating_sub(self.environment.elapsed_millis());
            // Each file is sent once, even after the deadline.
            if left == 0 && !progress.has_failed_once.load(Ordering::SeqCst) {
                let _ = ended.await;
                break;
            }
            let alarm = self.environment.alarm(Duration::from_millis(left.min(LONGEST_ALARM_MILLIS)));
            match select(ended, alarm).await {
                Either::Left(_) => break,
                Either::Right((_, rest)) => ended = rest,
            }
            if self.environment.elapsed_millis() >= deadline_millis && progress.has_failed_once.load(Ordering::SeqCst) {
                let message = format!("{path}: the file could not be written before the deadline of the commit");
                return Err(Error::Storage { message, retryable: true });
            }
        }
        match progress.answer.get() {
            Some(answer) => answer.clone(),
            None => Err(transaction_ended(path)),
        }
    }

    /// Marks files as durable, after a successful [`Storage::sync`].
    pub fn synced(&self, paths: &[String]) {
        let mut state = self.state();
        for path in paths {
            if let Some(file) = state.files.get_mut(path) {
                file.is_durable = true;
            }
        }
    }

    /// Cancels uploads that were not sent, and refuses further files.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
    }

    /// Deletes a file. Waits for a running upload first, which would otherwise create the file after the deletion.
    pub async fn delete(&self, path: &str) -> Result<()> {
        let file = self.state().remove(path);
        if let Some(file) = &file
            && file.process == std::process::id()
            && file.progress.answer.get().is_none()
        {
            let _ = file.ended.clone().await;
        }
        match file.as_ref().and_then(|file| file.progress.answer.get()) {
            Some(Err(Error::TransactionClosed(_))) => Ok(()),
            _ => self.storage.delete(path).await,
        }
    }
}

/// Maximum duration of one alarm; longer waits use several.
const LONGEST_ALARM_MILLIS: u64 = 60_000;

fn transaction_ended(path: &str) -> Error {
    Error::TransactionClosed(format!("{path} is not written: its transaction has ended"))
}

/// A file of a transaction that is written part by part. If it is dropped before it is finished, it is removed.
pub struct FileUpload {
    file: Box<dyn FileInParts>,
    path: String,
    pending: Arc<BackgroundUploads>,
}

impl FileUpload {
    /// Appends to the file. After an error the file is gone. The error may belong to another upload of this
    /// transaction.
    pub fn write(&mut self, part: &[u8]) -> Result<()> {
        self.pending.check_alive(&self.path)?;
        self.file.write(part)
    }

    /// Completes the file. The commit syncs it with the other files.
    pub fn finish(self) -> Result<()> {
        self.pending.check_alive(&self.path)?;
        self.file.finish()?;
        self.pending.state().add_written(&self.path);
        Ok(())
    }
}

impl State {
    /// Adds a file that is completely written and is not in memory.
    fn add_written(&mut self, path: &str) {
        self.remove(path);
        let progress = Arc::new(Progress::default());
        let _ = progress.answer.set(Ok(()));
        let (process, ended) = (std::process::id(), oneshot::channel().1.shared());
        let file = File { bytes: None, is_kept: false, is_durable: false, process, progress, ended };
        self.files.insert(path.to_string(), file);
    }

    fn add(&mut self, path: &str, bytes: &Bytes, progress: Arc<Progress>, ended: Shared<oneshot::Receiver<()>>) {
        self.remove(path);
        let is_kept = bytes.len() <= MAX_KEPT_FILE_SIZE_BYTES && self.kept_bytes + bytes.len() <= MAX_KEPT_BYTES;
        self.kept_bytes += if is_kept { bytes.len() } else { 0 };
        let process = std::process::id();
        let bytes = Some(bytes.clone());
        let file = File { bytes, is_kept, is_durable: false, process, progress, ended };
        self.files.insert(path.to_string(), file);
    }

    fn remove(&mut self, path: &str) -> Option<File> {
        let file = self.files.remove(path)?;
        if file.is_kept {
            self.kept_bytes -= file.bytes.as_ref().map_or(0, Bytes::len);
        }
        Some(file)
    }

    /// Drops the content of uploaded files, except of files that are kept for reads. Fails with the error of the first
    /// failed upload.
    fn sweep(&mut self) -> Result<()> {
        for file in self.files.values_mut() {
            match file.progress.answer.get() {
                Some(Ok(())) if !file.is_kept => file.bytes = None,
                Some(Err(error)) => return Err(error.clone()),
                Some(Ok(())) | None => {}
            }
        }
        Ok(())
    }
}

/// Upload of one file.
struct Attempts {
    path: String,
    bytes: Bytes,
    storage: Arc<dyn Storage>,
    environment: Arc<dyn Environment>,
    requests: Arc<Semaphore>,
    is_cancelled: Arc<AtomicBool>,
    deadline_millis: Arc<AtomicU64>,
    progress: Arc<Progress>,
}

impl Attempts {
    async fn run(&self) {
        let answer = self.write().await;
        let _ = self.progress.answer.set(answer);
    }

    /// Writes the file, with retries by the policy of the store until the deadline of the waiting commit.
    async fn write(&self) -> Result<()> {
        let _one = self.requests.acquire().await.map_err(|_| transaction_ended(&self.path))?;
        let mut retries = self.storage.retry_policy().begin(self.environment.as_ref());
        loop {
            if self.is_cancelled.load(Ordering::SeqCst) {
                return Err(transaction_ended(&self.path));
            }
            // The storage sends the request once; this function retries it.
            match within(0, self.storage.write_unsynced(&self.path, self.bytes.clone())).await {
                Err(error @ Error::Storage { retryable: true, .. }) => {
                    self.progress.has_failed_once.store(true, Ordering::SeqCst);
                    let is_late = self.environment.elapsed_millis() >= self.deadline_millis.load(Ordering::SeqCst);
                    if is_late || !retries.pause().await {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! A store with faults that a test injects at exact operations.
//!
//! Every operation is logged and has an index, counted from 0 in the order in which operations begin. A test runs its
//! scenario once without faults to list the operations, then once per operation and [`Action`]. The store reports
//! faults that did not occur, so that no test passes because its fault never happened.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::storage_trait::{FileInfo, PutOutcome, Storage};
use trinitylake_base::error::{Error, Result};

/// The operations of [`Storage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    GetRange,
    Head,
    PutIfAbsent,
    PutHint,
    List,
    Delete,
    /// The durability barrier, which is not a request.
    Sync,
}

impl Verb {
    /// Whether the operation changes the store.
    pub fn writes(self) -> bool {
        matches!(self, Verb::PutIfAbsent | Verb::PutHint | Verb::Delete)
    }
}

/// One operation of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Position among all operations of this store.
    pub index: u64,
    pub verb: Verb,
    /// The path, or the prefix of a list.
    pub path: String,
}

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request does not arrive; the caller receives a retryable error.
    FailBefore,
    /// The request is executed and its reply is lost; the caller receives a retryable error.
    FailAfter,
    /// A creation is executed, but the reply is "exists", as if a retry of the client found the file of its first
    /// attempt.
    AlreadyExistsAfter,
    /// A creation is not executed, but the reply is "exists", as S3 answers while another attempt runs.
    AlreadyExistsBefore,
    /// The process dies before the request arrives: this and every later operation fails until
    /// [`FaultyStorage::revive`].
    DieBefore,
    /// The process dies after the request is executed.
    DieAfter,
    /// The caller receives a retryable error now; a write is executed when the test calls
    /// [`FaultyStorage::deliver_late`].
    Late,
    /// Only `kept_bytes` bytes of the file are written or returned; the reply reports success.
    Torn { kept_bytes: usize },
    /// The request is executed after a pause on tokio's clock.
    Delay(Duration),
    /// The caller receives a permission error.
    Deny,
    /// The request does not arrive; the caller receives an error that is not retryable.
    BreakBefore,
    /// The request is executed; the caller receives an error that is not retryable.
    BreakAfter,
}

/// The operation at which a fault occurs: the `nth` (from 0) operation that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// Any verb if `None`.
    pub verb: Option<Verb>,
    /// Any path if `None`.
    pub path_contains: Option<String>,
    pub nth: u64,
}

impl Trigger {
    /// The operation with that index.
    pub fn at(index: u64) -> Self {
        Self { nth: index, ..Self::default() }
    }

    /// The `nth` operation of that verb.
    pub fn on(verb: Verb, nth: u64) -> Self {
        Self { verb: Some(verb), nth, ..Self::default() }
    }

    /// Restricts the trigger to paths that contain the text.
    pub fn path(mut self, text: &str) -> Self {
        self.path_contains = Some(text.to_owned());
        self
    }

    fn matches(&self, operation: &Operation) -> bool {
        self.verb.is_none_or(|verb| verb == operation.verb)
            && self.path_contains.as_ref().is_none_or(|text| operation.path.contains(text.as_str()))
    }
}

/// One planned fault, which fires once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub trigger: Trigger,
    pub action: Action,
}

impl Fault {
    pub fn new(trigger: Trigger, action: Action) -> Self {
        Self { trigger, action }
    }
}

/// A fault that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    pub operation: Operation,
    pub action: Action,
}

/// Decides for every operation whether it has a fault. With a seeded generator, a random run can be repeated.
pub type Policy = Box<dyn FnMut(&Operation) -> Option<Action> + Send>;

/// A store with a plan of faults.
pub struct FaultyStorage {
    inner: Arc<dyn Storage>,
    state: Mutex<State>,
}

struct State {
    policy: Policy,
    /// Planned faults that have not fired, each with the number of operations that matched so far.
    waiting: Vec<(Fault, u64)>,
    fired: Vec<Fired>,
    log: Vec<Operation>,
    late: Vec<Write>,
    dead: bool,
}

/// A write that can be executed later.
#[derive(Clone, Debug)]
enum Write {
    Create(String, Bytes),
    Ahead(String, Bytes),
    Hint(String, Bytes),
    Delete(String),
}

impl std::fmt::Debug for FaultyStorage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        formatter
            .debug_struct("FaultyStorage")
            .field("inner", &self.inner)
            .field("waiting", &state.waiting)
            .field("fired", &state.fired)
            .finish_non_exhaustive()
    }
}

impl FaultyStorage {
    /// A store with planned faults. Without faults it only keeps the log.
    pub fn new(inner: Arc<dyn Storage>, plan: impl IntoIterator<Item = Fault>) -> Self {
        let storage = Self::with_policy(inner, Box::new(|_| None));
        for fault in plan {
            storage.add(fault);
        }
        storage
    }

    /// A store with a policy that is asked for every operation.
    pub fn with_policy(inner: Arc<dyn Storage>, policy: Policy) -> Self {
        let state =
            State { policy, waiting: Vec::new(), fired: Vec::new(), log: Vec::new(), late: Vec::new(), dead: false };
        Self { inner, state: Mutex::new(state) }
    }

    /// Adds a fault; its trigger counts from now on.
    pub fn add(&self, fault: Fault) {
        self.state().waiting.push((fault, 0));
    }

    /// The faults that fired, in order.
    pub fn fired(&self) -> Vec<Fired> {
        self.state().fired.clone()
    }

    /// The planned faults that did not fire.
    pub fn unfired(&self) -> Vec<Fault> {
        self.state().waiting.iter().map(|(fault, _)| fault.clone()).collect()
    }

    /// All operations so far, including failed ones.
    pub fn log(&self) -> Vec<Operation> {
        self.state().log.clone()
    }

    /// Whether the process is dead.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// A new process starts: operations work again.
    pub fn revive(&self) {
        self.state().dead = false;
    }

    /// Executes the delayed writes in order and returns their results.
    pub async fn deliver_late(&self) -> Vec<Result<PutOutcome>> {
        let late = std::mem::take(&mut self.state().late);
        let mut outcomes = Vec::with_capacity(late.len());
        for write in late {
            outcomes.push(self.apply(write).await);
        }
        outcomes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the operation and returns its fault, if any.
    fn begin(&self, verb: Verb, path: &str) -> Result<Option<Action>> {
        let mut state = self.state();
        let operation = Operation { index: state.log.len() as u64, verb, path: path.to_owned() };
        state.log.push(operation.clone());
        if state.dead {
            return Err(lost(verb, path, "the process is dead"));
        }
        let mut action = None;
        state.waiting.retain_mut(|(fault, matched)| {
            if !fault.trigger.matches(&operation) {
                return true;
            }
            *matched += 1;
            // If two faults match an operation, only the first one fires; the other one waits for its next match.
            if action.is_some() || *matched <= fault.trigger.nth {
                return true;
            }
            action = Some(fault.action);
            false
        });
        let action = action.or_else(|| (state.policy)(&operation));
        if let Some(action) = action {
            state.dead |= matches!(action, Action::DieBefore | Action::DieAfter);
            state.fired.push(Fired { operation, action });
        }
        Ok(action)
    }

    /// A read operation, for which `Late` means a lost reply.
    async fn read<T>(
        &self,
        verb: Verb,
        path: &str,
        read: impl Future<Output = Result<T>> + Send,
        tear: impl FnOnce(T, usize) -> T + Send,
    ) -> Result<T> {
        match self.begin(verb, path)? {
            None | Some(Action::AlreadyExistsAfter | Action::AlreadyExistsBefore) => read.await,
            Some(Action::FailBefore | Action::DieBefore) => Err(lost(verb, path, "the request was lost")),
            Some(Action::FailAfter | Action::DieAfter | Action::Late) => Err(lost(verb, path, "the reply was lost")),
            Some(Action::Torn { kept_bytes }) => read.await.map(|answer| tear(answer, kept_bytes)),
            Some(Action::Delay(pause)) => {
                tokio::time::sleep(pause).await;
                read.await
            }
            Some(Action::Deny) => Err(denied(verb, path)),
            Some(Action::BreakBefore | Action::BreakAfter) => Err(broken(verb, path)),
        }
    }

    /// A write operation. All operations except creations return `Created`.
    async fn write(&self, verb: Verb, path: &str, write: Write) -> Result<PutOutcome> {
        match self.begin(verb, path)? {
            None => self.apply(write).await,
            Some(Action::FailBefore | Action::DieBefore) => Err(lost(verb, path, "the request was lost")),
            Some(Action::FailAfter | Action::DieAfter) => {
                self.apply(write).await?;
                Err(lost(verb, path, "the reply was lost"))
            }
            Some(Action::AlreadyExistsAfter) => {
                self.apply(write).await?;
                Ok(PutOutcome::AlreadyExists)
            }
            Some(Action::AlreadyExistsBefore) => Ok(PutOutcome::AlreadyExists),
            Some(Action::Late) => {
                self.state().late.push(write);
                Err(lost(verb, path, "the request is late"))
            }
            Some(Action::Torn { kept_bytes }) => self.apply(write.torn(kept_bytes)).await,
            Some(Action::Delay(pause)) => {
                tokio::time::sleep(pause).await;
                self.apply(write).await
            }
            Some(Action::Deny) => Err(denied(verb, path)),
            Some(Action::BreakBefore) => Err(broken(verb, path)),
            Some(Action::BreakAfter) => {
                self.apply(write).await?;
                Err(broken(verb, path))
            }
        }
    }

    async fn apply(&self, write: Write) -> Result<PutOutcome> {
        match write {
            Write::Create(path, bytes) => self.inner.put_if_absent(&path, bytes).await,
            Write::Ahead(path, bytes) => self.inner.write_unsynced(&path, bytes).await.map(|()| PutOutcome::Created),
            Write::Hint(path, bytes) => self.inner.put_hint(&path, bytes).await.map(|()| PutOutcome::Created),
            Write::Delete(path) => self.inner.delete(&path).await.map(|()| PutOutcome::Created),
        }
    }
}

impl Write {
    fn torn(self, kept_bytes: usize) -> Self {
        match self {
            Write::Create(path, bytes) => Write::Create(path, torn(bytes, kept_bytes)),
            Write::Ahead(path, bytes) => Write::Ahead(path, torn(bytes, kept_bytes)),
            Write::Hint(path, bytes) => Write::Hint(path, torn(bytes, kept_bytes)),
            Write::Delete(path) => Write::Delete(path),
        }
    }
}

fn torn(bytes: Bytes, kept_bytes: usize) -> Bytes {
    bytes.slice(..kept_bytes.min(bytes.len()))
}

fn lost(verb: Verb, path: &str, what: &str) -> Error {
    Error::Storage { message: format!("injected fault: {what} ({verb:?} {path})"), retryable: true }
}

fn broken(verb: Verb, path: &str) -> Error {
    Error::Storage { message: format!("injected fault: the disk is broken ({verb:?} {path})"), retryable: false }
}

fn denied(verb: Verb, path: &str) -> Error {
    Error::PermissionDenied(format!("injected fault: permission denied ({verb:?} {path})"))
}

#[async_trait]
impl Storage for FaultyStorage {
    fn root(&self) -> &str {
        self.inner.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.read(Verb::Get, path, self.inner.get(path), torn).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.read(Verb::GetRange, path, self.inner.get_range(path, range), torn).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.read(Verb::Head, path, self.inner.head(path), |file, _| file).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.write(Verb::PutIfAbsent, path, Write::Create(path.to_owned(), bytes)).await
    }

    async fn write_unsynced(&self, path: &str, bytes: Bytes) -> Result<()> {
        let ahead = Write::Ahead(path.to_owned(), bytes.clone());
        match self.write(Verb::PutIfAbsent, path, ahead).await? {
            PutOutcome::Created => Ok(()),
            PutOutcome::AlreadyExists => crate::create_readback::check_own(self, path, &bytes).await,
        }
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.read(Verb::Sync, "", self.inner.sync(paths), |done, _| done).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.write(Verb::PutHint, path, Write::Hint(path.to_owned(), bytes)).await.map(|_| ())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.read(Verb::List, prefix, self.inner.list(prefix), |files, _| files).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.write(Verb::Delete, path, Write::Delete(path.to_owned())).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests;

//! A line in which transactions wait for their commit, as those of a server do: one company is committed after the other,
//! on a thread that never waits for Python's lock. So no time passes between two commits, whatever Python does meanwhile.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tokio::runtime::Runtime;
use trinitylake::error::{Error, Result as CoreResult};
use trinitylake::per_process::PerProcess;
use trinitylake::transaction::{CommitLimits, Outcome, Transaction as CoreTransaction, commit_together};

use crate::errors::to_python;
use crate::runtime::runtime;
use crate::transaction::{Transaction, limits, outcome_to_python};

/// Those that are committed together.
const MAX_COMPANY: usize = 64;
/// The thread ends when nobody has come for so long.
const IDLE: Duration = Duration::from_secs(10);

type Files = Vec<(String, Bytes)>;
/// Who waits, his transaction, and files that are handed over with it.
type Companion = (Py<PyAny>, Py<Transaction>, Vec<(String, PyBackedBytes)>);

struct Waiting {
    who: Py<PyAny>,
    transaction: Py<Transaction>,
    files: Files,
}

struct Answered {
    who: Py<PyAny>,
    /// Kept until Python's lock is there to let it go.
    _transaction: Py<Transaction>,
    answer: CoreResult<Outcome>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    answered: Vec<Answered>,
    /// Transactions that nobody has been given an answer for.
    under_way: usize,
    is_held: bool,
    is_woken: bool,
    /// Nobody comes any more.
    is_closed: bool,
    has_thread: bool,
}

#[derive(Default)]
struct Line {
    state: Mutex<State>,
    /// For the thread that commits: somebody has come, or is not waited for any more.
    has_come: Condvar,
    /// For who takes the answers.
    is_told: Condvar,
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who are next. `None` if nobody has come for a long time, and then the thread is over.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut state = self.state();
        loop {
            if !state.is_held && !state.waiting.is_empty() {
                let count = state.waiting.len().min(MAX_COMPANY);
                return Some(state.waiting.drain(..count).collect());
            }
            let (found, waited) =
                self.has_come.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = found;
            if state.waiting.is_empty() && (state.is_closed || waited.timed_out()) {
                state.has_thread = false;
                return None;
            }
        }
    }

    fn work(&self, runtime: &Runtime, limits: CommitLimits) {
        while let Some(mut company) = self.next() {
            let answers = committed(runtime, &mut company, limits);
            let answered = company.into_iter().zip(answers);
            let answered = answered.map(|(Waiting { who, transaction, .. }, answer)| Answered {
                who,
                _transaction: transaction,
                answer,
            });
            self.state().answered.extend(answered);
            self.is_told.notify_all();
        }
    }
}

/// An answer for each.
fn committed(runtime: &Runtime, company: &mut [Waiting], limits: CommitLimits) -> Vec<CoreResult<Outcome>> {
    let committed = catch_unwind(AssertUnwindSafe(|| {
        // It has some ten thousand bytes, which would be moved several times before it begins.
        runtime.block_on(Box::pin(commit_all(company, limits)))
    }));
    committed.unwrap_or_else(|_| {
        let unknown = || Error::CommitStateUnknown("the commit broke off: a fault of the library".into());
        company.iter().map(|_| Err(unknown())).collect()
    })
}

async fn commit_all(company: &mut [Waiting], limits: CommitLimits) -> Vec<CoreResult<Outcome>> {
    // In one order everywhere, so that two lines never wait for each other.
    let mut by_address: Vec<usize> = (0..company.len()).collect();
    by_address.sort_by_key(|&number| Arc::as_ptr(company[number].inner()));
    let inner: Vec<_> = company.iter().map(|one| one.inner().clone()).collect();
    let mut guards = Vec::with_capacity(inner.len());
    for number in by_address {
        guards.push((number, inner[number].lock().await));
    }
    guards.sort_by_key(|(number, _)| *number);
    let handed_over = join_all(company.iter_mut().map(|one| {
        let files = std::mem::take(&mut one.files).into_iter();
        one.transaction.get().storage.get().create_all(files)
    }))
    .await;
    let ready = guards.iter_mut().zip(&handed_over).filter(|(_, files)| files.is_ok());
    let mut ready: Vec<&mut CoreTransaction> = ready.map(|((_, guard), _)| &mut **guard).collect();
    let mut outcomes = commit_together(&mut ready, limits).await.into_iter();
    let answer = |files: CoreResult<()>| files.and_then(|()| outcomes.next().unwrap_or_else(unanswered));
    let answers = handed_over.into_iter().map(answer).collect();
    drop(guards);
    answers
}

/// There is an answer for each: never seen.
fn unanswered() -> CoreResult<Outcome> {
    Err(Error::CommitStateUnknown("the commit gave no answer".into()))
}

impl Waiting {
    fn inner(&self) -> &Arc<tokio::sync::Mutex<CoreTransaction>> {
        &self.transaction.get().inner
    }
}

/// A child process has a line of its own, in which nobody waits: threads of its parent are not there.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct CommitLine {
    line: PerProcess<Arc<Line>>,
    limits: CommitLimits,
}

#[pymethods]
impl CommitLine {
    #[new]
    #[pyo3(signature = (max_attempts=None, timeout_seconds=None, coordination=None))]
    fn new(
        max_attempts: Option<u32>,
        timeout_seconds: Option<f64>,
        coordination: Option<&str>,
    ) -> PyResult<Self> {
        let limits = limits(max_attempts, timeout_seconds, coordination)?;
        Ok(CommitLine { line: PerProcess::default(), limits })
    }

    /// Begin no other company before `add` is called.
    fn hold(&self) {
        self.line.get().state().is_held = true;
    }

    /// Never waits. Each is whom the answer is for, a transaction, and files that are handed over with it.
    fn add(&self, company: Vec<Companion>) -> PyResult<()> {
        let line = self.line.get();
        let added = self.added(line, company);
        // Also after an error: others are held.
        line.state().is_held = false;
        line.has_come.notify_one();
        added
    }

    /// What nobody has been told: for each what `Transaction.commit` would return, or the exception that it would raise.
    /// Who waits is told when there is something, when `wake` was called, or when there is nothing to wait for.
    fn take(&self, py: Python<'_>, waits: bool) -> PyResult<Vec<(Py<PyAny>, Py<PyAny>)>> {
        let line = self.line.get();
        let mut answered = take_told(&mut line.state());
        if answered.is_empty() && waits {
            answered = py.detach(|| {
                let mut state = line.state();
                while state.answered.is_empty() && !state.is_woken && state.under_way > 0 {
                    state = line.is_told.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.is_woken = false;
                take_told(&mut state)
            });
        }
        // Each by itself: an answer that cannot be made is no reason for another one to be lost.
        let answer = |answer: CoreResult<Outcome>| match answer.map(|outcome| outcome_to_python(py, outcome))
        {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => error.into_value(py).into_any(),
            Err(error) => to_python(error).into_value(py).into_any(),
        };
        Ok(answered.into_iter().map(|one| (one.who, answer(one.answer))).collect())
    }

    /// Have `take` not wait, this time or the next.
    fn wake(&self) {
        let line = self.line.get();
        line.state().is_woken = true;
        line.is_told.notify_all();
    }
}

impl Drop for CommitLine {
    fn drop(&mut self) {
        let line = self.line.get();
        let mut state = line.state();
        (state.is_closed, state.is_held) = (true, false);
        line.has_come.notify_one();
    }
}

impl CommitLine {
    fn added(&self, line: &Arc<Line>, company: Vec<Companion>) -> PyResult<()> {
        if company.is_empty() {
            return Ok(());
        }
        let runtime = runtime()?;
        let company: Vec<_> = company.into_iter().map(Waiting::from).collect();
        let mut state = line.state();
        let is_there_twice = |(number, one): (usize, &Waiting)| {
            company[..number]
                .iter()
                .chain(&state.waiting)
                .any(|other| Arc::ptr_eq(one.inner(), other.inner()))
        };
        if company.iter().enumerate().any(is_there_twice) {
            return Err(to_python(Error::InvalidArgument("a transaction can be committed only once".into())));
        }
        if !state.has_thread {
            let (limits, own) = (self.limits, line.clone());
            thread::Builder::new()
                .name("trinitylake-line".into())
                .spawn(move || own.work(runtime, limits))
                .map_err(|error| PyOSError::new_err(format!("cannot start a thread for commits: {error}")))?;
            state.has_thread = true;
        }
        state.under_way += company.len();
        state.waiting.extend(company);
        Ok(())
    }
}

impl From<Companion> for Waiting {
    fn from((who, transaction, files): Companion) -> Self {
        let files = files.into_iter().map(|(path, bytes)| (path, Bytes::from_owner(bytes))).collect();
        Waiting { who, transaction, files }
    }
}

fn take_told(state: &mut State) -> Vec<Answered> {
    state.under_way -= state.answered.len();
    std::mem::take(&mut state.answered)
}

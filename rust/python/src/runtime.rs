//! Calls from Python into the core, all of them: releases the GIL, honours Ctrl-C, survives fork.
//!
//! No thread exists before the first call that needs one. A forked child inherits the memory of its
//! parent's runtime but not its threads, so it gets one of its own and leaks the other.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use trinitylake::environment::{background_tasks, forget_background_tasks};
use trinitylake::error::Result;

use crate::errors::to_python;

/// How long a signal may wait while a call is under way.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

pub fn runtime() -> PyResult<&'static Runtime> {
    let process = std::process::id();
    let mut current = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, runtime)) = *current
        && owner == process
    {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("trinitylake")
        .enable_all()
        .build()
        .map_err(|error| PyOSError::new_err(format!("cannot start threads for storage requests: {error}")))?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    if current.is_some() {
        forget_background_tasks();
    }
    *current = Some((process, runtime));
    Ok(runtime)
}

/// Runs a future to its end without the GIL. A signal drops it: nothing that cannot be interrupted may
/// go through here (see [`run_to_end`]).
pub fn run<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    py.detach(|| {
        runtime.block_on(async {
            let mut future = pin!(future);
            loop {
                match tokio::time::timeout(SIGNAL_CHECK, &mut future).await {
                    Ok(result) => return result.map_err(to_python),
                    Err(_) => Python::attach(|py| py.check_signals())?,
                }
            }
        })
    })
}

/// Like [`run`], for what must not stop half-way: Python sees the signal once it is over.
pub fn run_to_end<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    py.detach(|| runtime.block_on(future)).map_err(to_python)
}

/// Waits for tasks in the background, such as hints that are being written. Called when the process ends.
#[pyfunction]
pub fn finish_background_tasks(py: Python<'_>, timeout_seconds: f64) {
    let owner = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner).map(|(owner, _)| owner);
    let limit = Duration::from_secs_f64(timeout_seconds.max(0.0));
    let pause = Duration::from_millis(1);
    py.detach(|| {
        let mut waited = Duration::ZERO;
        while owner == Some(std::process::id()) && background_tasks() > 0 && waited < limit {
            std::thread::sleep(pause);
            waited += pause;
        }
    });
}

/// Like [`run`], for look-ups that the cache mostly answers: those do not pay for releasing the GIL.
pub fn run_quick<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    let mut future = Box::pin(future);
    {
        let _context = runtime.enter();
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result.map_err(to_python);
        }
    }
    run(py, future)
}

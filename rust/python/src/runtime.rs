//! Runs calls from Python into the core: releases the GIL, handles Ctrl-C, and survives a fork.
//!
//! No thread is started before the first call that needs one. A forked child inherits the memory of its parent's
//! runtime but not its threads. The child never drops that runtime, and creates a new one.

use std::future::Future;
use std::pin::pin;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use trinitylake::environment::{background_tasks, forget_background_tasks, hurry_background_tasks};
use trinitylake::error::Result;
use trinitylake::per_process::PerProcess;

use crate::errors::to_python;

/// Interval between checks for a signal during a call.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// Runtime of this process, created on first use. Its background tasks are counted from 0.
static RUNTIME: LazyLock<PerProcess<Mutex<Option<&'static Runtime>>>> = LazyLock::new(|| {
    PerProcess::new(|| {
        forget_background_tasks();
        Mutex::new(None)
    })
});

pub fn runtime() -> PyResult<&'static Runtime> {
    let mut current = RUNTIME.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = *current {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("trinitylake")
        .enable_all()
        .build()
        .map_err(|error| PyOSError::new_err(format!("cannot start threads for storage requests: {error}")))?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some(runtime);
    Ok(runtime)
}

/// Runs a future to its end without the GIL. A signal drops the future, so use [`run_to_end`] for work that must not be
/// interrupted.
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

/// Like [`run`], for work that must not be interrupted. Python handles a signal after the work.
pub fn run_to_end<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    // The future is boxed, because the future of a commit has about ten thousand bytes, which would otherwise be moved
    // several times.
    let future = pin!(future);
    py.detach(|| runtime.block_on(future)).map_err(to_python)
}

/// Waits for background tasks, such as writes of the hint. Called when the process exits.
#[pyfunction]
pub fn finish_background_tasks(py: Python<'_>, timeout_seconds: f64) {
    let is_used = RUNTIME.get().lock().unwrap_or_else(PoisonError::into_inner).is_some();
    let limit = Duration::from_secs_f64(timeout_seconds.max(0.0));
    let pause = Duration::from_millis(1);
    py.detach(|| {
        let mut waited = Duration::ZERO;
        while is_used && background_tasks() > 0 && waited < limit {
            hurry_background_tasks();
            std::thread::sleep(pause);
            waited += pause;
        }
    });
}

/// Like [`run`], for lookups that the node cache or the page cache usually answers. Keeps the GIL at first, because a
/// thread that releases it has to wait for other threads to get it back.
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

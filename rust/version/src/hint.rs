//! Writing the latest version hint beside the commits.
//!
//! Best effort: no commit waits for a slow store, and while one write is under way only the newest version is
//! remembered for the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::discovery::write_hint;
use trinitylake_base::environment::{Environment, Task};
use trinitylake_base::per_process::PerProcess;
use trinitylake_storage::Storage;

#[derive(Debug, Default)]
pub struct HintWriter(PerProcess<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_writing: bool,
    next: Option<u64>,
}

impl HintWriter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the hint name `version` or a later one. Returns what the committer should wait for.
    pub fn announce(
        self: &Arc<Self>,
        storage: Arc<dyn Storage>,
        environment: &dyn Environment,
        version: u64,
    ) -> Task {
        {
            let mut state = self.state();
            state.next = state.next.max(Some(version));
            if std::mem::replace(&mut state.is_writing, true) {
                return Box::pin(std::future::ready(()));
            }
        }
        let mut writer = Writing { hint: self.clone(), is_done: false };
        environment.background(Box::pin(async move {
            while let Some(version) = writer.next() {
                write_hint(storage.as_ref(), version).await;
            }
        }))
    }
}

/// The write that is under way. When it is done, or dropped half-way, another may begin.
struct Writing {
    hint: Arc<HintWriter>,
    is_done: bool,
}

impl Writing {
    fn next(&mut self) -> Option<u64> {
        let mut state = self.hint.state();
        let next = state.next.take();
        if next.is_none() {
            state.is_writing = false;
            self.is_done = true;
        }
        next
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_done {
            self.hint.state().is_writing = false;
        }
    }
}

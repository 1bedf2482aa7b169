//! Writer of the hint, which names the latest version.
//!
//! The hint is best effort: no commit waits for a slow store. While a write runs, only the newest version is remembered
//! for the next write. All writers overwrite one object, and some stores accept only one write per second to an object.
//! Therefore, on a remote store, all processes together write about once per second: a process that finds a newer hint
//! postpones its write, because the writer of that hint continues. When a process stops committing, it writes its
//! newest version (docs/decisions/0034).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::discovery::{read_hint, write_hint};
use trinitylake_base::environment::{Environment, Task};
use trinitylake_base::per_process::PerProcess;
use trinitylake_storage::{Storage, is_remote};

/// Interval between hint writes of all processes on a remote store.
const PAUSE_MILLIS: u64 = 1000;

#[derive(Debug, Default)]
pub struct HintWriter(PerProcess<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_writing: bool,
    next: Option<u64>,
    /// Value of the hint when this process last wrote or read it, and the time on the elapsed clock.
    seen: Option<(u64, u64)>,
}

impl HintWriter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the hint to `version` or a later one. Returns the part of the work for which the committer waits.
    pub fn announce(
        self: &Arc<Self>,
        storage: Arc<dyn Storage>,
        environment: &Arc<dyn Environment>,
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
        let clock = environment.clone();
        environment.background(Box::pin(async move {
            let is_rationed = is_remote(storage.as_ref());
            while writer.has_next() {
                if is_rationed {
                    writer.write_rationed(storage.as_ref(), clock.as_ref()).await;
                } else if let Some(version) = writer.take() {
                    write_hint(storage.as_ref(), version).await;
                }
            }
        }))
    }
}

/// The running write. Another one may start when it ends or is dropped.
struct Writing {
    hint: Arc<HintWriter>,
    is_done: bool,
}

impl Writing {
    fn has_next(&mut self) -> bool {
        let mut state = self.hint.state();
        if state.next.is_none() {
            state.is_writing = false;
            self.is_done = true;
        }
        !self.is_done
    }

    fn take(&self) -> Option<u64> {
        self.hint.state().next.take()
    }

    fn seen(&self, version: u64, clock: &dyn Environment) {
        self.hint.state().seen = Some((version, clock.elapsed_millis()));
    }

    /// Waits until a second has passed since the hint was last read or written, and then writes it. If another process
    /// has written it in the meantime, checks again a second later instead.
    async fn write_rationed(&self, storage: &dyn Storage, clock: &dyn Environment) {
        let seen = self.hint.state().seen;
        if let Some((_, when)) = seen {
            let passed = clock.elapsed_millis().saturating_sub(when);
            clock.linger(Duration::from_millis(PAUSE_MILLIS.saturating_sub(passed))).await;
        }
        let Some(version) = self.take() else { return };
        if let Some((before, _)) = seen
            && let Some(hint) = read_hint(storage).await
            && hint > before
        {
            self.seen(hint, clock);
            if hint < version {
                let mut state = self.hint.state();
                state.next = state.next.max(Some(version));
            }
            return;
        }
        write_hint(storage, version).await;
        self.seen(version, clock);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_done {
            self.hint.state().is_writing = false;
        }
    }
}

#[cfg(test)]
mod tests;

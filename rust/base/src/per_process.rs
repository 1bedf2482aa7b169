//! A separate value for each process. After a `fork`, a child must not use a queue, a lock or a counter of its parent,
//! because the parent's threads that hold or serve them do not exist in the child.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// A separate value for each process, created on first use. A child neither changes nor drops its parent's value,
/// because only the parent may close its connections.
pub struct PerProcess<T> {
    process: u32,
    value: Arc<T>,
    make: Arc<dyn Fn() -> T + Send + Sync>,
    /// The value of a forked child, which inherited the parent's value and must not use it.
    child: OnceLock<Box<PerProcess<T>>>,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PerProcess").field("process", &self.process).finish_non_exhaustive()
    }
}

impl<T: Default + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new(T::default)
    }
}

impl<T> PerProcess<T> {
    /// Creates the value by `make`: now for this process, and once in each forked child that uses the value.
    pub fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self::made_by(Arc::new(make), std::process::id())
    }

    fn made_by(make: Arc<dyn Fn() -> T + Send + Sync>, process: u32) -> Self {
        PerProcess { process, value: Arc::new(make()), make, child: OnceLock::new() }
    }

    /// The value of this process.
    pub fn get(&self) -> &T {
        self.of(std::process::id())
    }

    /// The value that the process with this id would use. The process is this one, a forked child, or a child of a
    /// forked child.
    #[cfg(feature = "testing")]
    pub fn of_child(&self, process: u32) -> &T {
        self.of(process)
    }

    fn of(&self, process: u32) -> &T {
        let mut one = self;
        while one.process != process {
            one = one.child.get_or_init(|| Box::new(Self::made_by(one.make.clone(), process)));
        }
        &one.value
    }

    fn keep_if_foreign(&self, process: u32) {
        if self.process != process {
            std::mem::forget(self.value.clone());
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        self.keep_if_foreign(std::process::id());
    }
}

#[cfg(test)]
mod tests;

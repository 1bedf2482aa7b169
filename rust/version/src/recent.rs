//! The versions that one handle has seen last: those that commits are validated against.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Version;

/// Versions kept beside the latest. Each holds its root, some hundred KiB at most.
const RECENT_VERSIONS: usize = 32;

#[derive(Debug)]
pub(crate) struct Recent {
    pub latest: Arc<Version>,
    /// Ascending, `latest` not among them.
    older: VecDeque<Arc<Version>>,
}

impl Recent {
    pub fn starting_with(version: Arc<Version>) -> Recent {
        Recent { latest: version, older: VecDeque::new() }
    }

    pub fn find(&self, number: u64) -> Option<Arc<Version>> {
        if self.latest.number == number {
            return Some(self.latest.clone());
        }
        let position = self.older.binary_search_by_key(&number, |version| version.number).ok()?;
        Some(self.older[position].clone())
    }

    pub fn add(&mut self, version: Arc<Version>) {
        if version.number > self.latest.number {
            self.older.push_back(std::mem::replace(&mut self.latest, version));
        } else if version.number < self.latest.number {
            match self.older.binary_search_by_key(&version.number, |older| older.number) {
                Ok(_) => {}
                Err(position) => self.older.insert(position, version),
            }
        }
        while self.older.len() > RECENT_VERSIONS {
            self.older.pop_front();
        }
    }

    /// The latest stays, whatever is said of it.
    pub fn forget(&mut self, versions: &[u64]) {
        self.older.retain(|version| !versions.contains(&version.number));
    }
}

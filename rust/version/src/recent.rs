//! Cache of the recent versions of one handle, against which commits are validated.

use std::collections::VecDeque;
use std::sync::Arc;

use super::version::Version;

/// Number of versions in addition to the latest. Each holds its root, which has at most some hundred KiB.
const RECENT_VERSIONS: usize = 32;

#[derive(Debug)]
pub(crate) struct Recent {
    pub latest: Arc<Version>,
    /// Ascending, without `latest`.
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

    /// Removes versions, except the latest.
    pub fn forget(&mut self, versions: &[u64]) {
        self.older.retain(|version| !versions.contains(&version.number));
    }
}

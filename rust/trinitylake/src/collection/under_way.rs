//! From when to when a collection says that it may delete files (`version::gc_markers`).
//!
//! Invariants:
//! - It says so before it makes its version, and until the store has answered all that it asked to delete. Who dies, or
//!   does not know what became of a request, leaves the file: the request may arrive late.
//! - Only a later collection that deletes as much, and has gone through all files, removes it: what is there then, the
//!   dead one did not mean. For that it has to know each file for the lakehouse's own: what it does not know may lie in
//!   the folder of a table that only the dead one knew.
//! - The files of others are listed before the mark begins: who comes during it may know of an expiry that the mark does
//!   not know of.

use std::sync::Arc;

use crate::environment::Environment;
use crate::error::Result;
use crate::storage::Storage;
use crate::version::gc_markers::{Collecting, announce, under_way};

/// One collection.
#[derive(Debug)]
pub(super) struct UnderWay {
    storage: Arc<dyn Storage>,
    before_millis: u64,
    /// Others, from before this one looked for anything.
    earlier: Vec<Collecting>,
    own: Option<String>,
    /// Has the store answered all requests to delete?
    is_settled: bool,
}

impl UnderWay {
    /// To be called before anything is looked for.
    pub async fn begin(storage: Arc<dyn Storage>, before_millis: u64) -> Result<UnderWay> {
        let earlier = under_way(storage.as_ref()).await?;
        Ok(UnderWay { storage, before_millis, earlier, own: None, is_settled: true })
    }

    /// To be called before the version is made.
    pub async fn announce(&mut self, environment: &dyn Environment) -> Result<()> {
        if self.own.is_none() {
            self.own = Some(announce(self.storage.as_ref(), environment, self.before_millis).await?);
        }
        Ok(())
    }

    /// Requests to delete are on their way from here on.
    pub fn deletes(&mut self) {
        self.is_settled = false;
    }

    /// All of them were answered.
    pub fn has_deleted(&mut self) {
        self.is_settled = true;
    }

    /// Nothing more will be deleted. `knows_all`: it went through all files, and knew each for the lakehouse's own. What
    /// cannot be removed is left to a later collection.
    pub async fn end(&mut self, knows_all: bool) {
        if !self.is_settled {
            return;
        }
        let mut over: Vec<String> = self.own.take().into_iter().collect();
        if knows_all {
            let covered = self.earlier.drain(..).filter(|one| one.before_millis <= self.before_millis);
            over.extend(covered.map(|one| one.path));
        }
        for path in over {
            let _ = self.storage.delete(&path).await;
        }
    }
}

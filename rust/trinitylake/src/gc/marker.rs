//! Marker file of a running garbage collection (`version::gc_markers`).
//!
//! Invariants:
//! - The marker exists from before the version of the collection is published until the store has answered all
//!   deletions. If the collector dies or the outcome of a deletion is unknown, the marker stays, because the store may
//!   delete later.
//! - A later collection removes the marker of a dead collector if no file is left that the dead collector wanted to
//!   delete. It has to delete all files that the dead collector would have deleted, to read the whole listing, and to
//!   recognise every file as the lakehouse's own: an unrecognised file may be in the folder of a table that only the
//!   dead collector knew.
//! - A collection removes only markers that it listed before it marked the referenced files. A collection that begins
//!   later may know of an expiry of which the first one does not know.

use std::sync::Arc;

use crate::environment::Environment;
use crate::error::Result;
use crate::storage::Storage;
use crate::version::gc_markers::{Collecting, announce, under_way};

#[derive(Debug)]
pub(super) struct GcMarker {
    storage: Arc<dyn Storage>,
    before_millis: u64,
    /// Markers that other collections created before this one began.
    earlier: Vec<Collecting>,
    own: Option<String>,
    /// Whether the store has answered all deletions.
    is_settled: bool,
}

impl GcMarker {
    /// Call this before the mark.
    pub async fn begin(storage: Arc<dyn Storage>, before_millis: u64) -> Result<GcMarker> {
        let earlier = under_way(storage.as_ref()).await?;
        Ok(GcMarker { storage, before_millis, earlier, own: None, is_settled: true })
    }

    /// Call this before the fence.
    pub async fn announce(&mut self, environment: &dyn Environment) -> Result<()> {
        if self.own.is_none() {
            self.own = Some(announce(self.storage.as_ref(), environment, self.before_millis).await?);
        }
        Ok(())
    }

    /// Records that deletions are about to be sent.
    pub fn deletes(&mut self) {
        self.is_settled = false;
    }

    /// Records that the store has answered all deletions.
    pub fn has_deleted(&mut self) {
        self.is_settled = true;
    }

    /// Ends the collection. `knows_all`: every file was listed and recognised as the lakehouse's own. If a marker
    /// cannot be removed, a later collection removes it.
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

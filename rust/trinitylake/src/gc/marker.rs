//! Marker file of a running garbage collection (`version::gc_markers`).
//!
//! Invariants:
//! - It exists from before the fence until the store has answered all deletions. A collector that dies, or that does
//!   not know the outcome of a request, leaves the file: the request may arrive late.
//! - It is removed by a later collection that deletes at least as much, has read the whole listing, and recognised
//!   every file as the lakehouse's own. What exists then was not meant by the dead collector. An unrecognised file may
//!   be in the folder of a table that only the dead collector knew.
//! - Markers of other collections are listed before the mark begins: a collection that begins during the mark may know
//!   of an expiry that this one does not know.

use std::sync::Arc;

use crate::environment::Environment;
use crate::error::Result;
use crate::storage::Storage;
use crate::version::gc_markers::{Collecting, announce, under_way};

/// Marker of one collection.
#[derive(Debug)]
pub(super) struct GcMarker {
    storage: Arc<dyn Storage>,
    before_millis: u64,
    /// Markers of other collections, from before this one began.
    earlier: Vec<Collecting>,
    own: Option<String>,
    /// Whether the store has answered all deletions.
    is_settled: bool,
}

impl GcMarker {
    /// To be called before the mark.
    pub async fn begin(storage: Arc<dyn Storage>, before_millis: u64) -> Result<GcMarker> {
        let earlier = under_way(storage.as_ref()).await?;
        Ok(GcMarker { storage, before_millis, earlier, own: None, is_settled: true })
    }

    /// To be called before the fence.
    pub async fn announce(&mut self, environment: &dyn Environment) -> Result<()> {
        if self.own.is_none() {
            self.own = Some(announce(self.storage.as_ref(), environment, self.before_millis).await?);
        }
        Ok(())
    }

    /// Notes that deletions are about to be sent.
    pub fn deletes(&mut self) {
        self.is_settled = false;
    }

    /// Notes that all deletions were answered.
    pub fn has_deleted(&mut self) {
        self.is_settled = true;
    }

    /// Ends the collection. `knows_all`: every file was listed and recognised as the lakehouse's own. A marker that
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

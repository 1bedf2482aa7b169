//! Iterator over all files of the lakehouse, page by page.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::error::Result;
use crate::storage::{FileInfo, Place, Step, Storage};

/// Maximum number of places that are listed at the same time.
const PARALLEL_LISTS: usize = 16;
/// Number of files after which a page is returned.
const FILES_AT_ONCE: usize = 10_000;

/// A walk with the places that it has not listed yet.
#[derive(Debug)]
pub struct Walk {
    storage: Arc<dyn Storage>,
    places: Vec<Place>,
}

impl Walk {
    /// Begins a walk through the whole lakehouse.
    pub fn begin(storage: Arc<dyn Storage>) -> Walk {
        Walk::through(storage, vec![Place::default()])
    }

    pub fn through(storage: Arc<dyn Storage>, places: Vec<Place>) -> Walk {
        Walk { storage, places }
    }

    /// Returns the next page of files; `None` after the last page.
    pub async fn next(&mut self) -> Result<Option<Vec<FileInfo>>> {
        if self.places.is_empty() {
            return Ok(None);
        }
        let mut files = Vec::new();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < PARALLEL_LISTS
                && files.len() < FILES_AT_ONCE
                && let Some(place) = self.places.pop()
            {
                let storage = self.storage.clone();
                running.push(async move { storage.walk(&place).await });
            }
            let Some(step) = running.next().await else { return Ok(Some(files)) };
            let Step { files: found, places } = step?;
            files.extend(found);
            self.places.extend(places);
        }
    }

    /// Walks until at least `wanted` places remain, or their number no longer grows. Returns the remaining places,
    /// which other processes can walk through, and the files found before.
    pub async fn divided(self, wanted: usize) -> Result<(Vec<Place>, Vec<FileInfo>)> {
        let (mut places, mut files) = (self.places, Vec::new());
        while !places.is_empty() && places.len() < wanted {
            let mut next = Vec::new();
            for place in &places {
                let step = self.storage.walk(place).await?;
                files.extend(step.files);
                next.extend(step.places);
            }
            // The number does not grow if a folder with very many files is listed in several pages.
            let grows = next.len() > places.len() || places == [Place::default()];
            places = next;
            if !grows {
                break;
            }
        }
        Ok((places, files))
    }
}

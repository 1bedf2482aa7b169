//! Age of files by the clock of their store.
//!
//! Deletion by age uses this clock alone. The clocks of hosts may differ by days, but one store dates all files.

use bytes::Bytes;

use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_storage::{FileInfo, Storage};

/// Current time of a store, with a precision of a second, because stores date files in whole seconds.
#[derive(Clone, Copy, Debug)]
pub struct StoreTime {
    now_millis: u64,
}

/// Maximum number of attempts to read the time.
const ATTEMPTS: u32 = 5;

impl StoreTime {
    /// Creates a file below `_probe/`, reads its date, and removes it. If this machine was suspended or the answer to
    /// the creation was lost, a garbage collection may remove the file in between; then the request is repeated.
    pub async fn ask(storage: &dyn Storage, environment: &dyn Environment) -> Result<StoreTime> {
        for _ in 0..ATTEMPTS {
            let path = format!("_probe/{}-clock", environment.uuid());
            let dated = match storage.put_unique(&path, Bytes::new()).await {
                Ok(()) => storage.head(&path).await,
                Err(error) => Err(error),
            };
            // A file that stays below `_probe/` is left to garbage collection.
            let _ = storage.delete(&path).await;
            match dated {
                Err(Error::FileNotFound { .. }) => {}
                dated => return StoreTime::of(&dated?),
            }
        }
        Err(Error::Storage {
            message: "files that were created to read the time of the store disappeared immediately".into(),
            retryable: true,
        })
    }

    fn of(file: &FileInfo) -> Result<StoreTime> {
        match file.modified_millis {
            0 => Err(Error::StorageRefused(
                "the store does not date files, so the age of versions is unknown".into(),
            )),
            now_millis => Ok(StoreTime { now_millis }),
        }
    }

    /// Time of the store this long ago.
    pub fn millis_before(&self, age_millis: u64) -> u64 {
        self.now_millis.saturating_sub(age_millis)
    }

    /// Time since another time; 0 if that is later.
    pub fn millis_since(&self, other: StoreTime) -> u64 {
        self.now_millis.saturating_sub(other.now_millis)
    }

    /// Age of a file.
    pub fn age_millis(&self, file: &FileInfo) -> u64 {
        self.now_millis.saturating_sub(file.modified_millis)
    }
}

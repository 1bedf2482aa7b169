//! Age of files by the clock of their store.
//!
//! What is deleted for its age is judged by this alone. Hosts disagree about the time, by days if one of them was set
//! wrong; yet the same store dates all files.

use bytes::Bytes;

use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_storage::{FileInfo, Storage};

/// A moment by the clock of a store. It may be a second off, as stores date files by whole seconds.
#[derive(Clone, Copy, Debug)]
pub struct StoreTime {
    now_millis: u64,
}

/// Number of attempts.
const ATTEMPTS: u32 = 5;

impl StoreTime {
    /// Creates a file below `_probe/`, reads when the store says that this was, and removes it again. A collector may have
    /// taken it for litter meanwhile, if this machine stood still, or if the answer to its creation was lost and it had to be
    /// looked for: then it begins again.
    pub async fn ask(storage: &dyn Storage, environment: &dyn Environment) -> Result<StoreTime> {
        for _ in 0..ATTEMPTS {
            let path = format!("_probe/{}-clock", environment.uuid());
            let dated = match storage.put_unique(&path, Bytes::new()).await {
                Ok(()) => storage.head(&path).await,
                Err(error) => Err(error),
            };
            // Litter under `_probe/` does no harm.
            let _ = storage.delete(&path).await;
            match dated {
                Err(Error::FileNotFound { .. }) => {}
                dated => return StoreTime::of(&dated?),
            }
        }
        Err(Error::Storage {
            message: "files that were written to learn the time of the store were gone at once".into(),
            retryable: true,
        })
    }

    fn of(file: &FileInfo) -> Result<StoreTime> {
        match file.modified_millis {
            0 => Err(Error::StorageRefused(
                "the store does not say when a file was written, so nobody can tell how old versions are"
                    .into(),
            )),
            now_millis => Ok(StoreTime { now_millis }),
        }
    }

    /// Time of the store this long ago.
    pub fn millis_before(&self, age_millis: u64) -> u64 {
        self.now_millis.saturating_sub(age_millis)
    }

    /// Time since another one; 0 if it is later.
    pub fn millis_since(&self, other: StoreTime) -> u64 {
        self.now_millis.saturating_sub(other.now_millis)
    }

    /// For how long the file has been there.
    pub fn age_millis(&self, file: &FileInfo) -> u64 {
        self.now_millis.saturating_sub(file.modified_millis)
    }
}

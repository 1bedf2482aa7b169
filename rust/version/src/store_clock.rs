//! Clock of a store, read from the date of a file that is created for it.
//!
//! Deletions by age use only this clock: the store dates all files, and the clocks of hosts may differ by days.

use bytes::Bytes;

use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_storage::{FileInfo, Storage};

/// Current time of a store, with a precision of a second, because stores date files in whole seconds.
#[derive(Clone, Copy, Debug)]
pub struct StoreTime {
    now_millis: u64,
}

/// Tolerance for file times: stores date files in steps of up to a second, and the clocks of their machines differ
/// slightly.
pub const FILE_TIME_PRECISION_MILLIS: u64 = 2000;
/// Maximum number of attempts to read the time.
const ATTEMPTS: u32 = 5;
/// Interval between two checks whether the clock was set back.
const CHECK_INTERVAL_MILLIS: u64 = 10_000;
/// Tolerated drift of the store's clock: it may lag behind by this fraction of the elapsed time.
const TOLERATED_DRIFT: u64 = 100;

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
            // If this fails, garbage collection deletes the file.
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
            0 => Err(Error::StorageRefused("the store does not date files, so the age of versions is unknown".into())),
            now_millis => Ok(StoreTime { now_millis }),
        }
    }

    /// Returns the time of the store `age_millis` ago.
    pub fn millis_before(&self, age_millis: u64) -> u64 {
        self.now_millis.saturating_sub(age_millis)
    }

    /// Time since `other`; 0 if `other` is later.
    pub fn millis_since(&self, other: StoreTime) -> u64 {
        self.now_millis.saturating_sub(other.now_millis)
    }

    pub fn age_millis(&self, file: &FileInfo) -> u64 {
        self.now_millis.saturating_sub(file.modified_millis)
    }
}

/// Repeated check during a deletion by age that the clock of the store was not set back.
#[derive(Clone, Copy, Debug)]
pub struct ClockCheck {
    pub begun: StoreTime,
    begun_elapsed_millis: u64,
    checked_elapsed_millis: Option<u64>,
}

impl ClockCheck {
    /// Reads the clock for the first time.
    pub async fn begin(storage: &dyn Storage, environment: &dyn Environment) -> Result<ClockCheck> {
        let begun = StoreTime::ask(storage, environment).await?;
        let begun_elapsed_millis = environment.elapsed_millis();
        Ok(ClockCheck { begun, begun_elapsed_millis, checked_elapsed_millis: None })
    }

    /// Returns `StorageRefused` if the clock was set back since [`ClockCheck::begin`]: new files would look old.
    pub async fn check(&mut self, storage: &dyn Storage, environment: &dyn Environment) -> Result<()> {
        let elapsed_millis = environment.elapsed_millis();
        if self.checked_elapsed_millis.is_some_and(|checked| elapsed_millis < checked + CHECK_INTERVAL_MILLIS) {
            return Ok(());
        }
        let now = StoreTime::ask(storage, environment).await?;
        let passed = elapsed_millis - self.begun_elapsed_millis;
        let shown = now.millis_since(self.begun);
        if shown + passed / TOLERATED_DRIFT + FILE_TIME_PRECISION_MILLIS < passed {
            return Err(Error::StorageRefused(format!(
                "the clock of the store was set back: it advanced by {shown} ms while {passed} ms passed. Files that \
                 were just written may look old, so nothing more is deleted; try again once the clock is right"
            )));
        }
        self.checked_elapsed_millis = Some(elapsed_millis);
        Ok(())
    }
}

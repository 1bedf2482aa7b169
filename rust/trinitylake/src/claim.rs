//! Creating a file that many want to create: whoever does so first wins. Knows nothing of what is in it.
//!
//! Any answer but "created" is a question, not a verdict (format §8.2): a reply may be lost, and a client
//! may retry and find its own first attempt. The file is read back; the bytes hold an id that nobody
//! else has, so equal bytes are ours.

use std::time::Duration;

use bytes::Bytes;

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::storage::{PutOutcome, Storage};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// `sent_once`: the first request was answered, so none is on its way that may create the file again
    /// after it was deleted.
    Won { sent_once: bool },
    /// The file of whoever was first.
    Lost(Bytes),
}

/// Between two tries to learn what happened.
const PAUSE_MILLIS: u64 = 20;
const PAUSE_MAX_MILLIS: u64 = 1000;

/// Creates `path` with `bytes` unless somebody else has. Tries until `deadline_millis` on the
/// environment's elapsed clock; then, if it still cannot tell, `CommitStateUnknown`.
pub async fn claim(
    storage: &dyn Storage,
    environment: &dyn Environment,
    path: &str,
    bytes: Bytes,
    deadline_millis: u64,
) -> Result<Claim> {
    let mut pause = PAUSE_MILLIS;
    let mut sent_once = true;
    loop {
        let put = storage.put_if_absent(path, bytes.clone()).await;
        if matches!(put, Ok(PutOutcome::Created)) {
            return Ok(Claim::Won { sent_once });
        }
        sent_once = false;
        let doubt = match storage.get(path).await {
            Ok(found) if found == bytes => return Ok(Claim::Won { sent_once }),
            Ok(found) => return Ok(Claim::Lost(found)),
            Err(Error::FileNotFound { .. }) => match put {
                // The request certainly wrote nothing, and would not on another try.
                Err(error @ (Error::PermissionDenied(_) | Error::InvalidLocation(_))) => return Err(error),
                Err(error @ Error::Storage { retryable: false, .. }) => return Err(error),
                Err(error) => error.to_string(),
                Ok(_) => "it was said to exist, and then was not there".to_string(),
            },
            Err(error) => error.to_string(),
        };
        if environment.elapsed_millis() >= deadline_millis {
            return Err(Error::CommitStateUnknown(format!(
                "{path}: cannot tell whether the commit happened, nothing was deleted ({doubt})"
            )));
        }
        environment.sleep(Duration::from_millis(pause + environment.random_below(pause))).await;
        pause = (pause * 2).min(PAUSE_MAX_MILLIS);
    }
}

#[cfg(test)]
mod tests;

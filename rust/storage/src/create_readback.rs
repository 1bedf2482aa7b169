//! Claiming a file: several writers try to create it, and the first one wins.
//!
//! After any answer except "created", it is unknown which writer won (format §8): the reply may have been lost, or the
//! client may have retried and found the file of its own first attempt. Therefore the file is read. Its content
//! includes an id that no other writer uses, so equal bytes mean that this writer won. A refusal is the outcome of one
//! request only: an earlier request of the same claim without an answer may still create the file.

use bytes::Bytes;

use crate::storage_trait::{PutOutcome, Storage};
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};

/// Outcome of a claim.
#[derive(Clone, Debug)]
pub enum Claim {
    /// This writer created the file. `sent_once`: the first request was answered with "created". Otherwise an earlier
    /// request may still be in flight, and could create the file again after its deletion.
    Won { sent_once: bool },
    /// Another writer was first. This is the content of its file.
    Lost(Bytes),
    /// No request created the file, and none can still create it: all of them were refused ([`is_refusal`]).
    Refused(Error),
    /// A request may have created the file, or may still create it. The error is `CommitStateUnknown`.
    Unknown(Error),
}

/// Creates `path` with `bytes`, unless another writer has created it. Tries at least once, and again until
/// `deadline_millis` on the environment's elapsed clock.
pub async fn claim(
    storage: &dyn Storage,
    environment: &dyn Environment,
    path: &str,
    bytes: Bytes,
    deadline_millis: u64,
) -> Claim {
    let mut retries = storage.retry_policy().until(environment, deadline_millis);
    let mut sent_once = true;
    let mut is_in_doubt = false;
    loop {
        let put = storage.put_if_absent(path, bytes.clone()).await;
        if matches!(put, Ok(PutOutcome::Created)) {
            return Claim::Won { sent_once };
        }
        sent_once = false;
        let was_refused = put.as_ref().is_err_and(is_refusal);
        is_in_doubt |= !was_refused;
        let doubt = match (storage.get(path).await, put) {
            (Ok(found), _) if found == bytes => return Claim::Won { sent_once },
            (Ok(found), _) => return Claim::Lost(found),
            (_, Err(refusal)) if was_refused && !is_in_doubt => return Claim::Refused(refusal),
            (Err(Error::FileNotFound { .. }), Err(error)) => error.to_string(),
            (Err(Error::FileNotFound { .. }), Ok(_)) => {
                "the store reported that the file exists, and then did not find it".to_string()
            }
            (Err(error), _) => error.to_string(),
        };
        if !retries.pause().await {
            return Claim::Unknown(Error::CommitStateUnknown(format!(
                "{path}: it is unknown whether the commit succeeded; nothing was deleted ({doubt})"
            )));
        }
    }
}

/// Whether an error of a creation proves that the request created nothing. After an error that is not listed here, the
/// file may exist now or later.
pub fn is_refusal(error: &Error) -> bool {
    match error {
        Error::PermissionDenied(_)
        | Error::InvalidLocation(_)
        | Error::InvalidArgument(_)
        | Error::StorageRefused(_) => true,
        Error::ObjectNotFound(_)
        | Error::ObjectAlreadyExists(_)
        | Error::NamespaceNotEmpty(_)
        | Error::InvalidName(_)
        | Error::CommitConflict { .. }
        | Error::CommitStateUnknown(_)
        | Error::TransactionExpired(_)
        | Error::TransactionClosed(_)
        | Error::VersionNotFound(_)
        | Error::VersionExpired(_)
        | Error::CorruptFile { .. }
        | Error::UnsupportedVersion(_)
        | Error::FileNotFound { .. }
        | Error::Storage { .. }
        | Error::NotALakehouse(_)
        | Error::LakehouseMoved(_) => false,
    }
}

/// Compares an existing file with the bytes that were sent under its unique name.
///
/// Equal bytes mean that an earlier attempt of this request created it. S3 also answers 409 ("exists") while it handles
/// another attempt of the same request; if there is no file, the request has to be sent again.
pub(crate) async fn check_own<S: Storage + ?Sized>(storage: &S, path: &str, bytes: &Bytes) -> Result<()> {
    match storage.get(path).await {
        Ok(found) if found == *bytes => Ok(()),
        Ok(_) => Err(Error::corrupt(path, "a file with this unique name exists and has other content")),
        Err(Error::FileNotFound { .. }) => Err(Error::Storage {
            message: format!("{path}: the store reports that the file exists, but does not find it"),
            retryable: true,
        }),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

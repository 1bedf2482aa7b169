//! Files below one root: the trait [`Storage`] and its implementations.
//!
//! Paths are relative to the root, in UTF-8 and without escapes, like object keys (format §2). Files are immutable. The
//! correctness of commits depends only on `put_if_absent`.

pub mod background_uploads;

pub mod copy;
pub mod counting;
pub mod create_readback;
mod error_mapping;
pub mod file_cache;
pub mod local;
pub mod object;
pub mod probe;
mod reachability;
pub mod response_dates;
pub mod retry;
pub mod retry_policy;
mod secrets;
mod storage_trait;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/doubles/mod.rs"]
mod testing;

use std::collections::HashMap;
use std::sync::Arc;

use trinitylake_base::error::Result;
use trinitylake_base::root_uri::{RootUri, Scheme};

pub use background_uploads::{BackgroundUploads, FileUpload};
pub use counting::{Counters, CountingStorage};
pub use file_cache::CachingStorage;
pub use local::{LocalStorage, is_unfinished};
pub use object::{ObjectStorage, options};
pub use probe::probe;
pub use retry::RetryingStorage;
pub use retry_policy::RetryPolicy;
pub use storage_trait::{
    Durability, FileEnd, FileInParts, FileInfo, Place, PutOutcome, Step, Storage, checked_range, delete_all, is_remote,
};
#[cfg(any(test, feature = "testing"))]
pub use testing::{faulty, latency, memory_files};

/// Opens the store of a root without sending a request. A missing bucket or wrong credentials are reported when the
/// first file is used.
pub fn open(
    root: &RootUri,
    storage_options: &HashMap<String, String>,
    durability: Durability,
) -> Result<Arc<dyn Storage>> {
    let settings = options::resolve(root.scheme(), storage_options)?;
    Ok(match root.scheme() {
        Scheme::File => Arc::new(LocalStorage::new(root, durability)),
        Scheme::Memory => Arc::new(ObjectStorage::memory(root)),
        Scheme::S3 | Scheme::Gcs | Scheme::Azure => Arc::new(ObjectStorage::connect(root, settings)?),
    })
}

#[cfg(test)]
mod tests;

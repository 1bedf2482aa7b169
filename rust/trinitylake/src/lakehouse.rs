//! `Lakehouse`: the handle on one lakehouse that its transactions share.
//!
//! It combines [`Publisher`] (reading versions, creating roots) and [`GroupCommit`] (transactions that commit at the
//! same time).

use std::ops::Deref;
use std::sync::Arc;

use futures::future::join;

use crate::environment::Environment;
use crate::error::Result;
use crate::key::ObjectKind;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::storage::{Storage, is_remote};
use crate::transaction::commit::group::GroupCommit;
use crate::version::Version;
use crate::version::publisher::Publisher;
use crate::version::versions::Versions;

#[derive(Debug)]
pub struct Lakehouse {
    publisher: Publisher,
    commits: GroupCommit,
}

impl Lakehouse {
    fn of(versions: Arc<Versions>) -> Arc<Lakehouse> {
        Arc::new(Lakehouse { publisher: Publisher::new(versions), commits: GroupCommit::default() })
    }

    /// Creates version 0 of a new lakehouse. `ObjectAlreadyExists` if the root already contains a lakehouse.
    pub async fn create(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        definition: LakehouseDefinition,
        cache_size_bytes: Option<u64>,
    ) -> Result<Arc<Lakehouse>> {
        Versions::create(storage, environment, definition, cache_size_bytes).await.map(Lakehouse::of)
    }

    /// Opens the latest version. `NotALakehouse` if the root contains no lakehouse.
    pub async fn open(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        cache_size_bytes: Option<u64>,
    ) -> Result<Arc<Lakehouse>> {
        Versions::open(storage, environment, cache_size_bytes).await.map(Lakehouse::of)
    }

    /// Returns the latest version, for a caller that reads one object of it next. On a remote store, this reads the
    /// object's definition in the known version into the file cache while it searches for a newer version.
    pub async fn latest_for(&self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Arc<Version>> {
        if !is_remote(self.storage().as_ref()) {
            return self.latest().await;
        }
        let known = self.known();
        // If this fails, the caller's own read reports the error.
        join(self.latest(), known.read(kind, namespace, name)).await.0
    }

    /// Whether other processes commit at this time.
    pub fn is_contended(&self) -> bool {
        self.commits.is_contended()
    }

    pub(crate) fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Group commit of this handle.
    pub(crate) fn commits(&self) -> &GroupCommit {
        &self.commits
    }
}

/// A handle on a lakehouse has all methods of its versions.
impl Deref for Lakehouse {
    type Target = Versions;

    fn deref(&self) -> &Versions {
        &self.publisher
    }
}

//! `Versions`: the state of one handle, which caches the newest version and searches for others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::damaged_latest_version::Damage;
use super::observations::Observations;
use super::version::Version;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_format::file_names::root_path;
use trinitylake_format::moved_lakehouse::Placement;
use trinitylake_storage::Storage;
use trinitylake_tree::node_store::NodeStore;

/// A statement may begin on a version that was the latest within this time.
const RECENT_MILLIS: u64 = 10_000;

#[derive(Debug)]
pub struct Versions {
    nodes: Arc<NodeStore>,
    environment: Arc<dyn Environment>,
    seen: PerProcess<Seen>,
}

/// What one process knows about the versions. A forked child starts with the state at the time when its parent opened
/// the lakehouse, because a lock of its parent may be held by a thread that the child does not have.
#[derive(Debug)]
struct Seen {
    latest: Mutex<Arc<Version>>,
    observations: Observations,
    damage: Mutex<Option<Damage>>,
}

impl Versions {
    pub(crate) fn new(
        nodes: Arc<NodeStore>,
        environment: Arc<dyn Environment>,
        latest: Version,
        damage: Option<Damage>,
    ) -> Versions {
        nodes.storage().learn_collection(latest.metadata.gc_before_millis.unwrap_or_default());
        let latest = Arc::new(latest);
        let seen = PerProcess::new(move || Seen {
            latest: Mutex::new(latest.clone()),
            observations: Observations::default(),
            damage: Mutex::new(damage.clone()),
        });
        Versions { nodes, environment, seen }
    }

    /// A handle on a version that is not the newest one, for repairs.
    pub fn standing_at(nodes: Arc<NodeStore>, environment: Arc<dyn Environment>, version: Version) -> Versions {
        Versions::new(nodes, environment, version, None)
    }

    pub fn storage(&self) -> &Arc<dyn Storage> {
        self.nodes.storage()
    }

    pub fn nodes(&self) -> &Arc<NodeStore> {
        &self.nodes
    }

    pub fn environment(&self) -> &Arc<dyn Environment> {
        &self.environment
    }

    /// Returns the current root URI of the lakehouse, and the root URI that the newest known version records.
    pub fn placement(&self) -> Placement {
        Placement::of(self.storage().root(), &self.known().definition)
    }

    fn latest_known(&self) -> MutexGuard<'_, Arc<Version>> {
        self.seen.get().latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version that this handle knows. Sends no request.
    pub fn known(&self) -> Arc<Version> {
        self.latest_known().clone()
    }

    /// Records an existing version, which becomes the newest known one if its number is higher.
    pub fn learn(&self, version: Arc<Version>) {
        let mut latest = self.latest_known();
        if version.number > latest.number {
            self.storage().learn_collection(version.metadata.gc_before_millis.unwrap_or_default());
            *latest = version;
        }
    }

    /// Removes deleted versions from the cache of nodes.
    pub fn forget(&self, versions: &[u64]) {
        versions.iter().for_each(|version| self.nodes.forget(&root_path(*version)));
    }

    pub(crate) fn observations(&self) -> &Observations {
        &self.seen.get().observations
    }

    pub(crate) fn damage(&self) -> Option<Damage> {
        self.seen.get().damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_damage(&self, damage: Option<Damage>) {
        *self.seen.get().damage.lock().unwrap_or_else(PoisonError::into_inner) = damage;
    }

    /// Returns `CorruptFile` if this handle knows that the newest version is unreadable or missing. Then nothing may be
    /// written.
    pub fn check_intact(&self) -> Result<()> {
        self.damage().map_or(Ok(()), |damage| Err(damage.error))
    }

    /// The error of [`Versions::check_intact`] if the newest versions are missing and an older one is read instead.
    pub fn loss(&self) -> Option<Error> {
        self.damage().filter(|damage| damage.is_missing).map(|damage| damage.error)
    }

    /// The newest version that this handle knows, if it was the latest one recently. A statement may begin on it,
    /// because its commit finds newer versions.
    pub fn recently_latest(&self) -> Option<Arc<Version>> {
        let known = self.known();
        let was_latest = self.observations().was_latest(known.number, RECENT_MILLIS, self.environment.as_ref());
        (was_latest && self.damage().is_none()).then_some(known)
    }
}

#[cfg(test)]
mod tests;

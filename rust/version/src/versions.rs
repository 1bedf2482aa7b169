//! The versions of one lakehouse, as one handle knows them: the newest, and any other by its number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::{join, try_join_all};

use super::boundary::boundary;
use super::discovery;
use super::metadata::RootMetadata;
use super::recent::Recent;
use super::{Version, read_definition};
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::definition::LakehouseDefinition;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::decode;
use trinitylake_format::path::{root_path, root_path_000};
use trinitylake_format::placement::Placement;
use trinitylake_storage::Storage;
use trinitylake_tree::node_store::NodeStore;

/// How long a handle may believe that what it knows has not expired. Any version may be made to expire
/// at once, so its age says nothing.
const BOUNDARY_CHECK_MILLIS: u64 = 10_000;

#[derive(Debug)]
pub struct Versions {
    nodes: Arc<NodeStore>,
    environment: Arc<dyn Environment>,
    recent: Mutex<Recent>,
    /// On the elapsed clock: when to ask again whether the newest known version has expired.
    boundary_check_at_millis: AtomicU64,
    pub(super) damage: Option<Damage>,
}

/// The newest version cannot be read. Those before it can; none is made after it, for nobody knows what it holds.
#[derive(Debug)]
pub(crate) struct Damage {
    pub newest: u64,
    pub error: Error,
}

impl Versions {
    pub(crate) fn new(
        nodes: Arc<NodeStore>,
        environment: Arc<dyn Environment>,
        latest: Version,
        damage: Option<Damage>,
    ) -> Versions {
        let check_at = environment.elapsed_millis() + BOUNDARY_CHECK_MILLIS;
        Versions {
            nodes,
            environment,
            recent: Mutex::new(Recent::starting_with(latest)),
            boundary_check_at_millis: AtomicU64::new(check_at),
            damage,
        }
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

    /// Where the lakehouse lies, and where the newest version that this handle knows says that it does.
    pub fn placement(&self) -> Placement {
        Placement::of(self.storage().root(), &self.known().definition)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version this handle knows, without asking.
    pub fn known(&self) -> Arc<Version> {
        self.recent().latest.clone()
    }

    /// Remembers a version that was seen.
    pub fn learn(&self, version: Arc<Version>) {
        self.recent().add(version);
    }

    /// Forgets versions that were deleted, so that this handle says so as well.
    pub fn forget(&self, versions: &[u64]) {
        self.recent().forget(versions);
        versions.iter().for_each(|version| self.nodes.forget(&root_path(*version)));
    }

    /// The boundary is known to have risen: asks for it at the next look.
    pub(crate) fn distrust_boundary(&self) {
        self.boundary_check_at_millis.store(0, Ordering::Relaxed);
    }

    /// `CorruptFile` if the newest version could not be read when the lakehouse was opened.
    pub fn check_intact(&self) -> Result<()> {
        self.damage.as_ref().map_or(Ok(()), |damage| Err(damage.error.clone()))
    }

    /// The latest version: one request if nothing changed.
    pub async fn latest(&self) -> Result<Arc<Version>> {
        self.check_intact()?;
        let known = self.known();
        let next = known.number + 1;
        let storage = self.storage().as_ref();
        if !storage.exists(&root_path(next)).await? {
            // Not there yet, or expired while this handle slept.
            return if self.storage_has(&known).await? { Ok(known) } else { self.rediscover().await };
        }
        self.latest_from(next).await
    }

    /// The latest version, given one that exists.
    pub(crate) async fn latest_from(&self, number: u64) -> Result<Arc<Version>> {
        let number = discovery::last_existing(self.storage().as_ref(), number).await?;
        match self.version(number).await {
            // Whoever made it expire had seen a later one.
            Err(Error::VersionExpired(_)) => self.rediscover().await,
            Err(error) => Err(error),
            Ok(version) => {
                self.learn(version.clone());
                Ok(version)
            }
        }
    }

    /// The latest version, as one finds it who knows nothing.
    pub(crate) async fn rediscover(&self) -> Result<Arc<Version>> {
        let (number, root) = discovery::latest(self.storage().as_ref(), self.environment.as_ref()).await?;
        let version = Arc::new(version_of(&self.nodes, number, root, Some(&self.known())).await?);
        self.learn(version.clone());
        Ok(version)
    }

    /// Could everything this handle knows have expired? Worth a request once in a while.
    async fn storage_has(&self, known: &Version) -> Result<bool> {
        let now = self.environment.elapsed_millis();
        if now < self.boundary_check_at_millis.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let is_there = known.number >= boundary(self.storage().as_ref()).await?;
        if is_there {
            self.boundary_check_at_millis.store(now + BOUNDARY_CHECK_MILLIS, Ordering::Relaxed);
        }
        Ok(is_there)
    }

    /// A version by number. `VersionNotFound` if it is in the future, `VersionExpired` if it is gone.
    pub async fn version(&self, number: u64) -> Result<Arc<Version>> {
        if let Some(version) = self.recent().find(number) {
            return Ok(version);
        }
        let (version, oldest) = self.with_boundary(self.load_version(number)).await?;
        // A root below the boundary may be one that came too late, and counts for nothing.
        if number < oldest { Err(expired(number, oldest)) } else { version }
    }

    pub(crate) async fn load_version(&self, number: u64) -> Result<Arc<Version>> {
        if let Some(version) = self.recent().find(number) {
            return Ok(version);
        }
        let known = self.known();
        let root = match self.root_of(number).await? {
            Some(root) => root,
            None => {
                let missing = self.why_missing(number).await?;
                // It may have been created since it was looked for, and before the latest version was.
                self.root_of(number).await?.ok_or(missing)?
            }
        };
        version_of_node(&self.nodes, number, root, Some(&known)).await.map(Arc::new)
    }

    /// The root node of a version, if its file is there.
    async fn root_of(&self, number: u64) -> Result<Option<Arc<Node>>> {
        for path in [root_path(number), root_path_000(number)] {
            match self.nodes.load(&path, None).await {
                Err(Error::FileNotFound { .. }) => {}
                root => return root.map(Some),
            }
        }
        Ok(None)
    }

    /// An answer, and the boundary as it is after it. Asked for at the same time, which is as good as long as
    /// both are quick.
    pub(crate) async fn with_boundary<T>(&self, answer: impl Future<Output = T>) -> Result<(T, u64)> {
        let storage = self.storage().as_ref();
        let started = self.environment.elapsed_millis();
        let (answer, oldest) = join(answer, boundary(storage)).await;
        let was_quick = self.environment.elapsed_millis() - started < discovery::QUICK_LOOK_MILLIS;
        Ok((answer, if was_quick { oldest? } else { boundary(storage).await? }))
    }

    async fn why_missing(&self, number: u64) -> Result<Error> {
        let oldest = boundary(self.storage().as_ref()).await?;
        if number < oldest {
            return Ok(expired(number, oldest));
        }
        let (latest, _) = discovery::latest(self.storage().as_ref(), self.environment.as_ref()).await?;
        Ok(if number > latest {
            Error::VersionNotFound(format!("there is no version {number}; the latest is {latest}"))
        } else {
            Error::corrupt(root_path(number), format!("the root node file of version {number} is missing"))
        })
    }

    /// The oldest version that has not expired.
    pub async fn oldest_version(&self) -> Result<u64> {
        boundary(self.storage().as_ref()).await
    }

    /// Versions `from..=to`, read in parallel.
    pub async fn versions(&self, from: u64, to: u64) -> Result<Vec<Arc<Version>>> {
        let remembered: Option<Vec<_>> = {
            let recent = self.recent();
            (from..=to).map(|number| recent.find(number)).collect()
        };
        if let Some(versions) = remembered {
            return Ok(versions);
        }
        let loads = try_join_all((from..=to).map(|number| self.load_version(number)));
        let (versions, oldest) = self.with_boundary(loads).await?;
        if from < oldest { Err(expired(from, oldest)) } else { versions }
    }

    /// Versions `from..=tip.number` at most, ascending, for one look: they are not kept in any cache.
    pub async fn glance(&self, from: u64, to: u64, tip: &Arc<Version>) -> Result<Vec<Arc<Version>>> {
        let known = self.known();
        let read = async |number: u64| {
            if number == tip.number {
                return Ok(tip.clone());
            }
            if let Some(version) = self.recent().find(number) {
                return Ok(version);
            }
            let root = match discovery::root(self.storage().as_ref(), number).await {
                Err(Error::FileNotFound { .. }) => return Err(self.why_missing(number).await?),
                root => root?,
            };
            version_of(&self.nodes, number, root, Some(&known)).await.map(Arc::new)
        };
        let remembered = |number: u64| number == tip.number || self.recent().find(number).is_some();
        let is_remembered = (from..=to).all(remembered);
        let reads = try_join_all((from..=to).map(read));
        if is_remembered {
            return reads.await;
        }
        let (versions, oldest) = self.with_boundary(reads).await?;
        if from < oldest {
            return Err(expired(from, oldest));
        }
        versions
    }
}

fn expired(number: u64, oldest: u64) -> Error {
    Error::VersionExpired(format!("version {number} has expired; the oldest kept is {oldest}"))
}

pub(crate) async fn version_of(
    nodes: &Arc<NodeStore>,
    number: u64,
    bytes: Bytes,
    known: Option<&Version>,
) -> Result<Version> {
    let root = Arc::new(decode(bytes, &root_path(number), None)?);
    root.index_buffer();
    version_of_node(nodes, number, root, known).await
}

async fn version_of_node(
    nodes: &Arc<NodeStore>,
    number: u64,
    root: Arc<Node>,
    known: Option<&Version>,
) -> Result<Version> {
    let metadata = RootMetadata::of(&root, number, &root_path(number))?;
    let path = &metadata.lakehouse_definition;
    let definition = match known {
        Some(known) if known.metadata.lakehouse_definition == *path => known.definition.clone(),
        _ => {
            let bytes = match &metadata.inline_definition {
                Some(bytes) => Bytes::from(bytes.clone()),
                None => read_definition(nodes, path).await?,
            };
            Arc::new(LakehouseDefinition::decode(bytes, path)?)
        }
    };
    Version::new(number, root, metadata, definition, nodes.clone())
}

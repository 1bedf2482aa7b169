//! A handle on one lakehouse: creates and opens it, knows the latest version it has seen, and caches.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::{join, join_all, try_join_all};

use crate::claim::{Claim, claim};
use crate::config::TreeConfig;
use crate::definition::LakehouseDefinition;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::node::codec::{decode, encode};
use crate::node::draft::Draft;
use crate::path::{lakehouse_definition_path, root_path, root_path_000};
use crate::placement::Placement;
use crate::storage::probe::probe;
use crate::storage::{RetryingStorage, Storage};
use crate::transaction::group_commit::CommitQueue;
use crate::transaction::{Transaction, TransactionOptions};
use crate::tree::node_store::{CACHE_SIZE_BYTES, NodeStore};
use crate::version::boundary::boundary;
use crate::version::discovery;
use crate::version::hint::HintWriter;
use crate::version::metadata::{LastRollback, RootMetadata};
use crate::version::{Version, read_definition};
pub(crate) use publish::{Created, Slot};

mod publish;
mod rollback;
pub mod time_travel;

/// How long a commit whose outcome is in doubt asks before it gives up.
pub const DOUBT_MILLIS: u64 = 30_000;
/// How long a handle may believe that what it knows has not expired. Any version may be made to expire
/// at once, so its age says nothing.
const BOUNDARY_CHECK_MILLIS: u64 = 10_000;
/// Versions kept beside the latest. Each holds its root, some hundred KiB at most.
const RECENT_VERSIONS: usize = 32;
/// Roots that `log` reads at once.
const LOG_BATCH: u64 = 32;

#[derive(Debug)]
pub struct Lakehouse {
    nodes: Arc<NodeStore>,
    environment: Arc<dyn Environment>,
    recent: Mutex<Recent>,
    commits: CommitQueue,
    hint: Arc<HintWriter>,
    /// On the elapsed clock: when to ask again whether the newest known version has expired.
    boundary_check_at_millis: AtomicU64,
    damage: Option<Damage>,
}

/// The newest version cannot be read. Those before it can; none is made after it, for nobody knows what it holds.
#[derive(Debug)]
struct Damage {
    newest: u64,
    error: Error,
}

/// A version as the log shows it: one that cannot be read is a gap, not the end.
#[derive(Clone, Debug)]
pub struct Past {
    pub number: u64,
    pub version: Result<Arc<Version>>,
}

impl Lakehouse {
    fn of(nodes: Arc<NodeStore>, environment: Arc<dyn Environment>, latest: Version) -> Arc<Lakehouse> {
        Arc::new(Lakehouse::new(nodes, environment, latest))
    }

    fn new(nodes: Arc<NodeStore>, environment: Arc<dyn Environment>, latest: Version) -> Lakehouse {
        let check_at = environment.elapsed_millis() + BOUNDARY_CHECK_MILLIS;
        Lakehouse {
            nodes,
            environment,
            recent: Mutex::new(Recent::starting_with(latest)),
            commits: CommitQueue::default(),
            hint: Arc::default(),
            boundary_check_at_millis: AtomicU64::new(check_at),
            damage: None,
        }
    }

    /// Creates version 0 of a new lakehouse. `ObjectAlreadyExists` if there is one.
    pub async fn create(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        definition: LakehouseDefinition,
        cache_size_bytes: Option<u64>,
    ) -> Result<Arc<Lakehouse>> {
        let storage = with_retries(storage, &environment);
        let definition = definition.placed_at(storage.root(), &[])?;
        let config = TreeConfig::of(&definition)?;
        let exists = || Error::ObjectAlreadyExists("a lakehouse exists here already".into());
        let root_file = root_path(0);
        // Any root, for one that lost its first versions is a lakehouse still.
        let (roots, oldest) = join(discovery::list_roots(storage.as_ref()), boundary(storage.as_ref())).await;
        if !roots?.is_empty() || oldest? > 0 {
            return Err(exists());
        }
        probe(storage.as_ref(), &environment.uuid().to_string()).await?;
        let definition_path = lakehouse_definition_path(environment.uuid());
        storage.put_unique(&definition_path, definition.bytes().clone()).await?;
        let metadata = RootMetadata {
            version: 0,
            commit_id: environment.uuid().to_string(),
            created_at_millis: environment.now_millis(),
            lakehouse_definition: definition_path.clone(),
            inline_definition: Some(definition.bytes().to_vec()),
            last_rollback: LastRollback::Never,
            ..RootMetadata::default()
        };
        let encoded = encode(&metadata.system_rows()?, &Draft::default(), config.order, config.compression)?;
        let deadline = environment.elapsed_millis() + DOUBT_MILLIS;
        let claim = claim(storage.as_ref(), environment.as_ref(), &root_file, encoded.bytes, deadline).await;
        if let Claim::Refused(error) | Claim::Unknown(error) = claim {
            return Err(error);
        }
        // Below the boundary a root is no verdict: the true one, perhaps this one, may have expired.
        let unknown = |why: String| {
            Err(Error::CommitStateUnknown(format!(
                "whether the lakehouse was created here or by another cannot be told: {why}; nothing was deleted"
            )))
        };
        match boundary(storage.as_ref()).await {
            Ok(0) => {}
            Ok(oldest) => return unknown(format!("versions below {oldest} have expired meanwhile")),
            Err(error) => return unknown(error.to_string()),
        }
        if let Claim::Lost(_) = claim {
            storage.delete(&definition_path).await?;
            return Err(exists());
        }
        discovery::write_hint(storage.as_ref(), 0).await;
        let nodes = Arc::new(NodeStore::new(storage, cache_size_bytes.unwrap_or(CACHE_SIZE_BYTES)));
        let version = Version::new(0, Arc::new(encoded.node), metadata, Arc::new(definition), nodes.clone())?;
        Ok(Lakehouse::of(nodes, environment, version))
    }

    /// Opens the latest version. `NotALakehouse` if there is none.
    pub async fn open(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        cache_size_bytes: Option<u64>,
    ) -> Result<Arc<Lakehouse>> {
        let storage = with_retries(storage, &environment);
        let (number, bytes) = discovery::latest(storage.as_ref(), environment.as_ref()).await?;
        let nodes = Arc::new(NodeStore::new(storage, cache_size_bytes.unwrap_or(CACHE_SIZE_BYTES)));
        match version_of(&nodes, number, bytes, None).await {
            Ok(version) => Ok(Lakehouse::of(nodes, environment, version)),
            Err(Error::CorruptFile { path, message }) => {
                let Some(version) = newest_intact(&nodes, number).await? else {
                    return Err(Error::CorruptFile { path, message });
                };
                let damage = Damage {
                    newest: number,
                    error: Error::corrupt(
                        path,
                        format!(
                            "{message}; this is the newest version, {number}: restore the file from a copy. Until then \
                             versions up to {} can be read by their number, and nothing is written",
                            version.number
                        ),
                    ),
                };
                Ok(Arc::new(Lakehouse {
                    damage: Some(damage),
                    ..Lakehouse::new(nodes, environment, version)
                }))
            }
            Err(error) => Err(error),
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

    /// Where the transactions of this handle meet.
    pub(crate) fn commits(&self) -> &CommitQueue {
        &self.commits
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version this handle knows, without asking.
    pub fn known(&self) -> Arc<Version> {
        self.recent().latest.clone()
    }

    /// Remembers a version that was seen.
    pub(crate) fn learn(&self, version: Arc<Version>) {
        self.recent().add(version);
    }

    /// Forgets versions that were deleted, so that this handle says so as well.
    pub(crate) fn forget(&self, versions: &[u64]) {
        self.recent().older.retain(|version| !versions.contains(&version.number));
        versions.iter().for_each(|version| self.nodes.forget(&root_path(*version)));
    }

    /// `CorruptFile` if the newest version could not be read when the lakehouse was opened.
    pub(crate) fn check_intact(&self) -> Result<()> {
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
    async fn latest_from(&self, number: u64) -> Result<Arc<Version>> {
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
    async fn rediscover(&self) -> Result<Arc<Version>> {
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

    async fn load_version(&self, number: u64) -> Result<Arc<Version>> {
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
    async fn with_boundary<T>(&self, answer: impl Future<Output = T>) -> Result<(T, u64)> {
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
    pub(crate) async fn glance(&self, from: u64, to: u64, tip: &Arc<Version>) -> Result<Vec<Arc<Version>>> {
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

    /// Newest first: the version before `before` (or the latest) and those below it, `limit` of them. `CorruptFile`
    /// if one of them cannot be read.
    pub async fn log(&self, limit: Option<usize>, before: Option<u64>) -> Result<Vec<Arc<Version>>> {
        self.history(limit, before).await?.into_iter().map(|past| past.version).collect()
    }

    /// [`Lakehouse::log`], which shows what cannot be read as a gap.
    pub async fn history(&self, limit: Option<usize>, before: Option<u64>) -> Result<Vec<Past>> {
        let newest = match &self.damage {
            Some(damage) => damage.newest,
            None => self.latest().await?.number,
        };
        let mut next = before.map_or(newest + 1, |before| before.min(newest + 1));
        let mut oldest = self.oldest_version().await?;
        let mut past: Vec<Past> = Vec::new();
        let limit = limit.unwrap_or(usize::MAX);
        while next > oldest && past.len() < limit {
            let wanted = LOG_BATCH.min((limit - past.len()) as u64).min(next - oldest);
            let loads = join_all((next - wanted..next).rev().map(|number| self.load_version(number)));
            let (batch, boundary) = self.with_boundary(loads).await?;
            // Some may expire while one looks: then nothing older is left either.
            oldest = boundary;
            for (number, version) in (next - wanted..next).rev().zip(batch) {
                match version {
                    _ if number < oldest => {}
                    Ok(_) | Err(Error::CorruptFile { .. }) => past.push(Past { number, version }),
                    Err(error) => return Err(error),
                }
            }
            next -= wanted;
        }
        Ok(past)
    }

    pub fn begin(self: &Arc<Self>, base: Arc<Version>, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self.clone(), base, options)
    }
}

fn with_retries(storage: Arc<dyn Storage>, environment: &Arc<dyn Environment>) -> Arc<dyn Storage> {
    Arc::new(RetryingStorage::new(storage, environment.clone()))
}

fn expired(number: u64, oldest: u64) -> Error {
    Error::VersionExpired(format!("version {number} has expired; the oldest kept is {oldest}"))
}

/// The versions this handle has seen last: those that commits are validated against.
#[derive(Debug)]
struct Recent {
    latest: Arc<Version>,
    /// Ascending, `latest` not among them.
    older: VecDeque<Arc<Version>>,
}

impl Recent {
    fn starting_with(version: Version) -> Recent {
        Recent { latest: Arc::new(version), older: VecDeque::new() }
    }

    fn find(&self, number: u64) -> Option<Arc<Version>> {
        if self.latest.number == number {
            return Some(self.latest.clone());
        }
        let position = self.older.binary_search_by_key(&number, |version| version.number).ok()?;
        Some(self.older[position].clone())
    }

    fn add(&mut self, version: Arc<Version>) {
        if version.number > self.latest.number {
            self.older.push_back(std::mem::replace(&mut self.latest, version));
        } else if version.number < self.latest.number {
            match self.older.binary_search_by_key(&version.number, |older| older.number) {
                Ok(_) => {}
                Err(position) => self.older.insert(position, version),
            }
        }
        while self.older.len() > RECENT_VERSIONS {
            self.older.pop_front();
        }
    }
}

/// The newest version below `number` that can be read.
async fn newest_intact(nodes: &Arc<NodeStore>, number: u64) -> Result<Option<Version>> {
    let oldest = boundary(nodes.storage().as_ref()).await?;
    for number in (oldest..number).rev() {
        let root = match nodes.storage().get(&root_path(number)).await {
            Err(Error::FileNotFound { .. }) => nodes.storage().get(&root_path_000(number)).await,
            root => root,
        };
        let version = match root {
            Ok(root) => version_of(nodes, number, root, None).await,
            Err(error) => Err(error),
        };
        match version {
            Ok(version) => return Ok(Some(version)),
            Err(Error::CorruptFile { .. } | Error::FileNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

async fn version_of(
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

#[cfg(test)]
mod tests;

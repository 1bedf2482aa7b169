//! The versions of one lakehouse, as one handle knows them: the newest, and any other by its number.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::{join, join3, try_join_all};

use super::boundary::boundary;
use super::definitions::lakehouse_definition;
use super::discovery::{self, read_hint};
use super::observations::{Observation, Observations, Trust};
use super::recent::Recent;
use super::retention::{check_retained_by, expired};
use super::root_metadata::RootMetadata;
use super::{Version, wait_before_deleting};
use trinitylake_base::environment::{Environment, Moment};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_format::moved_lakehouse::Placement;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::decode;
use trinitylake_format::path::{LATEST_HINT_PATH, root_path, root_path_000, root_version};
use trinitylake_storage::store_clock::{StoreMoment, dated, dated_last};
use trinitylake_storage::{FileInfo, Storage};
use trinitylake_tree::node_store::NodeStore;

/// A hint that is so far ahead of what is known is asked for, instead of what lies in between.
const FAR_AHEAD: u64 = 32;
/// Newer versions are few.
const LATELY_MILLIS: u64 = 10_000;

#[derive(Debug)]
pub struct Versions {
    nodes: Arc<NodeStore>,
    environment: Arc<dyn Environment>,
    seen: PerProcess<Seen>,
}

/// What one process has seen of the versions. A child knows what its parent knew when it opened the lakehouse, and finds
/// the rest itself: a lock of its parent may be held by a thread that the child does not have.
#[derive(Debug)]
struct Seen {
    recent: Mutex<Recent>,
    observations: Observations,
    damage: Mutex<Option<Damage>>,
}

/// State of the name of the next root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextSlot {
    Free,
    Taken,
    /// Free, since versions have expired up to there: a root in it would be void.
    Expired,
}

/// The newest version is damaged or lost. Those before it can be read; none is made after it, for nobody knows what it
/// holds.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// The highest version that is known to have been made.
    pub newest: u64,
    /// Its root does not exist. Readers then use the newest existing one.
    pub is_missing: bool,
    pub error: Error,
}

impl Damage {
    pub fn unreadable(newest: u64, path: String, message: &str, intact: u64) -> Damage {
        let message = format!(
            "{message}; this is the root of the newest version, {newest}: restore the file from a copy, or run fsck with \
             `repair`, which continues from version {intact}. Until then versions up to {intact} can be read by their \
             number, and nothing is written"
        );
        Damage { newest, is_missing: false, error: Error::corrupt(path, message) }
    }

    pub fn missing(newest: u64, intact: u64) -> Damage {
        let message = format!(
            "{LATEST_HINT_PATH} names version {newest}, whose root is missing. Version {intact}, the newest existing one, \
             is read, and nothing is written, since a number must not be used twice: restore the roots of versions {} to \
             {newest} from a copy, or run fsck with `repair`, which continues from version {intact}. If the hint is \
             wrong, stop all writers and delete {LATEST_HINT_PATH}",
            intact + 1
        );
        Damage { newest, is_missing: true, error: Error::corrupt(root_path(newest), message) }
    }
}

impl Versions {
    pub(crate) fn new(
        nodes: Arc<NodeStore>,
        environment: Arc<dyn Environment>,
        latest: Version,
        damage: Option<Damage>,
    ) -> Versions {
        let latest = Arc::new(latest);
        let seen = PerProcess::new(move || Seen {
            recent: Mutex::new(Recent::starting_with(latest.clone())),
            observations: Observations::default(),
            damage: Mutex::new(damage.clone()),
        });
        Versions { nodes, environment, seen }
    }

    /// A handle on a version that nothing was asked about: for repairs, where what is newer cannot be read.
    pub fn standing_at(
        nodes: Arc<NodeStore>,
        environment: Arc<dyn Environment>,
        version: Version,
    ) -> Versions {
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

    /// Actual root of the lakehouse, and the recorded one in the newest known version.
    pub fn placement(&self) -> Placement {
        Placement::of(self.storage().root(), &self.known().definition)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.seen.get().recent.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn damage(&self) -> Option<Damage> {
        self.seen.get().damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_damage(&self, damage: Option<Damage>) {
        *self.seen.get().damage.lock().unwrap_or_else(PoisonError::into_inner) = damage;
    }

    /// `CorruptFile` if the newest version could not be read when the lakehouse was opened, or is missing as far as
    /// this handle knows: then nothing may be written.
    pub fn check_intact(&self) -> Result<()> {
        self.damage().map_or(Ok(()), |damage| Err(damage.error))
    }

    /// As [`Versions::check_intact`] says it, if versions are missing and reading goes on below them.
    pub fn loss(&self) -> Option<Error> {
        self.damage().filter(|damage| damage.is_missing).map(|damage| damage.error)
    }

    /// The newest version that this handle knows, if that was the latest a moment ago: a statement may begin on it whose
    /// commit finds out whether there is a newer one.
    pub fn lately(&self) -> Option<Arc<Version>> {
        let known = self.known();
        let was_latest =
            self.observations().was_latest(known.number, LATELY_MILLIS, self.environment.as_ref());
        (was_latest && self.damage().is_none()).then_some(known)
    }

    /// The latest version: one round of requests if it is the one that is known, or the next. They are two, and once
    /// in a while four.
    pub async fn latest(&self) -> Result<Arc<Version>> {
        match self.damage() {
            Some(damage) if damage.is_missing => return self.rediscover().await,
            Some(damage) => return Err(damage.error),
            None => {}
        }
        let known = self.known();
        let (next, after) = (known.number + 1, known.number + 2);
        let storage = self.storage().as_ref();
        let (next_file, file_after) = (root_path(next), root_path(after));
        let environment = self.environment.as_ref();
        let asked = Moment::now(environment);
        let look_at_boundary = async {
            let is_untouched = self.observations().is_slot_untouched(next, None, environment) > Trust::None;
            match is_untouched || self.observations().boundary(None, environment).is_some() {
                true => Ok::<_, Error>(()),
                false => self.ask_boundary().await.map(drop),
            }
        };
        let look = async {
            let (hint, boundary) = join(self.read_hint_now_and_then(), look_at_boundary).await;
            boundary.map(|()| hint)
        };
        let ((root, answered), (is_another, other_answered), hint) =
            join3(dated(self.nodes.load(&next_file, None)), dated(storage.exists(&file_after)), look).await;
        self.observations().heard(other_answered.or(answered));
        let (hint, is_another) = (hint?, is_another?);
        // Nothing that is known has expired; or else it slept through all there was. What is not there may be gone, and
        // what is there may have come too late: a machine may have stood still between two answers, so each counts.
        let mut trust = self.trust_in(known.number, answered).await?;
        if root.is_ok() {
            trust = trust.min(self.trust_in(known.number, other_answered).await?);
        }
        if trust == Trust::None {
            return self.rediscover().await;
        }
        // Which answer says that nothing comes after it.
        let answered = if root.is_ok() { other_answered } else { answered };
        let observation = Observation { asked, answered: answered.filter(|_| trust == Trust::Certain) };
        let latest = match root {
            Ok(root) => {
                if !is_another {
                    self.observations().saw_none_above(next, observation);
                }
                let version = Arc::new(version_of_node(&self.nodes, next, root, Some(&known)).await?);
                self.learn(version.clone());
                version
            }
            Err(Error::FileNotFound { .. }) => {
                self.observations().saw_none_above(known.number, observation);
                known
            }
            // A repair went on after a root that is damaged.
            Err(Error::CorruptFile { .. }) if is_another => known,
            Err(error) => return Err(error),
        };
        let latest =
            if is_another { self.latest_from(self.start(after, hint).await?).await? } else { latest };
        // The hint may have come after the look for its root. If not, roots are missing.
        if hint.is_some_and(|hint| hint > latest.number) { self.rediscover().await } else { Ok(latest) }
    }

    /// Where to begin to look for the latest version, given one that exists: at the hint, if that is far ahead.
    async fn start(&self, number: u64, hint: Option<u64>) -> Result<u64> {
        Ok(match hint {
            Some(hint) if hint > number + FAR_AHEAD && self.storage().exists(&root_path(hint)).await? => hint,
            _ => number,
        })
    }

    /// What the clock of the store showed when it answered a look for the latest version last, if it says so. It is later
    /// by now.
    pub fn last_heard(&self) -> Option<StoreMoment> {
        self.observations().last_heard()
    }

    pub(crate) fn observations(&self) -> &Observations {
        &self.seen.get().observations
    }

    /// The hint, once in a while: it tells if newer roots were lost, or that one is far behind.
    async fn read_hint_now_and_then(&self) -> Option<u64> {
        match self.observations().reads_hint(self.environment.as_ref()) {
            true => read_hint(self.storage().as_ref()).await,
            false => None,
        }
    }

    async fn ask_boundary(&self) -> Result<u64> {
        let asked = Moment::now(self.environment.as_ref());
        let (oldest, answered) = dated(boundary(self.storage().as_ref())).await;
        let oldest = oldest?;
        self.observations().saw_boundary(oldest, Observation { asked, answered });
        Ok(oldest)
    }

    /// Is version `number` not below the boundary? Only then does it say something that there is none after it, as the
    /// store answered at that moment: that one may have been made and deleted again (format §7). To be asked when the
    /// answer is there; it sends a request if too much time has passed since the last one. `Trust::None` if it is below.
    async fn trust_in(&self, number: u64, answered: Option<StoreMoment>) -> Result<Trust> {
        let environment = self.environment.as_ref();
        let untouched = self.observations().is_slot_untouched(number + 1, answered, environment);
        let (oldest, trust) = match self.observations().boundary(answered, environment) {
            Some(seen) => seen,
            None if untouched > Trust::None => return Ok(untouched),
            // It is asked for after that answer came.
            None => (self.ask_boundary().await?, Trust::Certain),
        };
        Ok(if oldest > number { Trust::None } else { trust.max(untouched) })
    }

    /// What is in the slot after this version, the latest that is known? Asks nothing if that was seen a moment ago. Then
    /// [`Observations::is_slot_untouched`] goes by it when the root is there.
    pub async fn next_slot(&self, number: u64) -> Result<NextSlot> {
        let (environment, next) = (self.environment.as_ref(), root_path(number + 1));
        if self.observations().is_slot_untouched(number + 1, None, environment) > Trust::None {
            return Ok(NextSlot::Free);
        }
        let asked = Moment::now(environment);
        let ((exists, answered), oldest, hint) =
            join3(dated(self.storage().exists(&next)), self.ask_boundary(), self.read_hint_now_and_then())
                .await;
        oldest?;
        // A hint that is ahead tells of roots that came just now, or were lost: a look for the latest version tells which.
        let exists = exists? || hint.is_some_and(|hint| hint > number);
        let trust = self.trust_in(number, answered).await?;
        if trust == Trust::None {
            return Ok(NextSlot::Expired);
        }
        if exists {
            return Ok(NextSlot::Taken);
        }
        let answered = answered.filter(|_| trust == Trust::Certain);
        self.observations().saw_none_above(number, Observation { asked, answered });
        Ok(NextSlot::Free)
    }

    /// The boundary is known to have risen: asks for it at the next look.
    pub(crate) fn distrust_boundary(&self) {
        self.observations().forget();
    }

    /// The latest version, given one that exists.
    pub(crate) async fn latest_from(&self, number: u64) -> Result<Arc<Version>> {
        let number = discovery::last_existing(self.storage().as_ref(), number).await?;
        // Also where it is remembered: those after it may have expired while they were looked for.
        let (version, oldest) = self.with_boundary(self.load_version(number)).await?;
        match version {
            // The process that expired it had seen a later one.
            Err(Error::VersionExpired(_)) => self.rediscover().await,
            _ if number < oldest => self.rediscover().await,
            Err(error) => Err(error),
            Ok(version) => {
                self.learn(version.clone());
                Ok(version)
            }
        }
    }

    /// The latest version, as one finds it who knows nothing.
    pub async fn rediscover(&self) -> Result<Arc<Version>> {
        let look = discovery::latest(self.storage().as_ref(), self.environment.as_ref());
        let (found, answered) = dated_last(look).await;
        self.observations().heard(answered);
        let found = found?;
        let version = version_of(&self.nodes, found.version, found.root, Some(&self.known())).await?;
        let version = Arc::new(version);
        self.set_damage(found.missing.map(|named| Damage::missing(named, found.version)));
        self.learn(version.clone());
        Ok(version)
    }

    /// A version by number. `VersionNotFound` if it is in the future, `VersionExpired` if it is gone.
    pub async fn version(&self, number: u64) -> Result<Arc<Version>> {
        if let Some(version) = self.recent().find(number) {
            return Ok(version);
        }
        let (version, oldest) = self.with_boundary(self.load_version(number)).await?;
        // A root below the boundary may be one that came too late, and counts for nothing; one that has a name was kept.
        if number < oldest {
            check_retained_by(&self.latest().await?.definition, oldest, number)?;
        }
        version
    }

    /// `VersionExpired` if a version is not kept any more, whatever this handle remembers of it: neither by the boundary,
    /// which is asked for, nor by a name in `latest`.
    pub async fn check_retained(&self, number: u64, latest: &Version) -> Result<()> {
        check_retained_by(&latest.definition, boundary(self.storage().as_ref()).await?, number)
    }

    /// The version that a name stands for in the latest one, which may lie below the boundary. `ObjectNotFound` if
    /// there is no such name.
    pub async fn snapshot(&self, name: &str) -> Result<Arc<Version>> {
        let latest = self.latest().await?;
        let Some(root) = latest.definition.exported_snapshots().get(name) else {
            return Err(Error::ObjectNotFound(format!("there is no snapshot {name:?}")));
        };
        match root_version(root) {
            Some(number) => self.load_version(number).await,
            None => Err(Error::InvalidArgument(format!(
                "snapshot {name:?} lies elsewhere: {root} is no root of this lakehouse"
            ))),
        }
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
        let started = Moment::now(self.environment.as_ref());
        let (answer, oldest) = join(answer, boundary(storage)).await;
        let was_quick = started.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, self.environment.as_ref());
        Ok((answer, if was_quick { oldest? } else { boundary(storage).await? }))
    }

    async fn why_missing(&self, number: u64) -> Result<Error> {
        let oldest = boundary(self.storage().as_ref()).await?;
        if number < oldest {
            return Ok(expired(number, oldest));
        }
        let found = discovery::latest(self.storage().as_ref(), self.environment.as_ref()).await?;
        Ok(match found.missing {
            _ if number <= found.version => Error::corrupt(
                root_path(number),
                format!("the root node file of version {number} is missing"),
            ),
            Some(named) if number <= named => Damage::missing(named, found.version).error,
            _ => {
                let latest = found.version;
                Error::VersionNotFound(format!("there is no version {number}; the latest is {latest}"))
            }
        })
    }

    /// The file of a version's root, as the store knows it. Errors as of [`Versions::version`].
    pub async fn root_file(&self, number: u64) -> Result<FileInfo> {
        for path in [root_path(number), root_path_000(number)] {
            match self.storage().head(&path).await {
                Err(Error::FileNotFound { .. }) => {}
                file => return file,
            }
        }
        Err(self.why_missing(number).await?)
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
    let known = known.map(|known| (known.metadata.lakehouse_definition.as_str(), &known.definition));
    let definition = lakehouse_definition(nodes, &metadata, known).await?;
    Version::new(number, root, metadata, definition, nodes.clone())
}

#[cfg(test)]
mod tests;

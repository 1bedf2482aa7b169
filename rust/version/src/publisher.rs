//! Publishing a root: creates the file of the next version, determines which writer created it, checks that its version
//! had not expired (format §§7 and 8), and updates the hint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join;

use super::expiry_boundary::published;
use super::hint::HintWriter;
use super::observations::{Observation, Trust};
use super::root_metadata::{CommittedTransaction, RootMetadata};
use super::store_clock::FILE_TIME_PRECISION_MILLIS;
use super::version::Version;
use super::version_lookup::version_of;
use super::versions::Versions;
use trinitylake_base::environment::Moment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::config::TreeConfig;
use trinitylake_format::file_names::root_path;
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_format::moved_lakehouse::Placement;
use trinitylake_format::node::codec::{Encoded, decode, encode};
use trinitylake_format::node::mutable_node::{MutableNode, Text, node_system_rows};
use trinitylake_storage::create_readback::{Claim, claim as claim_file};
use trinitylake_storage::response_dates::dated;

/// Time limit for determining an unknown outcome.
pub const DOUBT_MILLIS: u64 = 30_000;

/// Result of the race for a root.
pub enum Race {
    Won(Created),
    /// Another writer published a version. This is the latest version.
    Lost(Arc<Version>),
}

/// Outcome of a root that this process created below the boundary.
enum Expired {
    /// The transactions of the root are committed, in this version.
    Committed(Arc<Version>),
    /// The version had expired before its root was created.
    Void,
    Unclear,
}

/// A root that can be created once all files that it references are durable.
pub struct Prepared {
    version: Arc<Version>,
    bytes: Bytes,
}

/// A root that this process created.
#[derive(Clone)]
pub struct Created {
    pub version: Arc<Version>,
    /// See [`Claim::Won`].
    sent_once: bool,
    /// Observation that no version with this number or a higher one existed before the request for the root.
    none_above: Observation,
    /// Whether the name of the root had certainly never been used when the root was created (format §7).
    was_in_time: bool,
}

/// Failure to publish a root.
#[derive(Debug)]
pub enum Unpublished {
    /// No request for the root was sent.
    NotSent(Error),
    /// The store refused the root (`create_readback::is_refusal`).
    Refused(Error),
    /// Another writer created the root with this name; reading it failed with this error.
    NameTaken(Error),
    /// The version had expired before its root was created, so no reader uses it.
    Void(Error),
    /// The root may have been published, or may still be published.
    InDoubt { error: Error, version: u64 },
}

impl Unpublished {
    pub fn into_error(self) -> Error {
        match self {
            Unpublished::NotSent(error)
            | Unpublished::Refused(error)
            | Unpublished::NameTaken(error)
            | Unpublished::Void(error)
            | Unpublished::InDoubt { error, .. } => error,
        }
    }
}

impl From<Error> for Unpublished {
    fn from(error: Error) -> Unpublished {
        Unpublished::NotSent(error)
    }
}

/// Publishes roots of one handle.
#[derive(Debug)]
pub struct Publisher {
    versions: Arc<Versions>,
    hint: Arc<HintWriter>,
}

/// A publisher has all methods of its versions.
impl Deref for Publisher {
    type Target = Versions;

    fn deref(&self) -> &Versions {
        &self.versions
    }
}

impl Publisher {
    pub fn new(versions: Arc<Versions>) -> Publisher {
        Publisher { versions, hint: Arc::default() }
    }

    /// Metadata of the root after `previous`.
    pub fn next_metadata(&self, previous: &Version, committed: Vec<CommittedTransaction>) -> RootMetadata {
        RootMetadata {
            version: previous.number + 1,
            commit_id: self.versions.environment().uuid().to_string(),
            // Creation times ascend with versions, even if the clock of this machine shows an earlier time.
            created_at_millis: self.versions.environment().now_millis().max(previous.metadata.created_at_millis + 1),
            lakehouse_definition: previous.metadata.lakehouse_definition.clone(),
            inline_definition: Some(previous.definition.encode_file(&previous.metadata.lakehouse_definition)),
            inline_definitions: previous.unwritten_definitions(),
            copied_definitions: BTreeMap::new(),
            previous_root: Some(previous.root_path.clone()),
            rollback_from_root: None,
            last_rollback: previous.metadata.last_rollback_for_next(),
            committed,
            gc_before_millis: previous.metadata.gc_before_millis,
        }
    }

    /// Encodes new nodes below a root.
    pub fn encode_nodes(&self, config: &TreeConfig, nodes: Vec<(Text, MutableNode)>) -> Result<Vec<(Text, Encoded)>> {
        let now = self.versions.environment().now_millis().to_string();
        let encoded = |(path, draft): (Text, MutableNode)| {
            let system = node_system_rows(&path, now.clone());
            Ok((path, encode(&system, &draft, config.order, config.compression)?))
        };
        nodes.into_iter().map(encoded).collect()
    }

    /// Publishes a root that is correct only directly after `latest`. Makes one attempt; `CommitConflict` if another
    /// writer was faster.
    pub async fn publish_alone(
        &self,
        latest: &Version,
        metadata: RootMetadata,
        draft: MutableNode,
        what: &str,
    ) -> Result<Arc<Version>> {
        Placement::of(self.versions.storage().root(), &latest.definition).check_writable()?;
        self.publish_repair(latest, metadata, draft, what).await
    }

    /// Like [`Publisher::publish_alone`], but without the check that the lakehouse was not moved. A repair needs no
    /// such check, because it writes no URI, and has to work in a moved lakehouse, because `relocate` needs a readable
    /// version.
    pub async fn publish_repair(
        &self,
        latest: &Version,
        metadata: RootMetadata,
        draft: MutableNode,
        what: &str,
    ) -> Result<Arc<Version>> {
        let deadline = self.versions.environment().elapsed_millis() + DOUBT_MILLIS;
        let prepared = self.prepare(latest, metadata, &draft, latest.definition.clone())?;
        let race = self.claim(prepared, deadline).await;
        match race.map_err(Unpublished::into_error)? {
            Race::Won(created) => self.confirm(created).await.map_err(Unpublished::into_error),
            Race::Lost(_) => Err(Error::conflict(format!(
                "version {} was committed while {what} was prepared; check it, then try again",
                latest.number + 1
            ))),
        }
    }

    /// Encodes the root after `previous`. The caller must check that the lakehouse was not moved.
    pub fn prepare(
        &self,
        previous: &Version,
        metadata: RootMetadata,
        draft: &MutableNode,
        definition: Arc<LakehouseDefinition>,
    ) -> Result<Prepared> {
        self.versions.check_intact()?;
        let number = previous.number + 1;
        let config = &previous.config;
        let system = metadata.system_rows()?;
        let encoded = encode(&system, draft, config.order, config.compression)?;
        // Do not build an index of the buffer, because the next commit looks up only a few keys in this root.
        let root = Arc::new(encoded.node);
        let version = Version::new(number, root, metadata, definition, self.versions.nodes().clone())?;
        Ok(Prepared { version: Arc::new(version), bytes: encoded.bytes })
    }

    /// Creates the root, unless another writer has created the root of this version. The root is certainly valid only
    /// after [`Publisher::confirm`].
    pub async fn claim(&self, root: Prepared, deadline_millis: u64) -> Result<Race, Unpublished> {
        let Prepared { version, bytes } = root;
        let number = version.number;
        let (storage, environment) = (self.versions.storage().as_ref(), self.versions.environment().as_ref());
        let asked = Moment::now(environment);
        let claim = claim_file(storage, environment, &version.root_path, bytes, deadline_millis);
        let (claim, answered) = dated(claim).await;
        match claim {
            Claim::Won { sent_once } => {
                // The root may have been created as late as the answer, so the observation must be recent at the time
                // of the answer. If the request was repeated, the answer proves nothing, because the store may execute
                // the first request later.
                let answered = answered.filter(|_| sent_once);
                let trust = self.versions.observations().is_name_unused(number, answered, environment);
                let (none_above, was_in_time) = (Observation { asked, answered }, trust == Trust::Certain);
                Ok(Race::Won(Created { version, sent_once, none_above, was_in_time }))
            }
            Claim::Lost(root) => self.lost_to(number, root).await.map(Race::Lost),
            Claim::Refused(error) => Err(Unpublished::Refused(error)),
            Claim::Unknown(error) => Err(Unpublished::InDoubt { error, version: number }),
        }
    }

    /// Searches for the latest version, from the root that won the race. If that root is below the boundary, the
    /// outcome is unknown: the first root with this name, possibly of this process, may have expired and been deleted
    /// before a suspended writer created this one.
    async fn lost_to(&self, number: u64, root: Bytes) -> Result<Arc<Version>, Unpublished> {
        let next = number + 1;
        let storage = self.versions.storage().as_ref();
        let next_file = root_path(next);
        // Request the boundary as well: an absent next root proves nothing if this version has expired.
        let (next_exists, oldest) = match self.versions.with_boundary(storage.exists(&next_file)).await {
            Ok((next_exists, oldest)) => (next_exists, Ok(oldest)),
            Err(error) => (Ok(false), Err(error)),
        };
        let unknown = |why: String| Unpublished::InDoubt {
            error: Error::CommitStateUnknown(format!(
                "another root was found for version {number}, but {why}; nothing was deleted"
            )),
            version: number,
        };
        match oldest {
            Ok(oldest) if oldest <= number => {}
            Ok(oldest) => {
                return Err(unknown(format!("versions below {oldest} have expired, so the version may be void")));
            }
            Err(error) => {
                return Err(unknown(format!(
                    "the expiry boundary cannot be read, so the version may have expired: {error}"
                )));
            }
        }
        let taken = Unpublished::NameTaken;
        let winner =
            version_of(self.versions.nodes(), number, root, Some(&self.versions.known())).await.map_err(taken)?;
        self.versions.learn(Arc::new(winner));
        if next_exists.map_err(taken)? {
            self.versions.latest_from(next).await.map_err(taken)
        } else {
            Ok(self.versions.known())
        }
    }

    /// Updates the hint after this process has created a root, and checks that the version number had not expired
    /// before (format §7). The check sends a request for the boundary, unless recent observations prove the result
    /// (docs/decisions/0034). Returns `Void` if the number had expired before, and `InDoubt` if this cannot be
    /// determined.
    pub async fn confirm(&self, created: Created) -> Result<Arc<Version>, Unpublished> {
        let version = created.version.clone();
        let number = version.number;
        let storage = self.versions.storage();
        let hint = self.hint.announce(storage.clone(), self.versions.environment(), number);
        if created.was_in_time {
            hint.await;
            self.versions.observations().saw_none_above(number, created.none_above);
            self.versions.learn(version.clone());
            return Ok(version);
        }
        let (boundary, ()) = join(published(storage.as_ref()), hint).await;
        let unknown = |why: String| Unpublished::InDoubt {
            error: Error::CommitStateUnknown(format!("version {number} was written, but {why}; nothing was deleted")),
            version: number,
        };
        match boundary {
            Err(error) => {
                Err(unknown(format!("the expiry boundary cannot be read, so the version may have expired: {error}")))
            }
            Ok(Some((oldest, published_millis))) if oldest > number => {
                self.versions.distrust_boundary();
                match self.look_back(created, published_millis).await {
                    Ok(Expired::Committed(version)) => Ok(version),
                    Ok(Expired::Void) => {
                        storage.delete(&version.root_path).await.map_err(|error| unknown(error.to_string()))?;
                        let error = Error::TransactionExpired(format!(
                            "version {number} was written after versions below {oldest} had expired, so it is void: \
                             begin again on the latest version"
                        ));
                        Err(Unpublished::Void(error))
                    }
                    Ok(Expired::Unclear) => Err(unknown(format!(
                        "versions below {oldest} have expired since: it was either committed before, or created too late"
                    ))),
                    Err(error) => Err(unknown(format!("its outcome cannot be read: {error}"))),
                }
            }
            Ok(_) => {
                self.versions.observations().saw_none_above(number, created.none_above);
                self.versions.learn(version.clone());
                Ok(version)
            }
        }
    }

    /// Determines the outcome of a root that this process created and that is now below the boundary. Either its number
    /// had expired before, so that no reader uses the root, or the root was created in time and expired afterwards.
    async fn look_back(&self, created: Created, published_millis: u64) -> Result<Expired> {
        let Created { version, sent_once, .. } = created;
        let latest = self.versions.rediscover().await?;
        let is_alone = version.metadata.committed.len() == 1;
        let mut committed = BTreeSet::new();
        for message in version.root.messages().rev() {
            // Names of definition files are unique, so a definition in the tree proves that its transaction was
            // committed. It does not prove that this root and its other transactions were committed: another process
            // may have committed the transaction, after it resumed it or found its intent.
            if let Some(location) = message.value
                && version.metadata.commits(message.txn)
                && !committed.contains(message.txn)
                && latest.get(message.key).await?.as_deref() == Some(location)
            {
                let by = self.versions.committed_by(message.txn).await?;
                match by {
                    Some(by) if is_alone || by.metadata.commit_id == version.metadata.commit_id => {
                        return Ok(Expired::Committed(by));
                    }
                    _ => drop(committed.insert(message.txn)),
                }
            }
        }
        // A name becomes free again only after a boundary was published, so a file of this process that is younger than
        // the current boundary was created too late. An older file proves nothing, because an earlier boundary may have
        // freed the name. A file of another writer, or one after a repeated request, proves nothing either: a root of
        // this process may have been created in time, and deleted before that file was created.
        let storage = self.versions.storage();
        let (root, file) = join(storage.get(&version.root_path), storage.head(&version.root_path)).await;
        let came_late = match (root, file) {
            (Err(Error::FileNotFound { .. }), _) | (_, Err(Error::FileNotFound { .. })) => false,
            (root, file) => {
                let root = decode(root?, &version.root_path, None)?;
                let found = RootMetadata::of(&root, version.number, &version.root_path)?;
                let is_ours = found.commit_id == version.metadata.commit_id;
                let is_younger = file?.modified_millis > published_millis + FILE_TIME_PRECISION_MILLIS;
                is_ours && sent_once && is_younger
            }
        };
        Ok(match committed.is_empty() {
            true if came_late => Expired::Void,
            // The version has expired, and this root was probably the committed one.
            false if is_alone && !came_late => Expired::Committed(version),
            _ => Expired::Unclear,
        })
    }
}

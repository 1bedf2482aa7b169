//! Versions by their numbers and tags.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{join, try_join_all};

use super::damaged_latest_version::Damage;
use super::discovery;
use super::expired_versions::{check_retained_by, expired};
use super::expiry_boundary::boundary;
use super::read_definition::lakehouse_definition;
use super::root_metadata::RootMetadata;
use super::version::Version;
use super::versions::Versions;
use super::wait_before_deleting;
use trinitylake_base::environment::Moment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::{root_path, root_path_000, root_version};
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::decode;
use trinitylake_storage::FileInfo;
use trinitylake_tree::node_store::NodeStore;

impl Versions {
    /// Returns a version by number. `VersionNotFound` if it was never committed, `VersionExpired` if it has expired.
    pub async fn version(&self, number: u64) -> Result<Arc<Version>> {
        let known = self.known();
        if known.number == number {
            return Ok(known);
        }
        let (version, oldest) = self.with_boundary(self.load_version(number)).await?;
        // A root below the boundary may be void, unless its version is tagged.
        if number < oldest {
            check_retained_by(&self.latest().await?.definition, oldest, number)?;
        }
        version
    }

    /// Reads the boundary. `VersionExpired` if the version is below it and has no tag in `latest`.
    pub async fn check_retained(&self, number: u64, latest: &Version) -> Result<()> {
        check_retained_by(&latest.definition, boundary(self.storage().as_ref()).await?, number)
    }

    /// Returns the version that a tag of the latest version names. `ObjectNotFound` if the tag does not exist.
    pub async fn tag(&self, name: &str) -> Result<Arc<Version>> {
        let latest = self.latest().await?;
        let Some(root) = latest.definition.exported_snapshots().get(name) else {
            return Err(Error::ObjectNotFound(format!("tag {name:?} does not exist")));
        };
        match root_version(root) {
            Some(number) => self.load_version(number).await,
            None => {
                Err(Error::InvalidArgument(format!("tag {name:?} names {root}, which is not a root of this lakehouse")))
            }
        }
    }

    pub(crate) async fn load_version(&self, number: u64) -> Result<Arc<Version>> {
        let known = self.known();
        if known.number == number {
            return Ok(known);
        }
        let root = match self.root_of(number).await? {
            Some(root) => root,
            None => {
                let missing = self.why_missing(number).await?;
                // Read the root again, because it may have been created after the first request.
                self.root_of(number).await?.ok_or(missing)?
            }
        };
        version_of_node(self.nodes(), number, root, Some(&known)).await.map(Arc::new)
    }

    /// The root node of a version, if its file exists.
    async fn root_of(&self, number: u64) -> Result<Option<Arc<Node>>> {
        for path in [root_path(number), root_path_000(number)] {
            match self.nodes().load(&path, None).await {
                Err(Error::FileNotFound { .. }) => {}
                root => return root.map(Some),
            }
        }
        Ok(None)
    }

    /// Returns the result of `answer`, and a boundary that was valid after it. Both are requested at the same time; if
    /// that takes long, the boundary is read again.
    pub(crate) async fn with_boundary<T>(&self, answer: impl Future<Output = T>) -> Result<(T, u64)> {
        let storage = self.storage().as_ref();
        let started = Moment::now(self.environment().as_ref());
        let (answer, oldest) = join(answer, boundary(storage)).await;
        let was_quick = started.is_within(wait_before_deleting::QUICK_LOOK_MILLIS, self.environment().as_ref());
        Ok((answer, if was_quick { oldest? } else { boundary(storage).await? }))
    }

    async fn why_missing(&self, number: u64) -> Result<Error> {
        let oldest = boundary(self.storage().as_ref()).await?;
        if number < oldest {
            return Ok(expired(number, oldest));
        }
        let found = discovery::latest(self.storage().as_ref(), self.environment().as_ref()).await?;
        Ok(match found.missing {
            _ if number <= found.version => {
                Error::corrupt(root_path(number), format!("the root node file of version {number} is missing"))
            }
            Some(named) if number <= named => Damage::missing(named, found.version).error,
            _ => {
                let latest = found.version;
                Error::VersionNotFound(format!("there is no version {number}; the latest is {latest}"))
            }
        })
    }

    /// The root file of a version with its date and size. Errors as for [`Versions::version`].
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

    /// Versions `from..=to` in ascending order; `tip` is the newest version. They are read in parallel and not added to
    /// any cache.
    pub async fn versions(&self, from: u64, to: u64, tip: &Arc<Version>) -> Result<Vec<Arc<Version>>> {
        let known = self.known();
        let read = async |number: u64| {
            if number == tip.number {
                return Ok(tip.clone());
            }
            let root = match discovery::root(self.storage().as_ref(), number).await {
                Err(Error::FileNotFound { .. }) => return Err(self.why_missing(number).await?),
                root => root?,
            };
            version_of(self.nodes(), number, root, Some(&known)).await.map(Arc::new)
        };
        let reads = try_join_all((from..=to).map(read));
        if from == tip.number {
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
    version_of_node(nodes, number, root, known).await
}

pub(crate) async fn version_of_node(
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

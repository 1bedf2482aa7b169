//! Creates a lakehouse or opens an existing one, and returns its [`Versions`].

use std::sync::Arc;

use futures::future::join;

use super::damaged_latest_version::Damage;
use super::discovery;
use super::expiry_boundary::boundary;
use super::publisher::DOUBT_MILLIS;
use super::root_metadata::{LastRollback, RootMetadata};
use super::version::Version;
use super::version_lookup::version_of;
use super::versions::Versions;
use trinitylake_base::environment::Environment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::config::TreeConfig;
use trinitylake_format::file_names::{lakehouse_definition_path, root_path, root_path_000};
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_format::node::codec::encode;
use trinitylake_format::node::mutable_node::MutableNode;
use trinitylake_storage::create_readback::{Claim, claim};
use trinitylake_storage::probe::probe;
use trinitylake_storage::response_dates::dated_last;
use trinitylake_storage::{RetryingStorage, Storage};
use trinitylake_tree::node_cache::CACHE_SIZE_BYTES;
use trinitylake_tree::node_store::NodeStore;

impl Versions {
    /// Creates version 0 of a new lakehouse. `ObjectAlreadyExists` if a lakehouse exists.
    pub async fn create(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        definition: LakehouseDefinition,
        cache_size_bytes: Option<u64>,
    ) -> Result<Arc<Versions>> {
        let storage = with_retries(storage, &environment);
        let definition = definition.placed_at(storage.root(), &[])?;
        let config = TreeConfig::of(&definition)?;
        let exists = || Error::ObjectAlreadyExists("a lakehouse exists here already".into());
        let root_file = root_path(0);
        // Look for any root and not only root 0, because the first versions of an existing lakehouse may have expired.
        let (roots, oldest) = join(discovery::list_roots(storage.as_ref()), boundary(storage.as_ref())).await;
        if !roots?.is_empty() || oldest? > 0 {
            return Err(exists());
        }
        probe(storage.as_ref(), &environment.uuid().to_string()).await?;
        let definition_path = lakehouse_definition_path(environment.uuid());
        storage.put_unique(&definition_path, definition.encode_file(&definition_path)).await?;
        let metadata = RootMetadata {
            version: 0,
            commit_id: environment.uuid().to_string(),
            created_at_millis: environment.now_millis(),
            lakehouse_definition: definition_path.clone(),
            inline_definition: Some(definition.encode_file(&definition_path)),
            last_rollback: LastRollback::Never,
            ..RootMetadata::default()
        };
        let encoded = encode(&metadata.system_rows()?, &MutableNode::default(), config.order, config.compression)?;
        let deadline = environment.elapsed_millis() + DOUBT_MILLIS;
        let claim = claim(storage.as_ref(), environment.as_ref(), &root_file, encoded.bytes, deadline).await;
        if let Claim::Refused(error) | Claim::Unknown(error) = claim {
            return Err(error);
        }
        // If version 0 has expired, this root 0 proves nothing: an earlier root 0, possibly created by this process,
        // may have been deleted.
        let unknown = |why: String| {
            Err(Error::CommitStateUnknown(format!(
                "it is unknown whether this process or another one created the lakehouse: {why}; nothing was deleted"
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
        Ok(Arc::new(Versions::new(nodes, environment, version, None)))
    }

    /// Opens the latest version. `NotALakehouse` if there is none.
    pub async fn open(
        storage: Arc<dyn Storage>,
        environment: Arc<dyn Environment>,
        cache_size_bytes: Option<u64>,
    ) -> Result<Arc<Versions>> {
        let storage = with_retries(storage, &environment);
        let (found, answered) = dated_last(discovery::latest(storage.as_ref(), environment.as_ref())).await;
        let found = found?;
        let nodes = Arc::new(NodeStore::new(storage, cache_size_bytes.unwrap_or(CACHE_SIZE_BYTES)));
        let (version, damage) = match version_of(&nodes, found.version, found.root, None).await {
            Ok(version) => (version, found.missing.map(|named| Damage::missing(named, found.version))),
            Err(Error::CorruptFile { path, message }) => {
                let Some(version) = newest_intact(&nodes, found.version).await? else {
                    return Err(Error::CorruptFile { path, message });
                };
                let damage = Damage::unreadable(found.version, path, &message, version.number);
                (version, Some(damage))
            }
            Err(error) => return Err(error),
        };
        let versions = Versions::new(nodes, environment, version, damage);
        versions.observations().heard(answered);
        Ok(Arc::new(versions))
    }
}

fn with_retries(storage: Arc<dyn Storage>, environment: &Arc<dyn Environment>) -> Arc<dyn Storage> {
    Arc::new(RetryingStorage::new(storage, environment.clone()))
}

/// Returns the newest readable version below `number`.
pub async fn newest_intact(nodes: &Arc<NodeStore>, number: u64) -> Result<Option<Version>> {
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

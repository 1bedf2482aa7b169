//! Publication of versions in another lakehouse: the last step of an export, after all files were copied.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::StringArray;

use crate::apply_many_changes::apply_many_changes;
use crate::config::TreeConfig;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::file_names::{lakehouse_definition_path, root_path};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::node::codec::{decode, encode};
use crate::node::mutable_node::{Message, MutableNode};
use crate::storage::Storage;
use crate::storage::create_readback::{Claim, claim};
use crate::tree::bulk_build::{NodeWriter, build};
use crate::version::publisher::DOUBT_MILLIS;
use crate::version::root_metadata::{
    CommittedTransaction, EXPORTED_VERSION_PROPERTY, LastRollback, OPERATION_EXPORT, OPERATION_PROPERTY, RootMetadata,
};
use crate::version::summary_format::Summary;
use crate::version::{Version, discovery};

/// The tree of a version that is published in another lakehouse.
pub enum CopiedTree<'a> {
    /// The whole tree of a version. Its nodes below the root have been copied.
    Of(&'a Version),
    /// A new tree with these objects: keys, ascending, and locations.
    Objects(Box<(StringArray, StringArray)>),
    /// The latest tree of the target with changed locations; `None` removes a key.
    Changes(Vec<(String, Option<String>)>),
}

/// Commit information of an export for its target.
#[derive(Clone, Debug, Default)]
pub struct ExportNote {
    pub message: String,
    pub author: String,
    /// The version of the target with which the copy was compared. It must still be the latest one.
    pub after: Option<u64>,
    /// Source of the copy, as properties with names reserved for the library.
    pub properties: Vec<(String, String)>,
}

/// Publishes the next version of the target lakehouse, or its first one. Returns the number of the version.
/// `CommitConflict` if another writer publishes a version of the target first.
pub async fn publish(
    storage: &Arc<dyn Storage>,
    environment: &Arc<dyn Environment>,
    target: Option<&Arc<Lakehouse>>,
    tree: CopiedTree<'_>,
    definition: LakehouseDefinition,
    note: ExportNote,
) -> Result<u64> {
    let config = TreeConfig::of(&definition)?;
    let latest = match target {
        Some(lakehouse) => Some(lakehouse.latest().await?),
        None => None,
    };
    if let (Some(latest), Some(after)) = (&latest, note.after)
        && latest.number != after
    {
        return Err(Error::conflict(format!("version {} was committed at the target in the meantime", latest.number)));
    }
    let mut properties = note.properties;
    properties.push((OPERATION_PROPERTY.to_string(), OPERATION_EXPORT.to_string()));
    let source = properties.iter().find(|(name, _)| name == EXPORTED_VERSION_PROPERTY);
    let summary = Summary::plain(match source {
        Some((_, version)) => format!("copy of version {version}"),
        None => "copy".into(),
    });
    let committed = CommittedTransaction {
        id: environment.uuid().to_string(),
        isolation: "serializable".into(),
        message: note.message,
        author: note.author,
        began_at_version: latest.as_ref().map_or(0, |latest| latest.number),
        properties: properties.into_iter().collect(),
        summary,
    };
    let mut inline_definitions = BTreeMap::new();
    let draft = match tree {
        CopiedTree::Of(version) => {
            inline_definitions = version.unwritten_definitions();
            let height = version.nodes().height_of(&version.root).await?;
            MutableNode::of(&version.root, height)
        }
        CopiedTree::Objects(objects) => {
            let (keys, locations) = *objects;
            let writer = NodeWriter { storage: storage.as_ref(), environment: environment.as_ref(), config: &config };
            build(&writer, &keys, &locations).await?
        }
        CopiedTree::Changes(changes) => {
            let (Some(lakehouse), Some(latest)) = (target, &latest) else {
                return Err(Error::InvalidArgument("the target has no lakehouse to change".into()));
            };
            let messages = changes.into_iter().map(|(key, location)| {
                Message::new(key.into(), location.map(Into::into), committed.id.as_str().into())
            });
            let root = latest.root.clone();
            apply_many_changes(
                lakehouse.nodes(),
                environment.as_ref(),
                lakehouse.publisher(),
                &config,
                root,
                messages.collect(),
            )
            .await?
        }
    };
    let path = match &latest {
        Some(latest) if latest.definition.bytes() == definition.bytes() => latest.metadata.lakehouse_definition.clone(),
        _ => write_definition(storage.as_ref(), environment.as_ref(), &definition).await?,
    };
    let (Some(lakehouse), Some(latest)) = (target, latest) else {
        let metadata = RootMetadata {
            version: 0,
            commit_id: environment.uuid().to_string(),
            created_at_millis: environment.now_millis(),
            inline_definition: Some(definition.encode_file(&path)),
            lakehouse_definition: path,
            inline_definitions,
            last_rollback: LastRollback::Never,
            committed: vec![committed],
            ..RootMetadata::default()
        };
        create_root(storage, environment, metadata, &draft, &config).await?;
        discovery::write_hint(storage.as_ref(), 0).await;
        return Ok(0);
    };
    let mut metadata = lakehouse.publisher().next_metadata(&latest, vec![committed]);
    metadata.inline_definition = Some(definition.encode_file(&path));
    metadata.lakehouse_definition = path;
    metadata.inline_definitions.extend(inline_definitions);
    let version = lakehouse.publisher().publish_alone(&latest, metadata, draft, "the export").await?;
    Ok(version.number)
}

/// Publishes a version in the target with the same number as in the source, but with the lakehouse definition of the
/// target. `CommitConflict` if the target has a different version with that number.
pub async fn publish_same(
    storage: &Arc<dyn Storage>,
    environment: &Arc<dyn Environment>,
    source: &Version,
    definition: LakehouseDefinition,
) -> Result<()> {
    let path = root_path(source.number);
    let there = |bytes: bytes::Bytes| -> Result<()> {
        let root = decode(bytes, &path, None)?;
        let found = RootMetadata::of(&root, source.number, &path)?;
        if found.commit_id == source.metadata.commit_id {
            return Ok(());
        }
        Err(Error::conflict(format!("the target has a different version {}: export to an empty target", source.number)))
    };
    match storage.get(&path).await {
        Ok(bytes) => return there(bytes),
        Err(Error::FileNotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let config = TreeConfig::of(&definition)?;
    let mut metadata = source.metadata.clone();
    // No garbage was collected in the target.
    metadata.gc_before_millis = None;
    metadata.lakehouse_definition = write_definition(storage.as_ref(), environment.as_ref(), &definition).await?;
    metadata.inline_definition = Some(definition.encode_file(&metadata.lakehouse_definition));
    let draft = MutableNode::of(&source.root, source.nodes().height_of(&source.root).await?);
    match create_root(storage, environment, metadata, &draft, &config).await {
        Err(Error::CommitConflict { .. }) => there(storage.get(&path).await?),
        created => created,
    }
}

async fn write_definition(
    storage: &dyn Storage,
    environment: &dyn Environment,
    definition: &LakehouseDefinition,
) -> Result<String> {
    let path = lakehouse_definition_path(environment.uuid());
    storage.put_unique(&path, definition.encode_file(&path)).await?;
    Ok(path)
}

async fn create_root(
    storage: &Arc<dyn Storage>,
    environment: &Arc<dyn Environment>,
    metadata: RootMetadata,
    draft: &MutableNode,
    config: &TreeConfig,
) -> Result<()> {
    let path = root_path(metadata.version);
    let encoded = encode(&metadata.system_rows()?, draft, config.order, config.compression)?;
    let deadline = environment.elapsed_millis() + DOUBT_MILLIS;
    match claim(storage.as_ref(), environment.as_ref(), &path, encoded.bytes, deadline).await {
        Claim::Won { .. } => Ok(()),
        Claim::Lost(_) => Err(Error::conflict("another writer published a version at the target first".into())),
        Claim::Refused(error) | Claim::Unknown(error) => Err(error),
    }
}

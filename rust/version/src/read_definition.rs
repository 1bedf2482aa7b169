//! Reading definitions: of objects, and of the lakehouse.

use std::sync::Arc;

use bytes::Bytes;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::definition_file::decode_file;
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_tree::node_store::NodeStore;

use crate::root_metadata::RootMetadata;

/// Reads the definition at a location in a tree. `CorruptFile` if its checksum or its path is wrong.
pub async fn read_definition(nodes: &NodeStore, location: &str) -> Result<Bytes> {
    match nodes.storage().get(location).await {
        Err(Error::FileNotFound { path }) => {
            Err(Error::corrupt(path, "the tree references this definition file, which is missing"))
        }
        file => decode_file(location, &file?),
    }
}

/// Returns the lakehouse definition of a root. `known` is a definition that was already read, with its path.
pub(crate) async fn lakehouse_definition(
    nodes: &NodeStore,
    metadata: &RootMetadata,
    known: Option<(&str, &Arc<LakehouseDefinition>)>,
) -> Result<Arc<LakehouseDefinition>> {
    let path = &metadata.lakehouse_definition;
    if let Some((_, definition)) = known.filter(|(known, _)| known == path) {
        return Ok(definition.clone());
    }
    let definition = match &metadata.inline_definition {
        Some(file) => LakehouseDefinition::decode_file(file, path)?,
        None => LakehouseDefinition::decode(read_definition(nodes, path).await?, path)?,
    };
    Ok(Arc::new(definition))
}

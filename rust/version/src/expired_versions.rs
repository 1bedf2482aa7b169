//! Retention: versions from the boundary on and tagged versions are retained (format §7).
//!
//! A reader that does not find a file checks whether its version is still retained. If the version is not retained, the
//! file may have been deleted; otherwise the lakehouse is damaged. The check must follow the failed read, because the
//! boundary, or the version that removes a tag, is published before any file is deleted.

use std::sync::Arc;

use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::root_path;
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_format::node::codec::decode;
use trinitylake_tree::node_store::NodeStore;

use crate::discovery;
use crate::expiry_boundary::boundary;
use crate::read_definition::lakehouse_definition;
use crate::root_metadata::RootMetadata;

/// Reads the boundary and the tags. Returns `VersionExpired` if a version is no longer retained.
pub async fn check_retained(nodes: &Arc<NodeStore>, number: u64) -> Result<()> {
    let oldest = boundary(nodes.storage().as_ref()).await?;
    if oldest <= number {
        return Ok(());
    }
    let found = discovery::latest_without_clock(nodes.storage().as_ref()).await?;
    let path = root_path(found.version);
    let root = decode(found.root, &path, None)?;
    let metadata = RootMetadata::of(&root, found.version, &path)?;
    let definition = lakehouse_definition(nodes, &metadata, None).await?;
    check_retained_by(&definition, oldest, number)
}

/// Returns `VersionExpired` if a version is below the boundary `oldest` and has no tag in the latest definition.
pub fn check_retained_by(latest: &LakehouseDefinition, oldest: u64, number: u64) -> Result<()> {
    if oldest <= number || latest.pinned_versions().any(|pinned| pinned == number) {
        return Ok(());
    }
    Err(expired(number, oldest))
}

/// The error for a version below the boundary.
pub fn expired(number: u64, oldest: u64) -> Error {
    Error::VersionExpired(format!("version {number} has expired; the oldest kept is {oldest}"))
}

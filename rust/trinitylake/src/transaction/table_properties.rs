//! Properties of a managed table that a transaction changes by itself, without the layer above: no more is read than its
//! definition and its metadata, and of both everything else is copied as it stands.
//!
//! Wherever more would have to be known or done, nothing is staged. The layer above then goes the long way.

use bytes::Bytes;
use prost::Message;
pub use trinitylake_iceberg::{PropertyChange, plain_change};
use trinitylake_iceberg::{Succession, with_properties};

use super::{Told, Transaction};
use crate::definition::proto::{TableDef, TableType};
use crate::definition::{METADATA_LOCATION, PREVIOUS_METADATA_LOCATION};
use crate::error::{Error, Result};
use crate::key::ObjectKind;
use crate::version::summary::Rows;

const SUFFIX: &str = ".metadata.json";
const UUID_SIZE_BYTES: usize = 36;

/// What to change, and what must be so that it is not for the long way.
#[derive(Clone, Debug)]
pub struct ChangedProperties {
    /// One after the other.
    pub changes: Vec<PropertyChange>,
    /// The id that the table is to have, if any is required.
    pub table_id: Option<String>,
    /// Earlier metadata files, and snapshots, that metadata names if no property says more.
    pub kept: usize,
    /// Of metadata, as it is stored.
    pub max_size_bytes: u64,
}

/// A table with other properties, as it is staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedTable {
    pub id: String,
    /// Below the root; to be written with the commit.
    pub metadata_path: String,
    pub metadata: Bytes,
}

impl Transaction {
    /// Stages the changes, if that is all there is to do. Errors as of [`Transaction::read`] and [`Transaction::replace`].
    pub async fn change_properties(
        &mut self,
        namespace: &str,
        name: &str,
        change: &ChangedProperties,
    ) -> Result<Option<ChangedTable>> {
        let key = self.base.config.names.key(ObjectKind::Table, namespace, name)?;
        if self.changes.writes.contains_key(&key) {
            return Ok(None);
        }
        let Some(definition) = self.read(ObjectKind::Table, namespace, name).await? else { return Ok(None) };
        let Some((mut table, previous)) = managed(&definition) else { return Ok(None) };
        if change.table_id.as_ref().is_some_and(|required| *required != table.id) {
            return Ok(None);
        }
        let Some((folder, number)) = place(&previous) else { return Ok(None) };
        let storage = self.lakehouse.storage();
        let metadata = match storage.get_end(&previous, change.max_size_bytes).await {
            Ok(metadata) if metadata.is_whole() => metadata.bytes,
            Ok(_) | Err(Error::FileNotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let environment = self.lakehouse.environment();
        let succession = Succession {
            previous_uri: &format!("{}{previous}", storage.root()),
            previous_folder: &format!("{}{folder}", storage.root()),
            table_uuid: &table.id,
            now_millis: environment.now_millis(),
            kept: change.kept,
        };
        let Some(metadata) = with_properties(&metadata, &change.changes, &succession) else {
            return Ok(None);
        };
        let metadata_path = format!("{folder}/{number:05}-{}{SUFFIX}", environment.uuid());
        let id = table.id.clone();
        table.format_properties.insert(PREVIOUS_METADATA_LOCATION.into(), previous);
        table.format_properties.insert(METADATA_LOCATION.into(), metadata_path.clone());
        self.replace(ObjectKind::Table, namespace, name, table.encode_to_vec().into()).await?;
        let told = Told { verb: "properties".into(), rows: Rows::default(), tail: String::new() };
        self.tell(namespace, name, vec![told])?;
        Ok(Some(ChangedTable { id, metadata_path, metadata: metadata.into() }))
    }
}

/// The definition of a managed table and the path of its metadata. `None` for any other, and for one in which there is
/// something that would be lost, since it is not known here.
fn managed(definition: &Bytes) -> Option<(TableDef, String)> {
    let table = TableDef::decode(definition.clone()).ok()?;
    let is_managed = TableType::try_from(table.table_type) == Ok(TableType::Managed);
    let metadata = table.format_properties.get(METADATA_LOCATION)?.clone();
    (is_managed && table.encode_to_vec() == **definition).then_some((table, metadata))
}

/// The folder of a metadata file, and the number of the one after it. `None` for a name that this library does not give.
fn place(path: &str) -> Option<(&str, u64)> {
    let (folder, file) = path.rsplit_once('/')?;
    let (number, uuid) = file.strip_suffix(SUFFIX)?.split_once('-')?;
    let is_uuid =
        uuid.len() == UUID_SIZE_BYTES && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let number: u64 = number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())??;
    is_uuid.then_some((folder, number.checked_add(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_files_are_numbered_on() {
        let uuid = "01234567-89ab-4def-8123-456789abcdef";
        assert_eq!(place(&format!("a/b/metadata/00041-{uuid}.metadata.json")), Some(("a/b/metadata", 42)));
        for odd in [
            format!("00041-{uuid}.metadata.json"),
            format!("a/00041-{uuid}.gz.metadata.json"),
            format!("a/+0041-{uuid}.metadata.json"),
            format!("a/-{uuid}.metadata.json"),
            format!("a/{}-{uuid}.metadata.json", u64::MAX),
            format!("a/00041-{uuid}0.metadata.json"),
            "a/v41.metadata.json".into(),
        ] {
            assert_eq!(place(&odd), None, "{odd}");
        }
    }
}

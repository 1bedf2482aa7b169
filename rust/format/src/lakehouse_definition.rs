//! The file with the definition of a lakehouse. The core does not decode the definitions of namespaces, tables and
//! views.
//!
//! The bytes are kept together with the parsed message, so that fields of a newer writer survive a rewrite by this
//! release.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use crate::definition_file::{decode_file, encode_file};
use crate::file_names::root_version;
use crate::key::NameSizes;
use trinitylake_base::error::{Error, Result};

#[allow(clippy::all, reason = "generated")]
pub mod proto {
    include!("../../../proto/trinitylake.rs");
}

/// Property of a table definition with the path of its metadata file (format §9).
pub const METADATA_LOCATION: &str = "metadata_location";
/// Property of a managed table: path of the manifest list of its current snapshot.
pub const MANIFEST_LIST: &str = "manifest_list";

/// The newest format this code reads and writes.
pub const MAJOR_VERSION: u32 = 0;
const DEFINITION_MAX_SIZE_BYTES: usize = 16 << 20;

#[derive(Clone, Debug)]
pub struct LakehouseDefinition {
    bytes: Bytes,
    message: proto::LakehouseDef,
}

impl LakehouseDefinition {
    /// Decodes the definition file at `path`.
    pub fn decode_file(file: &Bytes, path: &str) -> Result<LakehouseDefinition> {
        LakehouseDefinition::decode(decode_file(path, file)?, path)
    }

    /// The content of the definition file at `path`.
    pub fn encode_file(&self, path: &str) -> Bytes {
        encode_file(path, &self.bytes)
    }

    /// Decodes the message of a definition; refuses a major version above [`MAJOR_VERSION`].
    pub fn decode(bytes: Bytes, path: &str) -> Result<LakehouseDefinition> {
        if bytes.len() > DEFINITION_MAX_SIZE_BYTES {
            return Err(Error::corrupt(path, format!("{} bytes are too many for a lakehouse definition", bytes.len())));
        }
        let message = proto::LakehouseDef::decode(bytes.clone())
            .map_err(|error| Error::corrupt(path, format!("not a lakehouse definition: {error}")))?;
        if message.major_version > MAJOR_VERSION {
            return Err(Error::UnsupportedVersion(format!(
                "{path}: this lakehouse has format version {}, this release reads up to {MAJOR_VERSION}; upgrade \
                 trinitylake",
                message.major_version
            )));
        }
        Ok(LakehouseDefinition { bytes, message })
    }

    pub fn encode(message: proto::LakehouseDef) -> LakehouseDefinition {
        LakehouseDefinition { bytes: Bytes::from(message.encode_to_vec()), message }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn name(&self) -> &str {
        &self.message.name
    }

    pub fn properties(&self) -> &BTreeMap<String, String> {
        &self.message.properties
    }

    pub fn order(&self) -> usize {
        or_default(self.message.order, 128)
    }

    pub fn node_file_max_size_bytes(&self) -> usize {
        match self.message.node_file_max_size_bytes {
            0 => 1 << 20,
            size => usize::try_from(size).unwrap_or(usize::MAX),
        }
    }

    pub fn file_path_max_size_bytes(&self) -> usize {
        or_default(self.message.file_path_max_size_bytes, 200)
    }

    pub fn name_sizes(&self) -> NameSizes {
        NameSizes {
            namespace: or_default(self.message.namespace_name_max_size_bytes, 100),
            table: or_default(self.message.table_name_max_size_bytes, 100),
            view: or_default(self.message.view_name_max_size_bytes, 100),
        }
    }

    pub fn maximum_version_age_millis(&self) -> u64 {
        match self.message.maximum_version_age_millis {
            0 => 7 * 24 * 60 * 60 * 1000,
            age => age,
        }
    }

    pub fn minimum_versions_to_keep(&self) -> u64 {
        match self.message.minimum_versions_to_keep {
            0 => 3,
            versions => versions.into(),
        }
    }

    /// Time during which a saved transaction can be resumed.
    pub fn transaction_ttl_millis(&self) -> u64 {
        match self.message.txn_ttl_millis {
            0 => 24 * 60 * 60 * 1000,
            age => age,
        }
    }

    /// Retention of single versions: milliseconds by version.
    pub fn maximum_version_age_overrides(&self) -> &BTreeMap<u64, u64> {
        &self.message.maximum_version_age_millis_overrides
    }

    pub fn exported_snapshots(&self) -> &BTreeMap<String, String> {
        &self.message.exported_snapshots
    }

    /// The tagged versions, which no expiry deletes.
    pub fn pinned_versions(&self) -> impl Iterator<Item = u64> {
        self.message.exported_snapshots.values().filter_map(|root| root_version(root))
    }

    /// Recorded root URI of the lakehouse, if any.
    pub fn root_uri(&self) -> Option<&str> {
        Some(self.message.root_uri.as_str()).filter(|uri| !uri.is_empty())
    }

    /// Former roots of the lakehouse, oldest first.
    pub fn former_root_uris(&self) -> &[String] {
        &self.message.former_root_uris
    }

    /// Returns this definition with `root_uri` as the root URI and `former` as the former root URIs.
    pub fn placed_at(&self, root_uri: &str, former: &[String]) -> Result<LakehouseDefinition> {
        let placement = proto::LakehouseDef {
            root_uri: root_uri.to_string(),
            former_root_uris: former.to_vec(),
            ..proto::LakehouseDef::default()
        };
        let damaged = |error: prost::DecodeError| {
            Error::corrupt("(lakehouse definition)", format!("its fields cannot be separated: {error}"))
        };
        let mut bytes = without_fields(&self.bytes, &[ROOT_URI_FIELD, FORMER_ROOT_URIS_FIELD]).map_err(damaged)?;
        bytes.extend(placement.encode_to_vec());
        LakehouseDefinition::decode(bytes.into(), "(lakehouse definition)")
    }

    /// Settings on which the tree and its keys depend, so that they never change.
    pub fn fixed_settings(&self) -> [(&'static str, usize); 4] {
        let names = self.name_sizes();
        [
            ("order", self.order()),
            ("namespace_name_max_size_bytes", names.namespace),
            ("table_name_max_size_bytes", names.table),
            ("view_name_max_size_bytes", names.view),
        ]
    }
}

/// Numbers of `root_uri` and `former_root_uris` in the schema.
const ROOT_URI_FIELD: u32 = 16;
const FORMER_ROOT_URIS_FIELD: u32 = 17;

/// Removes the fields with these numbers from an encoded message. All other fields stay, also those that this release
/// does not know.
fn without_fields(bytes: &Bytes, fields: &[u32]) -> Result<Vec<u8>, prost::DecodeError> {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        let start = bytes.len() - rest.len();
        let (field, wire_type) = decode_key(&mut rest)?;
        skip_field(wire_type, field, &mut rest, DecodeContext::default())?;
        if !fields.contains(&field) {
            kept.extend_from_slice(&bytes[start..bytes.len() - rest.len()]);
        }
    }
    Ok(kept)
}

/// Returns the default for 0, because a number that was never set is 0 in protobuf 3.
fn or_default(value: u32, default: usize) -> usize {
    if value == 0 { default } else { value as usize }
}

#[cfg(test)]
mod tests;

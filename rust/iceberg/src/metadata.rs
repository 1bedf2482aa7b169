//! Decodes a table's metadata file, which is JSON and may be compressed.

use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;
use serde::Deserialize;

use super::{Form, Named};
use trinitylake_base::error::{Error, Result};

/// First bytes of compressed metadata. The content shows whether metadata is compressed, because file names vary.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Properties with locations of a table's files, in addition to the table's location.
const FOLDER_PROPERTIES: [&str; 4] =
    ["write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"];

/// References in a metadata file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// URIs of the folders for the table's files, the table's location first.
    pub folders: Vec<String>,
    pub table_uuid: String,
    pub files: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    format_version: u32,
    location: String,
    #[serde(default)]
    table_uuid: Option<String>,
    #[serde(default)]
    properties: Option<BTreeMap<String, String>>,
    #[serde(default)]
    snapshots: Option<Vec<Snapshot>>,
    #[serde(default)]
    statistics: Option<Vec<Statistics>>,
    #[serde(default)]
    partition_statistics: Option<Vec<Statistics>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Snapshot {
    manifest_list: Option<String>,
    /// In format version 1, a snapshot may list its manifests instead of a manifest list.
    #[serde(default)]
    manifests: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Statistics {
    statistics_path: String,
}

pub fn read(bytes: &Bytes, path: &str) -> Result<Metadata> {
    let damaged = |why: String| Error::corrupt(path, format!("not Iceberg table metadata: {why}"));
    let document: Document = if bytes.starts_with(&GZIP_MAGIC) {
        let mut plain = Vec::new();
        let mut decoder = flate2::read::MultiGzDecoder::new(bytes.as_ref());
        decoder.read_to_end(&mut plain).map_err(|error| damaged(error.to_string()))?;
        serde_json::from_slice(&plain)
    } else {
        serde_json::from_slice(bytes)
    }
    .map_err(|error| damaged(error.to_string()))?;
    if !(1..=3).contains(&document.format_version) {
        let version = document.format_version;
        return Err(Error::UnsupportedVersion(format!(
            "{path}: this release does not know Iceberg format version {version}, so the files of the table are unknown"
        )));
    }
    let named = |location: String, form: Form| Named { location, form };
    let mut files = Vec::new();
    for snapshot in document.snapshots.unwrap_or_default() {
        match (snapshot.manifest_list, snapshot.manifests) {
            (Some(list), _) => files.push(named(list, Form::ManifestList)),
            (None, Some(manifests)) => {
                files.extend(manifests.into_iter().map(|manifest| named(manifest, Form::Manifest)));
            }
            (None, None) => {
                return Err(damaged("a snapshot has neither a manifest list nor manifests".into()));
            }
        }
    }
    let statistics = document.statistics.into_iter().chain(document.partition_statistics).flatten();
    files.extend(statistics.map(|one| named(one.statistics_path, Form::Content)));
    let mut folders = vec![document.location];
    if let Some(properties) = document.properties {
        folders.extend(FOLDER_PROPERTIES.iter().filter_map(|name| properties.get(*name).cloned()));
    }
    Ok(Metadata { folders, table_uuid: document.table_uuid.unwrap_or_default(), files })
}

#[cfg(test)]
mod tests;

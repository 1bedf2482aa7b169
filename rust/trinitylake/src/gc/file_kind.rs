//! Type of a file by its name. Garbage collection deletes only files with names that this format creates.

use crate::file_names::{
    EXPIRED_PREFIX, INTENT_PREFIX, LATEST_HINT_PATH, TRANSACTION_PREFIX, definition_id, gc_marker, intent_file,
    lakehouse_definition_id, node_id, root_version, transaction_file,
};
use crate::managed_table_folder::table_id_digits;
use crate::storage::is_unfinished;

/// Folder of the files that measure the store's clock or probe its conditional writes.
const PROBE_PREFIX: &str = "_probe/";
/// Lowest sequence number of a record. Saved states of transactions have lower sequence numbers.
const FIRST_RECORD_SEQUENCE: u64 = 1 << 63;

/// Types of files, in the order of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Root,
    Node,
    Definition,
    /// Metadata files of tables, manifest lists and manifests.
    TableMetadata,
    /// Data files, and delete files if the references to them were not read.
    Data,
    /// Delete files, which only their references distinguish from data files.
    Deletes,
    /// Saved transactions, and records of transaction ids.
    Transaction,
    /// Intents, probes, and unfinished files.
    Temporary,
    /// The version hint, the boundary, and markers of running collections.
    System,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Root => "roots",
            Kind::Node => "tree nodes",
            Kind::Definition => "definitions",
            Kind::TableMetadata => "table metadata",
            Kind::Data => "data files",
            Kind::Deletes => "delete files",
            Kind::Transaction => "transactions",
            Kind::Temporary => "temporary files",
            Kind::System => "system files",
        }
    }
}

/// Whether gc may delete an unreferenced file that is old enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Garbage(Kind),
    /// Gc does not delete the file. Either expiry deletes it or it stays.
    Stays(Kind),
    /// Gc may delete the file if it is in the folder of a table.
    OfTable(Kind),
    Unknown,
}

/// Returns the verdict by the name of a file. Versions below `oldest` have expired.
pub(super) fn verdict(path: &str, oldest: u64) -> Verdict {
    if is_unfinished(path) {
        return Verdict::Garbage(Kind::Temporary);
    }
    if let Some(version) = root_version(path) {
        // A root that is not expired belongs to a retained version, or to a version that was committed after the mark.
        return if version < oldest { Verdict::Garbage(Kind::Root) } else { Verdict::Stays(Kind::Root) };
    }
    if node_id(path).is_some() {
        return Verdict::Garbage(Kind::Node);
    }
    if definition_id(path).is_some() || lakehouse_definition_id(path).is_some() {
        return Verdict::Garbage(Kind::Definition);
    }
    if path == LATEST_HINT_PATH || path.starts_with(EXPIRED_PREFIX) || gc_marker(path).is_some() {
        return Verdict::Stays(Kind::System);
    }
    if path.starts_with(TRANSACTION_PREFIX) {
        return match transaction_file(path) {
            // The name is unique, so no writer can use it again.
            Some((_, sequence)) if sequence >= FIRST_RECORD_SEQUENCE => Verdict::Garbage(Kind::Transaction),
            // Expiry deletes the states of transactions that can no longer be resumed. If gc deleted a state earlier, a
            // process that resumes the transaction could save under the same name again.
            Some(_) => Verdict::Stays(Kind::Transaction),
            None => Verdict::Unknown,
        };
    }
    if path.starts_with(INTENT_PREFIX) {
        return if intent_file(path).is_some() { Verdict::Garbage(Kind::Temporary) } else { Verdict::Unknown };
    }
    if path.starts_with(PROBE_PREFIX) {
        return Verdict::Garbage(Kind::Temporary);
    }
    if path.starts_with('_') { Verdict::Unknown } else { Verdict::OfTable(kind_in_table(path)) }
}

fn kind_in_table(path: &str) -> Kind {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_metadata = name.contains(".metadata.json")
        || (name.ends_with(".avro") && path.contains("/metadata/"))
        || name == "version-hint.text";
    if is_metadata { Kind::TableMetadata } else { Kind::Data }
}

/// Returns the folder of a managed table that contains the file. The folder is recognised by the form of its name.
pub(super) fn table_folder(path: &str) -> Option<&str> {
    let namespace_end = path.find('/')?;
    let end = namespace_end + 1 + path[namespace_end + 1..].find('/')?;
    table_id_digits(&path[..end]).map(|_| &path[..end])
}

/// Returns the folder under which a report counts a file of this type.
pub fn folder_of(kind: Kind, path: &str) -> Option<&str> {
    let parent = || path.rsplit_once('/').map_or("", |(folder, _)| folder);
    matches!(kind, Kind::TableMetadata | Kind::Data).then(|| table_folder(path).unwrap_or_else(parent))
}

/// Whether the file has a name that Iceberg writers create in the folder of a table. This distinguishes folders of
/// dropped tables from folders of other software whose names also end in eight digits.
pub(super) fn is_named_by_a_writer(path: &str, folder: &str) -> bool {
    let Some(rest) = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else { return false };
    let Some((place, _)) = rest.split_once('/') else { return false };
    let name = rest.rsplit('/').next().unwrap_or(rest);
    let known_end =
        [".parquet", ".avro", ".orc", ".puffin", ".metadata.json", ".metadata.json.gz", ".gz.metadata.json"];
    matches!(place, "data" | "metadata")
        && known_end.iter().any(|end| name.ends_with(end))
        && !name.starts_with("part-")
        && contains_uuid(name)
}

/// Whether the name contains a UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
fn contains_uuid(name: &str) -> bool {
    let is_uuid = |window: &[u8]| {
        window.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    name.as_bytes().windows(36).any(is_uuid)
}

#[cfg(test)]
mod tests;

//! System rows of a root node (format §4): who made the version, from what, when.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use trinitylake_base::error::{Error, Result};
use trinitylake_format::definition_file::is_intact_copy;
use trinitylake_format::node::{CREATED_AT_MILLIS, MessageRef, Node};

use crate::summary::Summary;

const LAKEHOUSE_DEF: &str = "lakehouse_def";
/// Ours: the definition itself, hexadecimal, so that opening a lakehouse does not wait for one more file.
pub const LAKEHOUSE_DEF_INLINE: &str = "lakehouse_def_inline";
/// Ours: definitions that may not lie in their files yet.
pub const INLINE_DEFINITIONS: &str = "definitions_inline";
const PREVIOUS_ROOT: &str = "previous_root";
const ROLLBACK_FROM_ROOT: &str = "rollback_from_root";
/// An extension: shows whether a version was undone without reading all later ones.
const LAST_ROLLBACK: &str = "last_rollback";
const NEVER: &str = "never";
const VERSION: &str = "version";
const COMMIT_ID: &str = "commit_id";
const COMMITTED_TXNS: &str = "committed_txns";
const GC_BEFORE_MILLIS: &str = "gc_before_millis";

/// A larger definition is not written into roots: it would cost every commit more than a reader saves.
const INLINE_DEFINITION_MAX_SIZE_BYTES: usize = 2048;

/// A definition of an object that is larger is not written into roots, nor are more than about these bytes of them in all:
/// who reads a root reads them too.
pub const INLINE_OBJECT_MAX_SIZE_BYTES: usize = 2048;
pub const INLINE_OBJECTS_MAX_SIZE_BYTES: usize = 64 << 10;

/// Transaction property that says how a version was made where it was not made by messages.
pub const OPERATION_PROPERTY: &str = "trinitylake.operation";
pub const OPERATION_REGISTER: &str = "register";
pub const OPERATION_ROLLBACK: &str = "rollback";
/// The version is one of another lakehouse, with what differs there.
pub const OPERATION_EXPORT: &str = "export";
/// Transaction property of such a version: its number where it comes from.
pub const EXPORTED_VERSION_PROPERTY: &str = "trinitylake.exported-version";
/// The version was made of what was left after damage.
pub const OPERATION_REPAIR: &str = "repair";
/// Transaction property of a rollback: the version whose tree it brought back.
pub const ROLLBACK_TARGET_PROPERTY: &str = "trinitylake.rollback-target";

/// Transaction property: the id of the transaction that this one gives up, whose record it writes.
pub const ROLLED_BACK_PROPERTY: &str = "trinitylake.rolled-back";

/// Transaction property of a garbage collection: before which time of the store it deletes what no version reaches.
pub const COLLECTION_PROPERTY: &str = "trinitylake.collects-before";

/// A transaction as the version that committed it records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommittedTransaction {
    pub id: String,
    pub isolation: String,
    pub message: String,
    pub author: String,
    pub began_at_version: u64,
    pub properties: BTreeMap<String, String>,
    /// Ours, in the words of the library; entries of older releases have none.
    #[serde(skip_serializing_if = "Summary::is_empty")]
    pub summary: Summary,
}

/// The newest version, up to the one that says so, that a rollback of the lakehouse made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastRollback {
    /// A writer does not know the row, or followed one that does not.
    #[default]
    Unknown,
    Never,
    Version(u64),
}

impl CommittedTransaction {
    /// Its message, or its summary if it has none.
    pub fn description(&self) -> &str {
        if self.message.is_empty() { self.summary.as_str() } else { &self.message }
    }

    /// The id of the transaction that this one gave up.
    pub fn gives_up(&self) -> Option<&str> {
        self.properties.get(ROLLED_BACK_PROPERTY).map(String::as_str)
    }

    /// Time of the store before which a garbage collection deletes files; `None` for other transactions.
    pub fn collects_before_millis(&self) -> Option<u64> {
        self.properties.get(COLLECTION_PROPERTY)?.parse().ok()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootMetadata {
    pub version: u64,
    /// Fresh for every attempted commit.
    pub commit_id: String,
    pub created_at_millis: u64,
    /// Path of the lakehouse definition file.
    pub lakehouse_definition: String,
    pub inline_definition: Option<Bytes>,
    /// Definitions of objects, by path, whose files may not be there: all of those that this version names (format §4).
    /// Each is the content of the file at its path, checksum included.
    pub inline_definitions: BTreeMap<String, Bytes>,
    pub previous_root: Option<String>,
    pub rollback_from_root: Option<String>,
    pub last_rollback: LastRollback,
    /// In commit order.
    pub committed: Vec<CommittedTransaction>,
    /// The highest of this version and all before it: see [`COLLECTION_PROPERTY`].
    pub gc_before_millis: Option<u64>,
}

impl RootMetadata {
    /// Time of the store before which a garbage collection deletes files; `None` for other transactions.
    pub fn collects_before_millis(&self) -> Option<u64> {
        self.committed.iter().filter_map(CommittedTransaction::collects_before_millis).max()
    }

    /// Reads the system rows of the root of `version`. Only the definition is required of other writers.
    pub fn of(root: &Node, version: u64, path: &str) -> Result<RootMetadata> {
        let mut metadata = RootMetadata { version, ..RootMetadata::default() };
        let number = |key: &str, text: &str| -> Result<u64> {
            text.parse()
                .map_err(|_| Error::corrupt(path, format!("the system row {key} is {text:?}, not a number")))
        };
        for (key, value) in root.system_rows() {
            match key {
                VERSION if number(VERSION, value)? != version => {
                    return Err(Error::corrupt(
                        path,
                        format!("holds version {value}; its name says {version}: it was copied or renamed"),
                    ));
                }
                COMMIT_ID => metadata.commit_id = value.to_string(),
                CREATED_AT_MILLIS => metadata.created_at_millis = number(CREATED_AT_MILLIS, value)?,
                LAKEHOUSE_DEF => metadata.lakehouse_definition = value.to_string(),
                LAKEHOUSE_DEF_INLINE => metadata.inline_definition = from_hexadecimal(value).map(Bytes::from),
                // The page for browsers must stay small, and asks for one at a time (`held_definition`).
                #[cfg(not(target_family = "wasm"))]
                INLINE_DEFINITIONS => metadata.inline_definitions = from_row(value),
                PREVIOUS_ROOT => metadata.previous_root = Some(value.to_string()),
                ROLLBACK_FROM_ROOT => metadata.rollback_from_root = Some(value.to_string()),
                LAST_ROLLBACK if value == NEVER => metadata.last_rollback = LastRollback::Never,
                LAST_ROLLBACK => {
                    metadata.last_rollback = LastRollback::Version(number(LAST_ROLLBACK, value)?);
                }
                GC_BEFORE_MILLIS => metadata.gc_before_millis = Some(number(GC_BEFORE_MILLIS, value)?),
                COMMITTED_TXNS => {
                    metadata.committed = serde_json::from_str(value).map_err(|error| {
                        Error::corrupt(path, format!("the system row {COMMITTED_TXNS} is damaged: {error}"))
                    })?;
                }
                _ => {}
            }
        }
        if metadata.lakehouse_definition.is_empty() {
            return Err(Error::corrupt(
                path,
                format!("not a root node: the system row {LAKEHOUSE_DEF} is missing"),
            ));
        }
        Ok(metadata)
    }

    /// The inverse of [`RootMetadata::of`].
    pub fn system_rows(&self) -> Result<Vec<(&'static str, String)>> {
        let mut rows = vec![
            (LAKEHOUSE_DEF, self.lakehouse_definition.clone()),
            (CREATED_AT_MILLIS, self.created_at_millis.to_string()),
            (VERSION, self.version.to_string()),
            (COMMIT_ID, self.commit_id.clone()),
        ];
        let committed = serde_json::to_string(&self.committed).map_err(|error| {
            Error::InvalidArgument(format!("the transactions cannot be recorded: {error}"))
        })?;
        rows.push((COMMITTED_TXNS, committed));
        let optional = [
            (PREVIOUS_ROOT, self.previous_root.clone()),
            (ROLLBACK_FROM_ROOT, self.rollback_from_root.clone()),
            (LAST_ROLLBACK, self.last_rollback.row()),
            (GC_BEFORE_MILLIS, self.gc_before_millis.map(|millis| millis.to_string())),
            (LAKEHOUSE_DEF_INLINE, self.inline_definition.as_deref().and_then(lakehouse_row)),
            (INLINE_DEFINITIONS, to_row(&self.inline_definitions)),
        ];
        rows.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        Ok(rows)
    }

    /// The messages in the root's buffer that this version wrote, with which of its transactions did. They are all that
    /// it changed where [`RootMetadata::messages_tell_changes`].
    pub fn own_messages<'a>(&self, root: &'a Node) -> impl Iterator<Item = (MessageRef<'a>, usize)> {
        let position: HashMap<&str, usize> =
            self.committed.iter().enumerate().map(|(index, txn)| (txn.id.as_str(), index)).collect();
        root.messages().filter_map(move |message| Some((message, *position.get(message.txn)?)))
    }

    /// Whether the transaction is in this version.
    pub fn commits(&self, id: &str) -> bool {
        self.committed.iter().any(|transaction| transaction.id == id)
    }

    /// Whether the transaction was aborted in this version.
    pub fn gives_up(&self, id: &str) -> bool {
        self.committed.iter().any(|transaction| transaction.gives_up() == Some(id))
    }

    /// As the version after this one says it, if no rollback makes that.
    pub fn last_rollback_for_next(&self) -> LastRollback {
        match self.rollback_from_root {
            Some(_) => LastRollback::Version(self.version),
            None => self.last_rollback,
        }
    }

    /// The version whose tree this one has, if a rollback made it and says so.
    pub fn rollback_target(&self) -> Option<u64> {
        self.rollback_from_root.as_ref()?;
        self.committed.first()?.properties.get(ROLLBACK_TARGET_PROPERTY)?.parse().ok()
    }

    /// Whether the messages in the root's buffer say all that this version changed.
    pub fn messages_tell_changes(&self) -> bool {
        self.rollback_from_root.is_none()
            && !self.commit_id.is_empty()
            && self
                .committed
                .iter()
                .all(|transaction| !transaction.properties.contains_key(OPERATION_PROPERTY))
    }
}

impl LastRollback {
    fn row(self) -> Option<String> {
        match self {
            LastRollback::Unknown => None,
            LastRollback::Never => Some(NEVER.to_string()),
            LastRollback::Version(version) => Some(version.to_string()),
        }
    }
}

fn lakehouse_row(bytes: &[u8]) -> Option<String> {
    (bytes.len() <= INLINE_DEFINITION_MAX_SIZE_BYTES).then(|| to_hexadecimal(bytes))
}

/// A line for each: its path, a tab, its bytes in hexadecimal.
fn to_row(definitions: &BTreeMap<String, Bytes>) -> Option<String> {
    let lines = definitions.iter().map(|(path, bytes)| format!("{path}\t{}\n", to_hexadecimal(bytes)));
    (!definitions.is_empty()).then(|| lines.collect())
}

/// A line that is not an intact copy of the definition file at its path is left out.
fn from_row(row: &str) -> BTreeMap<String, Bytes> {
    let definitions = row.split('\n').filter_map(|line| {
        let (path, text) = line.split_once('\t')?;
        Some((path.to_string(), definition_of(path, text)?))
    });
    definitions.collect()
}

/// A definition by its path if the root holds it: one of [`RootMetadata::inline_definitions`].
pub fn held_definition(root: &Node, path: &str) -> Option<Bytes> {
    let (_, row) = root.system_rows().find(|(key, _)| *key == INLINE_DEFINITIONS)?;
    row.split('\n').find_map(|line| definition_of(path, line.strip_prefix(path)?.strip_prefix('\t')?))
}

fn definition_of(path: &str, hexadecimal: &str) -> Option<Bytes> {
    from_hexadecimal(hexadecimal).map(Bytes::from).filter(|file| is_intact_copy(path, file))
}

/// The number of lines of a root's row that are not intact copies of the files at their paths.
pub fn damaged_inline_definitions(row: &str) -> usize {
    row.split_terminator('\n').count() - from_row(row).len()
}

fn to_hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trinitylake_format::definition_file::encode_file;
    use trinitylake_format::key::ObjectKind;
    use trinitylake_format::node::codec::{Compression, decode, encode};
    use trinitylake_format::node::draft::Draft;
    use trinitylake_format::path::definition_path;

    #[test]
    fn hexadecimal_round_trips_and_refuses_damage() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hexadecimal(&to_hexadecimal(&bytes)), Some(bytes));
        assert_eq!(from_hexadecimal("abc"), None);
        assert_eq!(from_hexadecimal("zz"), None);
        assert_eq!(lakehouse_row(&vec![0; INLINE_DEFINITION_MAX_SIZE_BYTES + 1]), None);
    }

    #[test]
    fn definitions_in_a_root_have_the_right_checksum_and_path() {
        let path = |id| definition_path(ObjectKind::Table, "n", "t", uuid::Uuid::from_u128(id), 200);
        let (path, other) = (path(7), path(8));
        let bytes = encode_file(&path, b"a table");
        let held = BTreeMap::from([(path.clone(), bytes.clone())]);
        let row = to_row(&held).unwrap();
        assert_eq!((from_row(&row), damaged_inline_definitions(&row)), (held, 0));
        assert_eq!(to_row(&BTreeMap::new()), None);
        let root = |row: &str| {
            let system = [(INLINE_DEFINITIONS, row.to_string())];
            decode(encode(&system, &Draft::default(), 4, Compression::Zstd).unwrap().bytes, "root", None)
                .unwrap()
        };
        assert_eq!(held_definition(&root(&row), &path), Some(bytes.clone()));
        for absent in ["", "n.binpb", &other, &path[..path.len() - 1]] {
            assert_eq!(held_definition(&root(&row), absent), None, "{absent}");
        }
        let exchanged =
            to_row(&BTreeMap::from([(other.clone(), bytes.clone()), (path.clone(), bytes)])).unwrap();
        assert_eq!(from_row(&exchanged).into_keys().collect::<Vec<_>>(), [path]);
        assert_eq!(damaged_inline_definitions(&exchanged), 1);
        assert_eq!(held_definition(&root(&exchanged), &other), None);
        for damaged in ["a", "_lakehouse_def_x.binpb\t00\n", "a\tzz", "\n"] {
            assert_eq!((from_row(damaged).len(), damaged_inline_definitions(damaged)), (0, 1), "{damaged}");
        }
    }
}

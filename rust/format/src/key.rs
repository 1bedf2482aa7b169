//! Keys of objects in the tree (format §4). `object_name` defines which names are valid.
//!
//! A key is `<schema id><namespace, padded><name, padded>`. In bytewise order, all tables of a namespace are adjacent.
//! Sizes and padding are in bytes. Names are padded with spaces; no name begins or ends with a space.

use std::ops::Bound;

use crate::object_name::{PAD, check_name, check_namespace};
use crate::transaction_id::{TRANSACTION_ID_MAX_SIZE_BYTES, check_transaction_id};
use trinitylake_base::error::Result;

pub const SCHEMA_ID_SIZE_BYTES: usize = 4;
const PAD_BYTE: u8 = PAD as u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Namespace,
    Table,
    View,
    /// The record of a transaction id that the user chose.
    TransactionRecord,
}

impl ObjectKind {
    pub const ALL: [ObjectKind; 4] =
        [ObjectKind::Namespace, ObjectKind::Table, ObjectKind::View, ObjectKind::TransactionRecord];

    /// Schema id in base64 digits, most significant first, padded with `=`.
    pub fn prefix(self) -> &'static str {
        match self {
            ObjectKind::Namespace => "B===",
            ObjectKind::Table => "C===",
            ObjectKind::View => "D===",
            ObjectKind::TransactionRecord => "E===",
        }
    }

    /// Returns the kind of a whole key. The inverse of [`ObjectKind::prefix`].
    pub fn of_key(key: &str) -> Option<ObjectKind> {
        ObjectKind::ALL.into_iter().find(|kind| key.starts_with(kind.prefix()))
    }

    /// The word for this kind in file names, messages and the API.
    pub fn word(self) -> &'static str {
        match self {
            ObjectKind::Namespace => "namespace",
            ObjectKind::Table => "table",
            ObjectKind::View => "view",
            ObjectKind::TransactionRecord => "transaction",
        }
    }
}

/// The object that a key identifies. `namespace` is empty for transaction records, `name` for namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = self.kind.word();
        match self.kind {
            ObjectKind::Namespace => write!(f, "{word} {}", self.namespace),
            ObjectKind::TransactionRecord => write!(f, "{word} {}", self.name),
            ObjectKind::Table | ObjectKind::View => write!(f, "{word} {}.{}", self.namespace, self.name),
        }
    }
}

/// Maximum sizes of names in bytes; part of a lakehouse's definition and never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSizes {
    pub namespace: usize,
    pub table: usize,
    pub view: usize,
}

impl Default for NameSizes {
    fn default() -> Self {
        NameSizes { namespace: 100, table: 100, view: 100 }
    }
}

/// A contiguous range of keys: `start <= key`, and `key < end` if there is an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub start: String,
    pub end: Option<String>,
}

impl KeyRange {
    pub fn all() -> Self {
        KeyRange { start: String::new(), end: None }
    }

    /// Keys that start with `prefix`.
    pub fn prefix(prefix: &str) -> Self {
        KeyRange { start: prefix.to_string(), end: successor_of_prefix(prefix) }
    }

    pub fn contains(&self, key: &str) -> bool {
        self.start.as_str() <= key && self.end.as_deref().is_none_or(|end| key < end)
    }

    pub fn bounds(&self) -> (Bound<&str>, Bound<&str>) {
        let end = self.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(self.start.as_str()), end)
    }
}

/// Returns the smallest string that is greater than every string that starts with `prefix`.
fn successor_of_prefix(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // Bytewise order of UTF-8 is the order of code points. Surrogates are skipped, because they are not characters.
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            other => char::from_u32(other as u32 + 1),
        };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

/// Returns a name without its padding. Fast for padding that is longer than the name.
fn unpadded(padded: &str) -> &str {
    let mut rest = padded.as_bytes();
    while let Some((start, last)) = rest.split_last_chunk::<16>()
        && *last == [PAD_BYTE; 16]
    {
        rest = start;
    }
    let end = rest.iter().rposition(|byte| *byte != PAD_BYTE).map_or(0, |last| last + 1);
    &padded[..end]
}

impl NameSizes {
    pub fn namespace_key(&self, namespace: &str) -> Result<String> {
        check_namespace(namespace, self.namespace)?;
        Ok(self.build(ObjectKind::Namespace, &[(namespace, self.namespace)]))
    }

    pub fn table_key(&self, namespace: &str, table: &str) -> Result<String> {
        check_namespace(namespace, self.namespace)?;
        check_name("table", table, self.table)?;
        Ok(self.build(ObjectKind::Table, &[(namespace, self.namespace), (table, self.table)]))
    }

    pub fn view_key(&self, namespace: &str, view: &str) -> Result<String> {
        check_namespace(namespace, self.namespace)?;
        check_name("view", view, self.view)?;
        Ok(self.build(ObjectKind::View, &[(namespace, self.namespace), (view, self.view)]))
    }

    pub fn transaction_key(&self, id: &str) -> Result<String> {
        check_transaction_id(id)?;
        Ok(self.build(ObjectKind::TransactionRecord, &[(id, TRANSACTION_ID_MAX_SIZE_BYTES)]))
    }

    pub fn key(&self, kind: ObjectKind, namespace: &str, name: &str) -> Result<String> {
        match kind {
            ObjectKind::Namespace => self.namespace_key(namespace),
            ObjectKind::Table => self.table_key(namespace, name),
            ObjectKind::View => self.view_key(namespace, name),
            ObjectKind::TransactionRecord => self.transaction_key(name),
        }
    }

    fn build(&self, kind: ObjectKind, parts: &[(&str, usize)]) -> String {
        let size = SCHEMA_ID_SIZE_BYTES + parts.iter().map(|(_, size)| size).sum::<usize>();
        let mut key = String::with_capacity(size);
        key.push_str(kind.prefix());
        for (part, size) in parts {
            key.push_str(part);
            key.extend(std::iter::repeat_n(PAD, size - part.len()));
        }
        key
    }

    /// Size of a key of this kind in bytes.
    pub fn key_size_bytes(&self, kind: ObjectKind) -> usize {
        SCHEMA_ID_SIZE_BYTES
            + match kind {
                ObjectKind::Namespace => self.namespace,
                ObjectKind::Table => self.namespace + self.table,
                ObjectKind::View => self.namespace + self.view,
                ObjectKind::TransactionRecord => TRANSACTION_ID_MAX_SIZE_BYTES,
            }
    }

    /// The inverse of [`NameSizes::key`]; `None` if the key is invalid in this lakehouse.
    pub fn decode(&self, key: &str) -> Option<ObjectName> {
        let (kind, namespace, name) = self.decode_parts(key)?;
        Some(ObjectName { kind, namespace: namespace.to_string(), name: name.to_string() })
    }

    /// Like [`NameSizes::decode`], but without copying: returns kind, namespace and name.
    pub fn decode_parts<'a>(&self, key: &'a str) -> Option<(ObjectKind, &'a str, &'a str)> {
        let kind = ObjectKind::of_key(key)?;
        if key.len() != self.key_size_bytes(kind) {
            return None;
        }
        let body = &key[SCHEMA_ID_SIZE_BYTES..];
        match kind {
            ObjectKind::Namespace => Some((kind, unpadded(body), "")),
            ObjectKind::TransactionRecord => Some((kind, "", unpadded(body))),
            ObjectKind::Table | ObjectKind::View => {
                let (namespace, name) = body.split_at_checked(self.namespace)?;
                Some((kind, unpadded(namespace), unpadded(name)))
            }
        }
    }

    /// All tables or views of a namespace, or of the whole lakehouse.
    pub fn objects_in(&self, kind: ObjectKind, namespace: Option<&str>) -> Result<KeyRange> {
        let Some(namespace) = namespace else { return Ok(KeyRange::prefix(kind.prefix())) };
        check_namespace(namespace, self.namespace)?;
        Ok(KeyRange::prefix(&self.build(kind, &[(namespace, self.namespace)])))
    }

    /// All namespaces below a parent, at any depth, or of the whole lakehouse.
    pub fn namespaces_below(&self, parent: Option<&str>) -> Result<KeyRange> {
        let prefix = ObjectKind::Namespace.prefix();
        let Some(parent) = parent else { return Ok(KeyRange::prefix(prefix)) };
        check_namespace(parent, self.namespace)?;
        Ok(KeyRange::prefix(&format!("{prefix}{parent}.")))
    }
}

#[cfg(test)]
mod tests;

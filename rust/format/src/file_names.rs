//! Names of the files of a lakehouse, relative to its root (format §3).
//!
//! Each function that builds a name is next to its inverse, which is used for files found in a listing. Readers of a
//! tree do not parse names, but follow the paths stored in the tree.

use std::fmt::Write;

use uuid::Uuid;

use crate::key::ObjectKind;
use crate::optimized_path::{OPTIMIZED_PREFIX_SIZE_BYTES, after_prefix, optimize};

pub const LATEST_HINT_PATH: &str = "_latest_hint.txt";
pub const EXPIRED_PREFIX: &str = "_expired/";
pub const TRANSACTION_PREFIX: &str = "_txn/";
pub const INTENT_PREFIX: &str = "_queue/";
pub const GC_MARKER_PREFIX: &str = "_collecting/";
/// Lowest sequence number in the name of a record of a transaction id. Saved states of transactions have lower numbers.
pub const FIRST_RECORD_SEQUENCE: u64 = 1 << 63;
pub const LAKEHOUSE_DEFINITION_PREFIX: &str = "_lakehouse_def_";

/// Maximum size of a path segment in common file systems.
pub(crate) const SEGMENT_MAX_SIZE_BYTES: usize = 255;
const ROOT_DIGITS_MIN: usize = 32;
const ROOT_DIGITS_MAX: usize = 63;
/// The highest possible version.
pub const VERSION_MAX: u64 = (1 << ROOT_DIGITS_MAX) - 1;
const ROOT_SUFFIX: &str = ".arrow";
/// Suffix of roots in format revision 000.
const ROOT_SUFFIX_000: &str = ".ipc";
const DEFINITION_SUFFIX: &str = ".binpb";
const UUID_SIZE_BYTES: usize = 36;

/// Parses a UUID in the form that file names have: lower case, with dashes. The parser of the `uuid` crate accepts
/// other forms as well, and would make the WebAssembly build larger.
pub(crate) fn parse_id(text: &str) -> Option<Uuid> {
    let mut bits: u128 = 0;
    for (position, byte) in text.bytes().enumerate() {
        let digit = match (position, byte) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => byte - b'0',
            (_, b'a'..=b'f') => byte - b'a' + 10,
            _ => return None,
        };
        bits = bits << 4 | u128::from(digit);
    }
    (text.len() == UUID_SIZE_BYTES).then(|| Uuid::from_u128(bits))
}

/// Returns the path of the root file of a version. The name has the binary digits of the version in reverse order,
/// padded to 32 digits with zeros at the end, so that names of adjacent versions differ in their first characters.
pub fn root_path(version: u64) -> String {
    root_name(version, ROOT_SUFFIX)
}

/// Returns the path of a root file in format revision 000. Lakehouses of that revision can still be read.
pub fn root_path_000(version: u64) -> String {
    root_name(version, ROOT_SUFFIX_000)
}

fn root_name(version: u64, suffix: &str) -> String {
    let mut name = String::with_capacity(48);
    name.push('_');
    let mut rest = version;
    let mut digits = 0;
    while rest > 0 || digits < ROOT_DIGITS_MIN {
        name.push(if rest & 1 == 1 { '1' } else { '0' });
        rest >>= 1;
        digits += 1;
    }
    name.push_str(suffix);
    name
}

/// The inverse of [`root_path`] and of [`root_path_000`].
pub fn root_version(path: &str) -> Option<u64> {
    let digits = path.strip_prefix('_')?;
    let digits = digits.strip_suffix(ROOT_SUFFIX).or_else(|| digits.strip_suffix(ROOT_SUFFIX_000))?;
    if digits.len() < ROOT_DIGITS_MIN || digits.len() > ROOT_DIGITS_MAX {
        return None;
    }
    let mut version = 0u64;
    for (power, digit) in digits.bytes().enumerate() {
        match digit {
            b'1' => version |= 1 << power,
            b'0' => {}
            _ => return None,
        }
    }
    // A name of more than 32 digits that ends with padding would be a second name of the same version.
    (digits.len() == ROOT_DIGITS_MIN || digits.ends_with('1')).then_some(version)
}

/// Returns the path of a new node that is not a root.
pub fn node_path(id: Uuid) -> String {
    optimize(&format!("node-{id}.arrow"))
}

/// The inverse of [`node_path`].
pub fn node_id(path: &str) -> Option<Uuid> {
    parse_id(after_prefix(path)?.strip_prefix("node-")?.strip_suffix(".arrow")?)
}

/// Returns the path of a new definition: `<kind>-<name>-<namespace>-<uuid>.binpb`, as an optimized path. A name that
/// would make the path longer than `max_size_bytes` is truncated; the id keeps the path unique.
pub fn definition_path(kind: ObjectKind, namespace: &str, name: &str, id: Uuid, max_size_bytes: usize) -> String {
    let fixed = OPTIMIZED_PREFIX_SIZE_BYTES + kind.word().len() + 2 + UUID_SIZE_BYTES + DEFINITION_SUFFIX.len();
    let segment = SEGMENT_MAX_SIZE_BYTES + OPTIMIZED_PREFIX_SIZE_BYTES - 9;
    let room = max_size_bytes.min(segment).saturating_sub(fixed);
    let mut text = String::with_capacity(fixed + name.len() + namespace.len() + 1);
    text.push_str(kind.word());
    text.push('-');
    let start = text.len();
    match kind {
        ObjectKind::Namespace => {}
        ObjectKind::Table | ObjectKind::View | ObjectKind::TransactionRecord => {
            text.push_str(name);
            text.push('-');
        }
    }
    text.push_str(namespace);
    text.truncate(start + cut(&text[start..], room).len());
    text.push('-');
    text.push_str(id.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()));
    text.push_str(DEFINITION_SUFFIX);
    optimize(&text)
}

/// Returns the kind and the id in a path from [`definition_path`]. The names of the object cannot be recovered, because
/// they may have been truncated and may contain dashes.
pub fn definition_id(path: &str) -> Option<(ObjectKind, Uuid)> {
    let name = after_prefix(path)?.strip_suffix(DEFINITION_SUFFIX)?;
    let (start, id) = name.split_at_checked(name.len().checked_sub(UUID_SIZE_BYTES)?)?;
    let start = start.strip_suffix('-')?;
    let kind = ObjectKind::ALL
        .into_iter()
        .find(|kind| start.strip_prefix(kind.word()).is_some_and(|rest| rest.starts_with('-')))?;
    Some((kind, parse_id(id)?))
}

/// The longest prefix of `text` with at most `size_bytes` bytes that ends between two characters.
pub(crate) fn cut(text: &str, size_bytes: usize) -> &str {
    let mut end = size_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub fn lakehouse_definition_path(id: Uuid) -> String {
    format!("{LAKEHOUSE_DEFINITION_PREFIX}{id}{DEFINITION_SUFFIX}")
}

/// The inverse of [`lakehouse_definition_path`].
pub fn lakehouse_definition_id(path: &str) -> Option<Uuid> {
    parse_id(path.strip_prefix(LAKEHOUSE_DEFINITION_PREFIX)?.strip_suffix(DEFINITION_SUFFIX)?)
}

/// Returns the path of a boundary file. If the file exists, all versions below `version` have expired.
pub fn boundary_path(version: u64) -> String {
    format!("{EXPIRED_PREFIX}{version:020}")
}

/// The inverse of [`boundary_path`].
pub fn boundary_version(path: &str) -> Option<u64> {
    twenty_digits(path.strip_prefix(EXPIRED_PREFIX)?)
}

/// Returns the path of a saved state of a transaction, or of a record of its id.
pub fn transaction_path(id: &str, sequence: u64) -> String {
    let mut path = String::with_capacity(TRANSACTION_PREFIX.len() + id.len() + 27);
    // Writing to a String cannot fail.
    let _ = write!(path, "{TRANSACTION_PREFIX}{id}/{sequence:020}{DEFINITION_SUFFIX}");
    path
}

/// The inverse of [`transaction_path`].
pub fn transaction_file(path: &str) -> Option<(&str, u64)> {
    let (id, file) = path.strip_prefix(TRANSACTION_PREFIX)?.split_once('/')?;
    Some((id, twenty_digits(file.strip_suffix(DEFINITION_SUFFIX)?)?))
}

/// Whether the file is a saved state of a transaction, and not a record of a transaction id.
pub fn is_saved_state(path: &str) -> bool {
    transaction_file(path).is_some_and(|(_, sequence)| sequence < FIRST_RECORD_SEQUENCE)
}

/// Returns the path of an intent. `table` is the id of the table for which the intent waits in the queue, if it waits
/// for one table. Paths sort by time.
pub fn intent_path(now_millis: u64, id: Uuid, table: Option<Uuid>) -> String {
    let table = table.map_or(String::new(), |table| format!("-{table}"));
    format!("{INTENT_PREFIX}{now_millis:020}-{id}{table}{DEFINITION_SUFFIX}")
}

/// The inverse of [`intent_path`]. Returns the creation time in milliseconds since 1970, the id of the intent, and the
/// id of the table.
pub fn intent_file(path: &str) -> Option<(u64, Uuid, Option<Uuid>)> {
    let name = path.strip_prefix(INTENT_PREFIX)?.strip_suffix(DEFINITION_SUFFIX)?;
    let (millis, ids) = name.split_once('-')?;
    let (id, table) = ids.split_at_checked(36)?;
    let table = match table.strip_prefix('-') {
        Some(table) => Some(parse_id(table)?),
        None if table.is_empty() => None,
        None => return None,
    };
    Some((twenty_digits(millis)?, parse_id(id)?, table))
}

/// Returns the path of the marker of a garbage collection, which deletes unreferenced files that were written before
/// this time of the store.
pub fn gc_marker_path(before_millis: u64, id: Uuid) -> String {
    format!("{GC_MARKER_PREFIX}{before_millis:020}-{id}")
}

/// The inverse of [`gc_marker_path`].
pub fn gc_marker(path: &str) -> Option<(u64, Uuid)> {
    let (millis, id) = path.strip_prefix(GC_MARKER_PREFIX)?.split_once('-')?;
    Some((twenty_digits(millis)?, parse_id(id)?))
}

fn twenty_digits(text: &str) -> Option<u64> {
    (text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;

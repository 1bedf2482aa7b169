//! Names of the files of a lakehouse, relative to its root (format §3).
//!
//! Each builder of a name that readers must understand stands beside its inverse. Optimised paths have
//! none: a reader follows them as they are stored and never takes them apart.

use std::fmt::Write;

use uuid::Uuid;

use crate::key::ObjectKind;

pub const LATEST_HINT_PATH: &str = "_latest_hint.txt";
pub const EXPIRED_PREFIX: &str = "_expired/";
pub const TRANSACTION_PREFIX: &str = "_txn/";
pub const INTENT_PREFIX: &str = "_queue/";
pub const LAKEHOUSE_DEFINITION_PREFIX: &str = "_lakehouse_def_";

/// `aaaa/bbbb/cccc/dddddddd-`, which [`optimize`] puts in front of a path.
const OPTIMIZED_PREFIX_SIZE_BYTES: usize = 24;
/// No common file system takes a longer name between two slashes.
const SEGMENT_MAX_SIZE_BYTES: usize = 255;
const ROOT_DIGITS_MIN: usize = 32;
const ROOT_DIGITS_MAX: usize = 63;

/// Spreads files over 2^20 prefixes: the 20 low bits of MurmurHash3 x86 32 (seed 0) of the path, in
/// groups of 4, 4, 4 and 8 digits, then the path with its slashes made dashes.
pub fn optimize(path: &str) -> String {
    let mut optimized = Vec::with_capacity(OPTIMIZED_PREFIX_SIZE_BYTES + path.len());
    optimize_into(path, &mut optimized);
    // The input is UTF-8 and only ASCII bytes were added or exchanged.
    String::from_utf8(optimized).unwrap_or_default()
}

/// [`optimize`], appended to `output`, for batches.
pub fn optimize_into(path: &str, output: &mut Vec<u8>) {
    let hash = mur3::murmurhash3_x86_32(path.as_bytes(), 0) as usize;
    let mut prefix = *b"0000/0000/0000/00000000-";
    for (position, shift) in [(0, 16), (5, 12), (10, 8), (15, 4), (19, 0)] {
        prefix[position..position + 4].copy_from_slice(&FOUR_DIGITS[hash >> shift & 15]);
    }
    output.extend_from_slice(&prefix);
    let flattened = output.len();
    output.extend_from_slice(path.as_bytes());
    // Without a branch, so that it is done for many bytes at once.
    for byte in &mut output[flattened..] {
        *byte = if *byte == b'/' { b'-' } else { *byte };
    }
}

/// The binary digits of 0 to 15.
const FOUR_DIGITS: [[u8; 4]; 16] = {
    let mut digits = [[b'0'; 4]; 16];
    let mut number = 0;
    while number < 16 {
        let mut bit = 0;
        while bit < 4 {
            digits[number][bit] += (number >> (3 - bit) & 1) as u8;
            bit += 1;
        }
        number += 1;
    }
    digits
};

/// Root node file of a version: its binary digits reversed, padded to 32 with zeros at the end, so that
/// neighbouring versions differ in their first characters.
pub fn root_path(version: u64) -> String {
    let mut name = String::with_capacity(48);
    name.push('_');
    let mut rest = version;
    let mut digits = 0;
    while rest > 0 || digits < ROOT_DIGITS_MIN {
        name.push(if rest & 1 == 1 { '1' } else { '0' });
        rest >>= 1;
        digits += 1;
    }
    name.push_str(".arrow");
    name
}

/// The inverse of [`root_path`]. Also takes the `.ipc` of format revision 000.
pub fn root_version(path: &str) -> Option<u64> {
    let digits = path.strip_prefix('_')?;
    let digits = digits.strip_suffix(".arrow").or_else(|| digits.strip_suffix(".ipc"))?;
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
    // Beyond 32 digits a padded name would be a second name of the same version.
    (digits.len() == ROOT_DIGITS_MIN || digits.ends_with('1')).then_some(version)
}

/// A fresh non-root node file.
pub fn node_path(id: Uuid) -> String {
    optimize(&format!("node-{id}.arrow"))
}

/// A fresh definition file: `<kind>-<name>-<namespace>-<uuid>.binpb`, optimised. A name that would make
/// the path longer than `max_size_bytes` is cut; the id keeps the path unique.
pub fn definition_path(
    kind: ObjectKind,
    namespace: &str,
    name: &str,
    id: Uuid,
    max_size_bytes: usize,
) -> String {
    let identifier = match kind {
        ObjectKind::Namespace => namespace.to_string(),
        ObjectKind::Table | ObjectKind::View | ObjectKind::TransactionRecord => format!("{name}-{namespace}"),
    };
    let fixed = OPTIMIZED_PREFIX_SIZE_BYTES + kind.word().len() + 2 + 36 + ".binpb".len();
    let segment = SEGMENT_MAX_SIZE_BYTES + OPTIMIZED_PREFIX_SIZE_BYTES - 9;
    let room = max_size_bytes.min(segment).saturating_sub(fixed);
    let identifier = cut(&identifier, room);
    optimize(&format!("{}-{identifier}-{id}.binpb", kind.word()))
}

/// The longest start of `text` that has at most `size_bytes` bytes and ends between two characters.
fn cut(text: &str, size_bytes: usize) -> &str {
    let mut end = size_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The directory of a managed table's files: `<namespace>/<table>-<8 hex digits of its id>` (format §9).
/// What could not be a segment of a path is replaced: the id keeps the directory unique.
pub fn table_location(namespace: &str, name: &str, id: &str) -> String {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    let room = SEGMENT_MAX_SIZE_BYTES - digits.len() - 1;
    format!(
        "{}/{}-{digits}",
        cut(&plain_segment(namespace), SEGMENT_MAX_SIZE_BYTES),
        cut(&plain_segment(name), room)
    )
}

/// A segment that every store, URI parser and engine reads alike.
fn plain_segment(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .collect();
    // A leading underscore or dot is where the format keeps its own files.
    if plain.starts_with(['.', '_']) { format!("-{}", &plain[1..]) } else { plain }
}

pub fn lakehouse_definition_path(id: Uuid) -> String {
    format!("{LAKEHOUSE_DEFINITION_PREFIX}{id}.binpb")
}

/// Name under `_expired/` that says: roots below `version` are gone or doomed.
pub fn boundary_path(version: u64) -> String {
    format!("{EXPIRED_PREFIX}{version:020}")
}

/// The inverse of [`boundary_path`].
pub fn boundary_version(path: &str) -> Option<u64> {
    twenty_digits(path.strip_prefix(EXPIRED_PREFIX)?)
}

/// File of a distributed transaction, or the record of a committed one.
pub fn transaction_path(id: &str, sequence: u64) -> String {
    let mut path = String::with_capacity(TRANSACTION_PREFIX.len() + id.len() + 27);
    // Writing to a String cannot fail.
    let _ = write!(path, "{TRANSACTION_PREFIX}{id}/{sequence:020}.binpb");
    path
}

/// The inverse of [`transaction_path`].
pub fn transaction_file(path: &str) -> Option<(&str, u64)> {
    let (id, file) = path.strip_prefix(TRANSACTION_PREFIX)?.split_once('/')?;
    Some((id, twenty_digits(file.strip_suffix(".binpb")?)?))
}

/// File of transactions that wait to be put into a root. Sorts by time.
pub fn intent_path(now_millis: u64, id: Uuid) -> String {
    format!("{INTENT_PREFIX}{now_millis:020}-{id}.binpb")
}

fn twenty_digits(text: &str) -> Option<u64> {
    (text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;

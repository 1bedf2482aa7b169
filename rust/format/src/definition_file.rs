//! Definition files: a protobuf message behind two fields that protect it (format §6).
//!
//! The first field is the XXH3-64 of everything after it, the second one the path of the file. Readers that do not know
//! these fields skip them, as protobuf requires. A file of another implementation may lack them, and is read without
//! verification.

use bytes::Bytes;
use prost::encoding::encode_varint;
use xxhash_rust::xxh3::xxh3_64;

use trinitylake_base::error::{Error, Result};

/// Tag of the field `checksum`: number 1008, type fixed64.
const CHECKSUM_TAG: [u8; 2] = [0x81, 0x3F];
/// Tag of the field `path`: number 1009, type string.
const PATH_TAG: [u8; 2] = [0x8A, 0x3F];
const CHECKSUM_SIZE_BYTES: usize = 8;
const PATH_FIELD_START: usize = CHECKSUM_TAG.len() + CHECKSUM_SIZE_BYTES;

/// Returns the content of a definition file at `path` with this message.
pub fn encode_file(path: &str, message: &[u8]) -> Bytes {
    let path_field = path_field(path);
    let mut file = Vec::with_capacity(PATH_FIELD_START + path_field.len() + message.len());
    file.extend(CHECKSUM_TAG);
    file.extend([0; CHECKSUM_SIZE_BYTES]);
    file.extend(path_field);
    file.extend(message);
    let checksum = xxh3_64(&file[PATH_FIELD_START..]);
    file[CHECKSUM_TAG.len()..PATH_FIELD_START].copy_from_slice(&checksum.to_le_bytes());
    file.into()
}

/// Returns the message in the definition file at `path`. `CorruptFile` if it is damaged or has another path.
pub fn decode_file(path: &str, file: &Bytes) -> Result<Bytes> {
    // An empty message is valid protobuf, but every definition has at least a name or an id.
    if file.is_empty() {
        return Err(Error::corrupt(path, "the definition file is empty"));
    }
    if !is_protected(path, file) {
        return Ok(file.clone());
    }
    let damaged = || Error::corrupt(path, "the checksum of the definition file does not match its content");
    let after_tag = file.strip_prefix(&CHECKSUM_TAG).ok_or_else(damaged)?;
    let (checksum, covered) = after_tag.split_first_chunk::<CHECKSUM_SIZE_BYTES>().ok_or_else(damaged)?;
    if xxh3_64(covered) != u64::from_le_bytes(*checksum) {
        return Err(damaged());
    }
    let message = covered
        .strip_prefix(path_field(path).as_slice())
        .ok_or_else(|| Error::corrupt(path, "the definition file was written for another path"))?;
    Ok(file.slice_ref(message))
}

/// Whether the file has a checksum and a path, and both are correct.
pub fn is_intact_copy(path: &str, file: &Bytes) -> bool {
    is_protected(path, file) && decode_file(path, file).is_ok()
}

/// Whether the file begins with one of the two fields. One field is sufficient, because the tag of the other field may
/// be damaged.
fn is_protected(path: &str, file: &[u8]) -> bool {
    let has_path = file.get(PATH_FIELD_START..).is_some_and(|rest| rest.starts_with(&path_field(path)));
    has_path || file.starts_with(&CHECKSUM_TAG)
}

fn path_field(path: &str) -> Vec<u8> {
    let mut field = Vec::with_capacity(PATH_TAG.len() + 2 + path.len());
    field.extend(PATH_TAG);
    encode_varint(path.len() as u64, &mut field);
    field.extend(path.as_bytes());
    field
}

#[cfg(test)]
mod tests;

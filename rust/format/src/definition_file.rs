//! Definition files: a protobuf message behind two fields that protect it (format §6).
//!
//! The first field is the XXH3-64 of everything after it, the second one the path of the file. Readers that do not know
//! these fields skip them, as protobuf requires. A file without them was written by another implementation and is read
//! without verification.

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

/// The content of the definition file at `path` with this message.
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

/// The message of the definition file at `path`. `CorruptFile` if the file was damaged or written for another path.
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

/// Whether the file begins with one of the two fields. One is sufficient, so that damage to the tag of the other is
/// detected.
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
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::definition::proto::NamespaceDef;

    const PATH: &str = "0000/0001/0010/00000011-namespace-n-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.binpb";

    fn definition() -> NamespaceDef {
        let properties = [("owner".to_string(), "alice".to_string())].into();
        NamespaceDef { id: "6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8".into(), properties }
    }

    #[test]
    fn files_round_trip_and_plain_protobuf_readers_skip_the_protection() {
        let message = definition().encode_to_vec();
        let file = encode_file(PATH, &message);
        assert_eq!(decode_file(PATH, &file).unwrap(), message);
        assert_eq!(NamespaceDef::decode(file.clone()).unwrap(), definition());
        assert!(is_intact_copy(PATH, &file));
    }

    #[test]
    fn files_of_other_implementations_are_read_as_they_are() {
        let message = Bytes::from(definition().encode_to_vec());
        assert_eq!(decode_file(PATH, &message).unwrap(), message);
        assert!(!is_intact_copy(PATH, &message));
        assert!(decode_file(PATH, &Bytes::new()).is_err());
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_corruption() {
        let file = encode_file(PATH, &definition().encode_to_vec());
        for bit in 0..file.len() * 8 {
            let mut damaged = file.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = decode_file(PATH, &damaged.into()).unwrap_err();
            assert!(matches!(error, Error::CorruptFile { path, .. } if path == PATH), "bit {bit}");
        }
        for size in [0, 2, 9, PATH_FIELD_START, file.len() - 1] {
            assert!(decode_file(PATH, &file.slice(..size)).is_err(), "{size} bytes");
        }
    }

    #[test]
    fn the_file_of_another_object_is_corruption() {
        let other = PATH.replace("namespace-n", "table-t-n");
        let file = encode_file(&other, &definition().encode_to_vec());
        assert!(matches!(decode_file(PATH, &file), Err(Error::CorruptFile { .. })));
    }
}

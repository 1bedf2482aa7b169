use prost::Message as _;

use super::*;
use crate::lakehouse_definition::proto::NamespaceDef;

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

use super::*;
use trinitylake_format::definition_file::encode_file;
use trinitylake_format::file_names::definition_path;
use trinitylake_format::key::ObjectKind;
use trinitylake_format::node::codec::{Compression, decode, encode};
use trinitylake_format::node::mutable_node::MutableNode;

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
        decode(encode(&system, &MutableNode::default(), 4, Compression::Zstd).unwrap().bytes, "root", None).unwrap()
    };
    assert_eq!(held_definition(&root(&row), &path), Some(bytes.clone()));
    for absent in ["", "n.binpb", &other, &path[..path.len() - 1]] {
        assert_eq!(held_definition(&root(&row), absent), None, "{absent}");
    }
    let exchanged = to_row(&BTreeMap::from([(other.clone(), bytes.clone()), (path.clone(), bytes)])).unwrap();
    assert_eq!(from_row(&exchanged).into_keys().collect::<Vec<_>>(), [path]);
    assert_eq!(damaged_inline_definitions(&exchanged), 1);
    assert_eq!(held_definition(&root(&exchanged), &other), None);
    for damaged in ["a", "_lakehouse_def_x.binpb\t00\n", "a\tzz", "\n"] {
        assert_eq!((from_row(damaged).len(), damaged_inline_definitions(damaged)), (0, 1), "{damaged}");
    }
}

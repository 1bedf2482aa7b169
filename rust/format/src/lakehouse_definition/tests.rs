use super::*;

#[test]
fn unset_fields_have_the_defaults_of_the_format() {
    let definition = LakehouseDefinition::encode(proto::LakehouseDef::default());
    assert_eq!(definition.order(), 128);
    assert_eq!(definition.name_sizes(), NameSizes { namespace: 100, table: 100, view: 100 });
    assert_eq!(definition.node_file_max_size_bytes(), 1_048_576);
    assert_eq!(definition.minimum_versions_to_keep(), 3);
}

#[test]
fn a_newer_major_version_is_refused() {
    let newer = proto::LakehouseDef { major_version: MAJOR_VERSION + 1, ..Default::default() };
    let error = LakehouseDefinition::decode(newer.encode_to_vec().into(), "d").unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion(_)), "{error}");
}

#[test]
fn damaged_bytes_are_a_corrupt_file() {
    let error = LakehouseDefinition::decode(Bytes::from_static(b"\xff\xff\xff"), "d").unwrap_err();
    assert!(matches!(error, Error::CorruptFile { .. }), "{error}");
}

#[test]
fn unknown_fields_survive() {
    let mut bytes = proto::LakehouseDef { name: "lake".into(), ..Default::default() }.encode_to_vec();
    bytes.extend_from_slice(&[0xF8, 0x07, 0x2A]); // field 127, varint 42
    let definition = LakehouseDefinition::decode(bytes.clone().into(), "d").unwrap();
    assert_eq!(definition.bytes().as_ref(), bytes);
}

#[test]
fn a_place_is_recorded_over_an_older_one_and_unknown_fields_survive() {
    let mut bytes = proto::LakehouseDef {
        name: "lake".into(),
        root_uri: "file:///first/".into(),
        former_root_uris: vec!["file:///zero/".into()],
        ..Default::default()
    }
    .encode_to_vec();
    bytes.extend_from_slice(&[0xF8, 0x07, 0x2A]); // field 127, varint 42
    let definition = LakehouseDefinition::decode(bytes.into(), "d").unwrap();
    let moved = definition.placed_at("s3://bucket/lake/", &["file:///first/".to_string()]).unwrap();
    assert_eq!(moved.name(), "lake");
    assert_eq!(moved.root_uri(), Some("s3://bucket/lake/"));
    assert_eq!(moved.former_root_uris(), ["file:///first/"]);
    assert!(moved.bytes().windows(3).any(|bytes| bytes == [0xF8, 0x07, 0x2A]));
}

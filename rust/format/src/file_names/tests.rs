//! Names of files: fixed examples, inverse functions, limits.

use proptest::prelude::*;

use super::*;

#[test]
fn root_paths_have_golden_values() {
    assert_eq!(root_path(0), format!("_{}.arrow", "0".repeat(32)));
    assert_eq!(root_path(1), format!("_1{}.arrow", "0".repeat(31)));
    assert_eq!(root_path(100), "_00100110000000000000000000000000.arrow");
    assert_eq!(root_path(u32::MAX.into()), format!("_{}.arrow", "1".repeat(32)));
}

/// Versions of 2^32 and above have longer names, which can be parsed (failure mode 13).
#[test]
fn root_paths_grow_beyond_32_digits() {
    assert_eq!(root_path(1 << 32), format!("_{}1.arrow", "0".repeat(32)));
    assert_eq!(root_path((1 << 63) - 1), format!("_{}.arrow", "1".repeat(63)));
    for version in [1 << 32, (1 << 32) + 1, (1 << 62) + 5, (1 << 63) - 1] {
        assert_eq!(root_version(&root_path(version)), Some(version));
    }
}

#[test]
fn root_names_of_the_older_revision_are_read() {
    let name = "_00100110000000000000000000000000.ipc";
    assert_eq!(root_version(name), Some(100));
    assert_eq!(root_path_000(100), name);
}

#[test]
fn similar_names_are_not_parsed() {
    let id = "01234567-89ab-4def-8123-456789abcdef";
    let prefix = "0000/0000/0000/00000000-";
    assert!(node_id(&format!("{prefix}node-{id}.arrow")).is_some());
    for name in [
        format!("{prefix}node-{}.arrow", id.to_uppercase()),
        format!("{prefix}node-{id}"),
        format!("{prefix}a/node-{id}.arrow"),
        format!("0000/0000/0000/00000002-node-{id}.arrow"),
        format!("node-{id}.arrow"),
        "é".repeat(20),
        String::new(),
    ] {
        assert_eq!(node_id(&name), None, "{name}");
    }
    assert!(definition_id(&format!("{prefix}view-a-b-{id}.binpb")).is_some());
    for name in [format!("{prefix}views-a-{id}.binpb"), format!("{prefix}view{id}.binpb"), format!("{prefix}.binpb")] {
        assert_eq!(definition_id(&name), None, "{name}");
    }
    // Forms that a UUID parser accepts, but names do not have.
    for other in [
        format!("{{{id}}}"),
        format!("urn:uuid:{id}"),
        id.replace('-', ""),
        id.replacen('-', "0", 1),
        id.replacen('0', "g", 1),
        format!("{}-", &id[..35]),
        format!("{id}0"),
        id[1..].to_string(),
    ] {
        assert_eq!(lakehouse_definition_id(&format!("_lakehouse_def_{other}.binpb")), None, "{other}");
    }
    assert_eq!(intent_file(&format!("_queue/1-{id}.binpb")), None);
    assert_eq!(lakehouse_definition_id("_lakehouse_def_.binpb"), None);
}

#[test]
fn root_names_that_are_not_canonical_are_refused() {
    let zeros = "0".repeat(32);
    for name in [
        "".to_string(),
        "_.arrow".into(),
        format!("{zeros}.arrow"),
        format!("_{zeros}"),
        format!("_{zeros}.parquet"),
        format!("_{}.arrow", "0".repeat(31)),
        // A second name of version 0.
        format!("_{zeros}0.arrow"),
        format!("_{zeros}10.arrow"),
        format!("_{}1.arrow", "0".repeat(63)),
        format!("_{}2.arrow", "0".repeat(31)),
        format!("_{}-.arrow", "0".repeat(31)),
        format!("_{}é.arrow", "0".repeat(30)),
        format!("a/_{zeros}.arrow"),
        LATEST_HINT_PATH.into(),
    ] {
        assert_eq!(root_version(&name), None, "{name}");
    }
}

#[test]
fn neighbouring_roots_differ_in_their_first_characters() {
    let starts: std::collections::HashSet<String> = (0..64).map(|v| root_path(v)[..7].to_string()).collect();
    assert_eq!(starts.len(), 64);
}

#[test]
fn boundaries_and_transaction_files_have_golden_values() {
    assert_eq!(boundary_path(42), "_expired/00000000000000000042");
    assert_eq!(boundary_version("_expired/00000000000000000042"), Some(42));
    for name in ["_expired/42", "_expired/", "00000000000000000042", "_expired/0000000000000000004x"] {
        assert_eq!(boundary_version(name), None, "{name}");
    }
    assert_eq!(boundary_version("_expired/99999999999999999999"), None, "above 64 bits");
    assert_eq!(transaction_path("tx.1", 7), "_txn/tx.1/00000000000000000007.binpb");
    assert_eq!(transaction_file("_txn/tx.1/00000000000000000007.binpb"), Some(("tx.1", 7)));
    for name in ["_txn/tx.1", "_txn/tx.1/7.binpb", "_txn/tx.1/00000000000000000007", "tx.1/00000000000000000007.binpb"]
    {
        assert_eq!(transaction_file(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn every_version_round_trips(version in 0u64..1 << 63) {
        for version in [version, version >> 31, version >> 40] {
            prop_assert_eq!(root_version(&root_path(version)), Some(version));
        }
    }

    #[test]
    fn root_names_round_trip_from_text(name in "_[01]{30,64}\\.arrow") {
        if let Some(version) = root_version(&name) {
            prop_assert_eq!(root_path(version), name);
        }
    }

    #[test]
    fn boundaries_and_transaction_files_round_trip(version in any::<u64>(), id in "[A-Za-z0-9._-]{1,100}") {
        prop_assert_eq!(boundary_version(&boundary_path(version)), Some(version));
        let path = transaction_path(&id, version);
        prop_assert_eq!(transaction_file(&path), Some((id.as_str(), version)));
    }

    /// Limits count bytes, and a truncated name is still valid UTF-8 (failure modes 37 and 39).
    #[test]
    fn definition_paths_keep_their_limits(
        namespace in "[^\\x00-\\x20\\x7f]{1,60}",
        name in "[^\\x00-\\x20\\x7f]{1,60}",
        id in any::<u128>(),
        max_size_bytes in 100usize..1025,
    ) {
        let id = uuid::Uuid::from_u128(id);
        for kind in [ObjectKind::Namespace, ObjectKind::Table, ObjectKind::View] {
            let path = definition_path(kind, &namespace, &name, id, max_size_bytes);
            prop_assert!(path.len() <= max_size_bytes, "{path}");
            prop_assert!(path.split('/').all(|segment| segment.len() <= 255), "{path}");
            prop_assert_eq!(path.split('/').count(), 4);
            let end = format!("-{id}.binpb");
            prop_assert!(path.ends_with(&end), "{path}");
            trinitylake_base::root_uri::check_path(&path).unwrap();
        }
    }

    /// Every function that builds a name has an inverse, which accepts names of this kind only. Otherwise code that
    /// lists files would need its own parsers, which would differ.
    #[test]
    fn every_name_is_parsed_as_one_kind(
        id in any::<u128>(),
        table in any::<u128>(),
        millis in any::<u64>(),
        version in 0u64..1 << 63,
        namespace in "[^\\x00-\\x20\\x7f]{1,60}",
        name in "[^\\x00-\\x20\\x7f]{0,60}",
        max_size_bytes in 100usize..1025,
    ) {
        let (id, table) = (uuid::Uuid::from_u128(id), uuid::Uuid::from_u128(table));
        prop_assert_eq!(root_version(&root_path_000(version)), Some(version));
        for table in [None, Some(table)] {
            prop_assert_eq!(intent_file(&intent_path(millis, id, table)), Some((millis, id, table)));
        }
        prop_assert_eq!(node_id(&node_path(id)), Some(id));
        prop_assert_eq!(lakehouse_definition_id(&lakehouse_definition_path(id)), Some(id));
        for kind in ObjectKind::ALL {
            let path = definition_path(kind, &namespace, &name, id, max_size_bytes);
            prop_assert_eq!(definition_id(&path), Some((kind, id)), "{}", path);
            prop_assert_eq!(node_id(&path), None);
        }
        prop_assert_eq!(definition_id(&node_path(id)), None);
    }
}

#[test]
fn definition_paths_name_the_object() {
    let id = uuid::Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
    let file = |kind, namespace, name| {
        let path = definition_path(kind, namespace, name, id, 200);
        path[OPTIMIZED_PREFIX_SIZE_BYTES..].to_string()
    };
    assert_eq!(file(ObjectKind::Namespace, "ns1", ""), format!("namespace-ns1-{id}.binpb"));
    assert_eq!(file(ObjectKind::Table, "ns1", "t1"), format!("table-t1-ns1-{id}.binpb"));
    assert_eq!(file(ObjectKind::View, "ns1", "v1"), format!("view-v1-ns1-{id}.binpb"));
    assert_eq!(node_path(id), optimize(&format!("node-{id}.arrow")));
    assert_eq!(lakehouse_definition_path(id), format!("_lakehouse_def_{id}.binpb"));
}

#[test]
fn long_names_are_cut_between_characters() {
    let id = uuid::Uuid::from_u128(1);
    let short = definition_path(ObjectKind::Namespace, &"é".repeat(50), "", id, 200);
    assert!(short.contains(&"é".repeat(50)), "nothing is cut within the limit: {short}");
    for max_size_bytes in 120..140 {
        let path = definition_path(ObjectKind::Table, &"ü".repeat(50), &"日".repeat(33), id, max_size_bytes);
        assert!(path.len() <= max_size_bytes && path.len() + 3 > max_size_bytes, "{path}");
    }
    assert_eq!(cut("日本", 5), "日");
    assert_eq!(cut("日本", 6), "日本");
    assert_eq!(cut("日本", 2), "");
}

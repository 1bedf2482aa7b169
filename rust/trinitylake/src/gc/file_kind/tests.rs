use super::*;
use crate::file_names::{definition_path, gc_marker_path, intent_path, node_path, root_path, transaction_path};

const ID: uuid::Uuid = uuid::Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);

#[test]
fn only_files_of_the_format_may_be_deleted() {
    let definition = definition_path(crate::key::ObjectKind::Table, "ns", "t", ID, 200);
    for (path, expected) in [
        (node_path(ID), Verdict::Garbage(Kind::Node)),
        (definition, Verdict::Garbage(Kind::Definition)),
        (root_path(6), Verdict::Garbage(Kind::Root)),
        (root_path(7), Verdict::Stays(Kind::Root)),
        (transaction_path("a", 3), Verdict::Stays(Kind::Transaction)),
        (transaction_path("a", 1 << 63), Verdict::Garbage(Kind::Transaction)),
        (intent_path(5, ID, None), Verdict::Garbage(Kind::Temporary)),
        (intent_path(5, ID, Some(ID)), Verdict::Garbage(Kind::Temporary)),
        (format!("_probe/{ID}-clock"), Verdict::Garbage(Kind::Temporary)),
        ("ns/t-01234567/data/_staged#1000000001".into(), Verdict::Garbage(Kind::Temporary)),
        ("_latest_hint.txt".into(), Verdict::Stays(Kind::System)),
        ("_expired/00000000000000000007".into(), Verdict::Stays(Kind::System)),
        (gc_marker_path(5, ID), Verdict::Stays(Kind::System)),
        ("_collecting/readme.txt".into(), Verdict::Unknown),
        ("_txn/a/readme.txt".into(), Verdict::Unknown),
        ("_queue/readme.txt".into(), Verdict::Unknown),
        ("_branches/main".into(), Verdict::Unknown),
        ("0101/0101/0101/10101100-notes.txt".into(), Verdict::OfTable(Kind::Data)),
    ] {
        assert_eq!(verdict(&path, 7), expected, "{path}");
    }
}

/// Files of other software are not of a table, even if the name of their folder, such as `reports/daily-20240101/`,
/// ends in eight digits like the folder of a table. Otherwise vacuum would delete them.
#[test]
fn files_of_other_software_in_folders_with_digits_are_not_of_a_table() {
    let folder = table_folder("reports/daily-20240101/data/x").unwrap();
    for (name, expected) in [
        ("data/00000-0-01234567-89ab-4def-8123-456789abcdef.parquet", true),
        ("data/day=1/00000-0-01234567-89ab-4def-8123-456789abcdef.parquet", true),
        ("metadata/01234567-89ab-4def-8123-456789abcdef-m0.avro", true),
        ("metadata/00001-01234567-89ab-4def-8123-456789abcdef.metadata.json", true),
        ("data/part-00000-01234567-89ab-4def-8123-456789abcdef-c000.snappy.parquet", false),
        ("data/january.parquet", false),
        ("00000-0-01234567-89ab-4def-8123-456789abcdef.parquet", false),
        ("archive/00000-0-01234567-89ab-4def-8123-456789abcdef.parquet", false),
        ("data/01234567-89ab-4def-8123-456789abcdef.xlsx", false),
    ] {
        assert_eq!(is_named_by_a_writer(&format!("{folder}/{name}"), folder), expected, "{name}");
    }
    assert_eq!(table_folder("reports/daily/data/x"), None);
}

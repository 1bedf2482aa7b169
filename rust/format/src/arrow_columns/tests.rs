use super::*;
use crate::optimized_path::optimize;

#[test]
fn batches_agree_with_single_rows_and_keep_nulls() {
    let paths = StringArray::from(vec![Some("a/b.binpb"), None, Some("ünï/x")]);
    let optimized = optimize_paths(&paths).unwrap();
    assert_eq!(optimized.value(0), optimize("a/b.binpb"));
    assert!(optimized.is_null(1));
    assert_eq!(optimized.value(2), optimize("ünï/x"));

    let sizes = NameSizes { namespace: 12, table: 9, view: 7 };
    let namespaces = StringArray::from(vec![Some("n"), Some("n.m"), None, Some("n")]);
    let names = StringArray::from(vec![Some("t"), None, Some("u"), Some("größe")]);
    let keys = encode_keys(ObjectKind::Table, &namespaces, Some(&names), sizes).unwrap();
    assert_eq!(keys.value(0), sizes.table_key("n", "t").unwrap());
    assert!(keys.is_null(1) && keys.is_null(2));
    assert_eq!(keys.value(3), sizes.table_key("n", "größe").unwrap());

    let decoded = decode_keys(&keys, sizes).unwrap();
    let name: &StringArray = decoded.column(2).as_any().downcast_ref().unwrap();
    assert_eq!(name.value(3), "größe");
    assert!(name.is_null(1));
}

/// A slice of a column begins in the middle of its text, and a null row may have text that is never read.
#[test]
fn slices_and_null_rows_with_text_are_converted() {
    let texts: Vec<String> = (0..23).map(|i| "a/b".repeat(i)).collect();
    let (offsets, values, _) = StringArray::from(texts.clone()).into_parts();
    let nulls = NullBuffer::from_iter((0..23).map(|i| i % 5 != 3));
    let with_nulls = StringArray::new(offsets, values, Some(nulls));
    for paths in [StringArray::from(texts), with_nulls] {
        for (start, length) in [(0, 23), (4, 11), (7, 1), (9, 0)] {
            let paths = paths.slice(start, length);
            let optimized = optimize_paths(&paths).unwrap();
            let alone: Vec<Option<String>> = paths.iter().map(|path| path.map(optimize)).collect();
            assert_eq!(optimized, StringArray::from(alone));
        }
    }
}

#[test]
fn an_error_names_the_bad_name() {
    let namespaces = StringArray::from(vec!["n", "n"]);
    let names = StringArray::from(vec!["ok", "not ok "]);
    let error = encode_keys(ObjectKind::Table, &namespaces, Some(&names), NameSizes::default()).unwrap_err();
    assert!(error.to_string().contains("not ok"), "{error}");
}

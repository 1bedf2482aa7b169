use super::*;

#[test]
fn sort_texts_sort_like_keys_and_round_trip() {
    let names = NameSizes::default();
    let mut keys = Vec::new();
    for namespace in ["a", "a!", "a b", "a  b", "a.b", "ab", "b", "ä", "z"] {
        keys.push(names.namespace_key(namespace).unwrap());
        for name in ["t", "t!", "t t", "tt", "ü", "\u{10000}"] {
            keys.push(names.table_key(namespace, name).unwrap());
            keys.push(names.view_key(namespace, name).unwrap());
        }
    }
    keys.push(names.transaction_key("etl-1").unwrap());
    let mut texts: Vec<String> = keys.iter().map(|key| unpadded_key(names, key).unwrap()).collect();
    keys.sort();
    texts.sort();
    let back: Vec<String> = texts.iter().map(|text| key_of(names, text).unwrap()).collect();
    assert_eq!(back, keys);
}

#[test]
fn invalid_sort_texts_are_refused() {
    let names = NameSizes::default();
    for text in [
        "",
        "C",
        "Cn",
        "Cn\u{1}",
        "C\u{1}t",
        "Ca\u{1}b\u{1}c",
        "Ba\u{1}b\u{1}",
        "B\u{1}",
        "Xn\u{1}t",
        "Cn\u{1}t\u{7f}",
        "Cn\u{1}t ",
        "Cn \u{1}t",
    ] {
        assert!(matches!(key_of(names, text), Err(Error::InvalidName(_))), "{text:?}");
    }
    assert_eq!(unpadded_key(names, "X==="), None);
}

//! Keys, and the rules for the names in keys.

use proptest::prelude::*;

use trinitylake_base::error::Error;

use super::*;
use crate::unpadded_key::{key_of, unpadded_key};

const SIZES: NameSizes = NameSizes { namespace: 8, table: 6, view: 4 };

#[test]
fn keys_have_golden_values() {
    assert_eq!(SIZES.namespace_key("ns").unwrap(), "B===ns      ");
    assert_eq!(SIZES.table_key("ns", "t1").unwrap(), "C===ns      t1    ");
    assert_eq!(SIZES.view_key("ns", "v1").unwrap(), "D===ns      v1  ");
    assert_eq!(SIZES.transaction_key("tx").unwrap(), format!("E===tx{}", " ".repeat(98)));
    assert_eq!(NameSizes::default().table_key("n", "t").unwrap().len(), 204);
}

/// Limits and padding of names count bytes, not characters (failure mode 37).
#[test]
fn names_are_measured_in_bytes() {
    assert_eq!(SIZES.view_key("é", "日").unwrap(), "D===é      日 ");
    SIZES.namespace_key("éééé").unwrap();
    let error = SIZES.namespace_key("ééééé").unwrap_err().to_string();
    assert!(error.contains("10 bytes") && error.contains("limit") && error.contains('8'), "{error}");
    assert!(SIZES.table_key("ns", "1234567").is_err());
    assert!(SIZES.view_key("ns", "12345").is_err());
}

/// Names are not normalised: two names with different bytes are different names, even if they look equal (failure mode
/// 38).
#[test]
fn composed_and_decomposed_names_are_different() {
    assert_ne!(SIZES.table_key("ns", "\u{e9}").unwrap(), SIZES.table_key("ns", "e\u{301}").unwrap());
}

#[test]
fn names_with_a_space_at_an_end_or_a_control_character_are_refused() {
    for (name, words) in [
        ("", "empty"),
        (" ", "space"),
        ("a ", "space"),
        (" a", "space"),
        ("a\0", "U+0000"),
        ("a\nb", "U+000A"),
        ("\x1F", "U+001F"),
        ("\x7F", "U+007F"),
    ] {
        for error in [SIZES.namespace_key(name), SIZES.table_key("ns", name), SIZES.view_key("ns", name)] {
            let error = error.unwrap_err();
            assert!(matches!(&error, Error::InvalidName(message) if message.contains(words)), "{name:?}: {error}");
        }
    }
    for name in ["a b", "a  b c", "a/b", "..", "a\\b", "%20", "\u{202E}", "\u{A0}"] {
        SIZES.table_key("ns", name).unwrap();
    }
}

#[test]
fn keys_of_another_lakehouse_are_not_decoded() {
    let key = SIZES.table_key("ns", "t").unwrap();
    assert_eq!(NameSizes::default().decode(&key), None);
    assert_eq!(SIZES.decode(&key[1..]), None);
    assert_eq!(SIZES.decode(""), None);
    assert_eq!(SIZES.decode("Z===ns      "), None);
    // The size is right, but the namespace would end within a character.
    assert_eq!(SIZES.decode("C===1234567é12345"), None);
}

#[test]
fn the_successor_of_a_prefix_is_the_next_string_of_its_length() {
    let range = |prefix| KeyRange::prefix(prefix).end;
    assert_eq!(range("a").as_deref(), Some("b"));
    assert_eq!(range("az\u{10FFFF}").as_deref(), Some("a{"));
    assert_eq!(range("\u{D7FF}").as_deref(), Some("\u{E000}"));
    assert_eq!(range("\u{10FFFF}"), None);
    assert_eq!(range(""), None);
}

fn name(size: usize) -> impl Strategy<Value = String> {
    prop::collection::vec("[!-~é日😀]", 1..=size).prop_filter_map("too long", move |characters| {
        let name: String = characters.concat();
        (name.len() <= size).then_some(name)
    })
}

fn namespace() -> impl Strategy<Value = String> {
    name(8).prop_filter("an empty part", |name| name.split('.').all(|part| !part.is_empty()))
}

proptest! {
    #[test]
    fn keys_round_trip(namespace in namespace(), table in name(6), view in name(4), id in "[A-Za-z0-9_-]{1,100}") {
        for (kind, namespace, name) in [
            (ObjectKind::Namespace, namespace.as_str(), ""),
            (ObjectKind::Table, &namespace, table.as_str()),
            (ObjectKind::View, &namespace, view.as_str()),
            (ObjectKind::TransactionRecord, "", id.as_str()),
        ] {
            let key = SIZES.key(kind, namespace, name).unwrap();
            prop_assert_eq!(key.len(), SIZES.key_size_bytes(kind));
            prop_assert_eq!(SIZES.decode_parts(&key), Some((kind, namespace, name)));
        }
    }

    /// The bytewise order of keys is the order by kind, then namespace, then name.
    #[test]
    fn the_order_of_keys_mirrors_the_hierarchy(
        left in (any::<bool>(), namespace(), name(4)),
        right in (any::<bool>(), namespace(), name(4)),
    ) {
        let key = |(is_table, namespace, name): &(bool, String, String)| {
            let kind = if *is_table { ObjectKind::Table } else { ObjectKind::View };
            SIZES.key(kind, namespace, name).unwrap()
        };
        let order = |(is_table, namespace, name): &(bool, String, String)| (!is_table, namespace.clone(), name.clone());
        prop_assert_eq!(key(&left).cmp(&key(&right)), order(&left).cmp(&order(&right)));
    }

    #[test]
    fn a_prefix_range_contains_the_keys_with_the_prefix(prefix in ".{0,4}", key in ".{0,6}") {
        let range = KeyRange::prefix(&prefix);
        prop_assert_eq!(range.contains(&key), key.starts_with(&prefix));
        let longer = format!("{prefix}{key}");
        prop_assert!(range.contains(&longer));
    }

    #[test]
    fn ranges_of_a_namespace_contain_only_its_objects(namespace in namespace(), other in namespace(), table in name(6)) {
        let range = SIZES.objects_in(ObjectKind::Table, Some(&namespace)).unwrap();
        prop_assert_eq!(range.contains(&SIZES.table_key(&other, &table).unwrap()), namespace == other);
        let below = SIZES.namespaces_below(Some(&namespace)).unwrap();
        let is_below = other.strip_prefix(&namespace).is_some_and(|rest| rest.starts_with('.'));
        prop_assert_eq!(below.contains(&SIZES.namespace_key(&other).unwrap()), is_below);
        prop_assert!(SIZES.namespaces_below(None).unwrap().contains(&SIZES.namespace_key(&other).unwrap()));
        prop_assert!(!SIZES.objects_in(ObjectKind::View, None).unwrap().contains(&SIZES.table_key(&other, &table).unwrap()));
    }
}

/// All texts of up to `length` characters.
fn texts(alphabet: &str, length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    for _ in 0..length {
        let longer = all.iter().flat_map(|text| alphabet.chars().map(move |last| format!("{text}{last}")));
        all = longer.chain(all.iter().cloned()).collect();
    }
    all.sort();
    all.dedup();
    all
}

/// Names may contain spaces, but not at their ends, where a space would look like padding. Keys of names with spaces
/// sort like their unpadded keys, and can be decoded.
#[test]
fn names_with_spaces_keep_their_order_and_round_trip() {
    let is_name = |name: &str| !name.is_empty() && name.trim_matches(' ') == name;
    let (mut keys, mut unpadded_keys, mut refused) = (Vec::new(), Vec::new(), 0);
    for namespace in texts("a !.", 4) {
        for table in texts("a z", 3) {
            let is_good = namespace.split('.').all(is_name) && is_name(&table);
            match SIZES.table_key(&namespace, &table) {
                Ok(key) => {
                    assert!(is_good, "{namespace:?} {table:?}");
                    assert_eq!(SIZES.decode_parts(&key), Some((ObjectKind::Table, &*namespace, &*table)));
                    assert!(SIZES.objects_in(ObjectKind::Table, Some(&namespace)).unwrap().contains(&key));
                    unpadded_keys.push(unpadded_key(SIZES, &key).unwrap());
                    keys.push(key);
                }
                Err(error) => {
                    assert!(!is_good && matches!(error, Error::InvalidName(_)), "{namespace:?}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(keys.len() > 1000 && refused > 1000, "{} {refused}", keys.len());
    keys.sort();
    unpadded_keys.sort();
    let back: Vec<String> = unpadded_keys.iter().map(|text| key_of(SIZES, text).unwrap()).collect();
    assert_eq!(back, keys);
}

/// Names of every length can be decoded. Padding is removed in blocks of sixteen bytes, so a name may end at any
/// position of a block.
#[test]
fn names_of_any_length_round_trip() {
    let sizes = NameSizes { namespace: 50, table: 70, view: 9 };
    for length in 1..=50 {
        let (namespace, table) = ("n".repeat(length), "ä t".repeat(length.div_ceil(3)));
        let key = sizes.table_key(&namespace, &table).unwrap();
        assert_eq!(sizes.decode_parts(&key), Some((ObjectKind::Table, &*namespace, &*table)));
    }
}

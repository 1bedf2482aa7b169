//! Names of namespaces, and ids of transactions.

use super::*;

#[test]
fn namespaces_have_no_empty_part() {
    for namespace in ["a", "a.b", "a.b.c"] {
        check_namespace(namespace, 8).unwrap();
    }
    for namespace in [".", ".a", "a.", "a..b"] {
        assert!(matches!(check_namespace(namespace, 8), Err(Error::InvalidName(_))), "{namespace}");
    }
}

#[test]
fn transaction_ids_are_safe_in_file_names() {
    for id in ["a", "A-Z_0.9", &"x".repeat(100), "..a"] {
        check_transaction_id(id).unwrap();
    }
    for id in ["", "a/b", "a b", "é", "..", ".", &"x".repeat(101), "a\n"] {
        assert!(matches!(check_transaction_id(id), Err(Error::InvalidName(_))), "{id:?}");
    }
}

//! Ids of transactions.

use super::*;

#[test]
fn transaction_ids_are_safe_in_file_names() {
    for id in ["a", "A-Z_0.9", &"x".repeat(100), "..a"] {
        check_transaction_id(id).unwrap();
    }
    for id in ["", "a/b", "a b", "é", "..", ".", &"x".repeat(101), "a\n"] {
        assert!(matches!(check_transaction_id(id), Err(Error::InvalidName(_))), "{id:?}");
    }
}

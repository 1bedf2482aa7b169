//! Names of namespaces.

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

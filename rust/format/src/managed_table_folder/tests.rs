use proptest::prelude::*;
use trinitylake_base::root_uri::check_path;

use super::*;

#[test]
fn folders_have_golden_values() {
    let id = "01234567-89ab-4def-8123-456789abcdef";
    assert_eq!(managed_table_folder("sales", "orders", id), "sales/orders-01234567");
    assert_eq!(managed_table_folder("sales.eu", "Größe", id), "sales.eu/Größe-01234567");
    // Names that an engine could interpret as a path, a query or a hidden folder.
    assert_eq!(managed_table_folder("..", "a/b", id), "-./a-b-01234567");
    assert_eq!(managed_table_folder("_txn", "a?b#c%20", id), "-txn/a-b-c-20-01234567");
}

proptest! {
    #[test]
    fn folders_are_two_plain_segments_that_end_in_the_id(
        namespace in ".{1,300}",
        name in ".{1,300}",
        id in any::<u128>(),
    ) {
        let id = uuid::Uuid::from_u128(id).to_string();
        let folder = managed_table_folder(&namespace, &name, &id);
        prop_assert_eq!(folder.split('/').count(), 2, "{}", folder);
        prop_assert!(folder.split('/').all(|segment| segment.len() <= SEGMENT_MAX_SIZE_BYTES));
        prop_assert!(!folder.starts_with(['_', '.']));
        prop_assert_eq!(table_id_digits(&folder), Some(&id[..8]));
        check_path(&folder).unwrap();
    }
}

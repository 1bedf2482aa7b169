//! What is written from a template beside what Arrow's own builder writes.

use super::*;

/// A footer is put together from one that was built once. If a checksum or a place stood one byte off, no reader would
/// find the rows, or each would call them damaged.
#[test]
fn a_footer_is_the_one_that_would_be_built() {
    let schema = node_schema();
    for number in [0, 1, 0x7F, 1 << 20, i32::MAX as i64] {
        let block = Block::new(number, number as i32 / 2, number * 3);
        let checksum = (CHECKSUM.to_string(), format!("xxh3-64:{number:016x}"));
        let built = footer_of(&schema, &block, checksum.clone());
        assert_eq!(OfNodes::get().footer(&block, &checksum), Some(built));
    }
}

/// Metadata of another kind has another length, and would be cut or run into what follows.
#[test]
fn other_metadata_is_not_put_where_a_checksum_stands() {
    let block = Block::new(8, 8, 8);
    for (key, value) in [("another", "xxh3-64:0000000000000000"), (CHECKSUM, "sha256:00")] {
        assert_eq!(OfNodes::get().footer(&block, &(key.to_string(), value.to_string())), None);
    }
}

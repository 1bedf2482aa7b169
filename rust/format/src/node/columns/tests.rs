//! What a buffer may say, and who decompresses it.

use proptest::prelude::*;

use super::super::zstd::{in_c, in_rust};
use super::*;

/// A node file of 2 MB claimed to hold 2 GiB, and opening the lakehouse ran out of memory. What a
/// reader allocates is bounded by what nodes hold, and beyond that by what was read.
#[test]
fn what_a_node_may_decompress_to_is_bounded_by_its_size() {
    let mib = 1 << 20;
    assert_eq!(content_limit_bytes(100), 4 * mib);
    assert_eq!(content_limit_bytes(16 << 10), 16 * mib);
    assert_eq!(content_limit_bytes(mib), 64 * mib);
    assert_eq!(content_limit_bytes(2 * mib), 64 * mib);
    assert_eq!(content_limit_bytes(10 * mib), 320 * mib);
    assert_eq!(content_limit_bytes(u64::MAX), 2048 * mib);
}

proptest! {
    /// What the library in C reads and the one in Rust does not, a browser would not show.
    #[test]
    fn both_libraries_decompress_alike(
        parts in prop::collection::vec((".{0,20}", 0..400usize), 0..20),
        level in 1..20i32,
        room in 0..3usize,
    ) {
        let content: Vec<u8> = parts.iter().flat_map(|(text, times)| text.repeat(*times).into_bytes()).collect();
        let compressed = zstd::bulk::compress(&content, level).unwrap();
        let size = content.len() + room;
        prop_assert_eq!(&in_c::Zstd::new().unwrap().decompress(&compressed, size).unwrap(), &content);
        prop_assert_eq!(&in_rust::Zstd::new().unwrap().decompress(&compressed, size).unwrap(), &content);
        if let Some(less) = content.len().checked_sub(1) {
            prop_assert!(in_c::Zstd::new().unwrap().decompress(&compressed, less).is_err());
            prop_assert!(in_rust::Zstd::new().unwrap().decompress(&compressed, less).is_err());
        }
    }

    /// A library that panics ends the page.
    #[test]
    fn damaged_frames_are_errors_or_texts_in_both(
        content in prop::collection::vec(any::<u8>(), 0..2000),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
    ) {
        let mut compressed = zstd::bulk::compress(&content.repeat(3), 1).unwrap();
        for (at, change) in damage {
            let at = at.index(compressed.len());
            compressed[at] ^= change;
        }
        let size = 3 * content.len();
        for found in [
            in_c::Zstd::new().unwrap().decompress(&compressed, size),
            in_rust::Zstd::new().unwrap().decompress(&compressed, size),
        ] {
            prop_assert!(found.is_err() || found.is_ok_and(|found| found.len() <= size));
        }
    }
}

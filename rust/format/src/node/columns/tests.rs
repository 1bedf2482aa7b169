//! Limits of buffers, and the two libraries that decompress them.

use proptest::prelude::*;

use super::super::zstd::{in_c, in_rust};
use super::*;

/// A node may decompress to the usual size of nodes, or to a multiple of its file size. Otherwise a reader of a file of
/// 2 MB that states 2 GiB of content would run out of memory.
#[test]
fn the_decompressed_size_of_a_node_is_limited() {
    let mib = 1 << 20;
    assert_eq!(content_limit_bytes(100), 4 * mib);
    assert_eq!(content_limit_bytes(16 << 10), 16 * mib);
    assert_eq!(content_limit_bytes(mib), 64 * mib);
    assert_eq!(content_limit_bytes(2 * mib), 64 * mib);
    assert_eq!(content_limit_bytes(10 * mib), 320 * mib);
    assert_eq!(content_limit_bytes(u64::MAX), 2048 * mib);
}

proptest! {
    /// The Rust library decompresses what the C library compresses. Otherwise the web page could not read some nodes.
    #[test]
    fn both_libraries_decompress_to_the_same_bytes(
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

    /// Neither library panics on damaged frames. A panic would end the web page in the browser.
    #[test]
    fn both_libraries_survive_damaged_frames(
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

//! Optimized paths, compared with a second implementation.

use proptest::prelude::*;

use super::*;

/// A second implementation of murmur3, from the published description.
fn murmur3(bytes: &[u8]) -> u32 {
    let mut hash = 0u32;
    let mix = |word: u32| word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes(word.try_into().unwrap());
        hash = (hash ^ mix(word)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        hash ^= mix(word);
    }
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Format §3, step by step.
fn optimize_reference(path: &str) -> String {
    let digits = format!("{:020b}", murmur3(path.as_bytes()) & 0xF_FFFF);
    let groups = [&digits[..4], &digits[4..8], &digits[8..12], &digits[12..]].join("/");
    format!("{groups}-{}", path.replace('/', "-"))
}

#[test]
fn the_hash_has_its_published_values() {
    for (text, hash) in [
        ("", 0),
        ("hello", 0x248b_fa47),
        ("hello, world", 0x149b_bb7f),
        ("The quick brown fox jumps over the lazy dog", 0x2e4f_f723),
    ] {
        assert_eq!(murmur3(text.as_bytes()), hash, "{text:?}");
    }
}

#[test]
fn optimized_paths_have_golden_values() {
    // 0x248bfa47: the 20 low bits are b fa47.
    assert_eq!(optimize("hello"), "1011/1111/1010/01000111-hello");
    assert_eq!(optimize("hello, world"), "1011/1011/1011/01111111-hello, world");
    assert_eq!(optimize(""), "0000/0000/0000/00000000-");
    assert!(optimize("a/b/c").ends_with("-a-b-c"));
}

/// Slashes are replaced in the last sixteen bytes of a path as well, which are copied separately.
#[test]
fn slashes_at_any_position_become_dashes() {
    for length in 0..70 {
        for path in ["/".repeat(length), "a/b".repeat(length), format!("{}ü/", "x".repeat(length))] {
            assert_eq!(optimize(&path), optimize_reference(&path));
        }
    }
}

proptest! {
    #[test]
    fn optimize_equals_the_reference(path in ".{0,80}") {
        prop_assert_eq!(optimize(&path), optimize_reference(&path));
    }
}

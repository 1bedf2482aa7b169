//! MurmurHash3 (x86, 32 bits, seed 0) of several texts at a time (format §3).
//!
//! Each block of a text waits for the one before; those of different texts do not, so a processor hashes four of them in
//! little more time than one.

const FIRST_FACTOR: u32 = 0xCC9E_2D51;
const SECOND_FACTOR: u32 = 0x1B87_3593;

/// The hash of each text.
#[inline]
pub fn murmur3<const LANES: usize>(texts: [&[u8]; LANES]) -> [u32; LANES] {
    let mut hashes = [0; LANES];
    let blocks = texts.map(|text| text.as_chunks::<4>().0);
    let common = blocks.iter().map(|blocks| blocks.len()).min().unwrap_or(0);
    let heads = blocks.map(|blocks| &blocks[..common]);
    for i in 0..common {
        for (hash, blocks) in hashes.iter_mut().zip(&heads) {
            *hash = with_block(*hash, blocks[i]);
        }
    }
    for ((hash, text), blocks) in hashes.iter_mut().zip(texts).zip(blocks) {
        *hash = finish(blocks[common..].iter().fold(*hash, |hash, block| with_block(hash, *block)), text);
    }
    hashes
}

#[inline(always)]
fn scrambled(block: u32) -> u32 {
    block.wrapping_mul(FIRST_FACTOR).rotate_left(15).wrapping_mul(SECOND_FACTOR)
}

#[inline(always)]
fn with_block(hash: u32, block: [u8; 4]) -> u32 {
    let mixed = hash ^ scrambled(u32::from_le_bytes(block));
    mixed.rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64)
}

/// Mixes in what is left after the whole blocks, and the length.
#[inline(always)]
fn finish(hash: u32, text: &[u8]) -> u32 {
    // Nothing is left of a text of whole blocks, and nothing changes nothing.
    let mut hash = hash ^ scrambled(rest_of(text));
    hash ^= text.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

/// The bytes after the last whole block, the first of them lowest.
#[inline(always)]
fn rest_of(text: &[u8]) -> u32 {
    let length = text.len() % 4;
    match text.last_chunk::<4>() {
        // Shifted by four bytes nothing is left.
        Some(last) => (u64::from(u32::from_le_bytes(*last)) >> (8 * (4 - length))) as u32,
        None => text.iter().rev().fold(0, |rest, byte| rest << 8 | u32::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Texts that share a group had different lengths: one of them was hashed to the length of the shortest.
        #[test]
        fn texts_of_any_lengths_hash_as_each_alone(texts in prop::array::uniform4(prop::collection::vec(any::<u8>(), 0..40))) {
            let together = murmur3([&texts[0], &texts[1], &texts[2], &texts[3]]);
            let alone = [0, 1, 2, 3].map(|i| mur3::murmurhash3_x86_32(&texts[i], 0));
            prop_assert_eq!(together, alone);
            prop_assert_eq!([0, 1, 2, 3].map(|i| murmur3([&texts[i]])[0]), alone);
        }
    }
}

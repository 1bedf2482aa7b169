//! Mutations of bytes that resemble damage and attacks.

use rand::RngExt;
use rand::rngs::StdRng;

/// Numbers at the limits of integer types, as lengths and offsets.
const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0x80, i32::MAX as u64, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// Applies one to four changes; inserted parts come from `other`.
pub fn mutate(sample: &[u8], other: &[u8], generator: &mut StdRng) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..generator.random_range(1..=4) {
        change(&mut bytes, other, generator);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], generator: &mut StdRng) {
    let at = generator.random_range(0..=bytes.len());
    match generator.random_range(0..7) {
        0 if at < bytes.len() => bytes[at] ^= 1 << generator.random_range(0..8),
        1 if at < bytes.len() => bytes[at] = generator.random(),
        2 => {
            let number = NUMBERS[generator.random_range(0..NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][generator.random_range(0..4)];
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        3 => bytes.truncate(at),
        4 => bytes.insert(at, generator.random()),
        5 => {
            let end = generator.random_range(at..=bytes.len());
            bytes.drain(at..end.min(at + 16));
        }
        _ => {
            let from = generator.random_range(0..=other.len());
            let end = generator.random_range(from..=other.len().min(from + 64));
            bytes.splice(at..at, other[from..end].iter().copied());
        }
    }
}

//! Optimized paths: files are distributed over folders by a hash of their names (format §3).

use mur3::murmurhash3_x86_32;

/// Size of the prefix `aaaa/bbbb/cccc/dddddddd-` that [`optimize`] adds to a path.
pub(crate) const OPTIMIZED_PREFIX_SIZE_BYTES: usize = 24;
/// Size of the folder `aaaa/bbbb/cccc` in this prefix.
const FOLDER_SIZE_BYTES: usize = 14;

/// Distributes files over 2^20 prefixes: the 20 low bits of MurmurHash3 x86 32 (seed 0) of the path, in groups of 4, 4,
/// 4 and 8 digits, then the path with its slashes replaced by dashes.
pub fn optimize(path: &str) -> String {
    let mut optimized = vec![0; OPTIMIZED_PREFIX_SIZE_BYTES + path.len()];
    write_optimized(path.as_bytes(), &mut optimized);
    // The input is UTF-8, and only ASCII bytes were added or replaced.
    String::from_utf8(optimized).unwrap_or_default()
}

/// Like [`optimize`], but writes into `output`. Writes nothing if `output` has another size than the result.
pub(crate) fn write_optimized(path: &[u8], output: &mut [u8]) {
    let hash = murmurhash3_x86_32(path, 0);
    let Some((prefix, flattened)) = output.split_first_chunk_mut::<OPTIMIZED_PREFIX_SIZE_BYTES>() else {
        return;
    };
    *prefix = *b"0000/0000/0000/00000000-";
    let (folder, digits) = prefix.split_at_mut(FOLDER_SIZE_BYTES + 1);
    write_folder(hash, folder);
    digits[..4].copy_from_slice(&FOUR_DIGITS[hash as usize >> 4 & 15]);
    digits[4..8].copy_from_slice(&FOUR_DIGITS[hash as usize & 15]);
    copy_flattened(path, flattened);
}

/// Writes the folder's digits of a hash between its slashes.
fn write_folder(hash: u32, folder: &mut [u8]) {
    for (position, shift) in [(0, 16), (5, 12), (10, 8)] {
        folder[position..position + 4].copy_from_slice(&FOUR_DIGITS[hash as usize >> shift & 15]);
    }
}

/// Copies a path and replaces its slashes by dashes, sixteen bytes at a time for speed.
fn copy_flattened(path: &[u8], output: &mut [u8]) {
    let flattened = |byte: u8| if byte == b'/' { b'-' } else { byte };
    for (from, to) in path.as_chunks::<16>().0.iter().zip(output.as_chunks_mut::<16>().0) {
        *to = from.map(flattened);
    }
    // Copies the last sixteen bytes at once. Some of these bytes were copied before.
    if let (Some(from), Some(to)) = (path.last_chunk::<16>(), output.last_chunk_mut::<16>()) {
        *to = from.map(flattened);
        return;
    }
    for (from, to) in path.iter().zip(output) {
        *to = flattened(*from);
    }
}

/// The part of an optimized path after the prefix: the original path with dashes instead of slashes.
pub(crate) fn after_prefix(path: &str) -> Option<&str> {
    let (prefix, rest) = path.split_at_checked(OPTIMIZED_PREFIX_SIZE_BYTES)?;
    let is_form = prefix.bytes().enumerate().all(|(i, byte)| match i {
        4 | 9 | 14 => byte == b'/',
        23 => byte == b'-',
        _ => matches!(byte, b'0' | b'1'),
    });
    (is_form && !rest.contains('/')).then_some(rest)
}

/// The binary digits of 0 to 15.
const FOUR_DIGITS: [[u8; 4]; 16] = {
    let mut digits = [[b'0'; 4]; 16];
    let mut number = 0;
    while number < 16 {
        let mut bit = 0;
        while bit < 4 {
            digits[number][bit] += (number >> (3 - bit) & 1) as u8;
            bit += 1;
        }
        number += 1;
    }
    digits
};

#[cfg(test)]
mod tests;

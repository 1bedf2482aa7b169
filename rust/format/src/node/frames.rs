//! Compressing buffers: as one frame, or as several one after the other, of which most are kept from the node before.
//!
//! A root has nearly all rows in common with the root before it, and compressing it took more than half of a commit's
//! processor time in the core. So its texts are cut where a row says so, whatever stands before it: a row that comes in
//! or goes moves no cut but those next to it. What is between two cuts is a ZSTD frame of its own; of those that the
//! last root had as well the compressed bytes are still there. What the next root will not have again, its own system
//! rows and the newest few messages, is in frames that hold it as it is: to compress it each time anew would gain one
//! or two kilobytes, and took most of what was left. Messages are cut finely at first, and those pieces become one as
//! soon as it is large enough.
//!
//! Invariant: what is stored does not depend on what was kept. A kept frame is taken only for the very same bytes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use arrow_array::{Array, StringArray};
use arrow_buffer::Buffer;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::zstd::{Compressor, append_as_it_is};

/// Messages, or rows, between two cuts: at least, at most, and of those between them one in so many is the last.
struct Spacing {
    min: usize,
    max: usize,
    one_in: u64,
}

/// Of all messages.
const COARSE: Spacing = Spacing { min: 32, max: 128, one_in: 32 };
/// Of those behind the last coarse cut.
const FINE: Spacing = Spacing { min: 4, max: 16, one_in: 4 };
/// Offsets of so many rows at least: a frame takes some bytes of its own.
const OFFSETS_MIN: usize = 128;
const LATE_OFFSETS_MIN: usize = 32;
/// Validity up to here is not compressed, and changes with each message.
const VALIDITY_AS_IT_IS_MAX_SIZE_BYTES: usize = 128;
/// More than this is compressed even if the next root will not have it.
const AS_IT_IS_MAX_SIZE_BYTES: usize = 4096;
/// What larger nodes are compressed to is not kept.
const KEPT_CONTENT_MAX_SIZE_BYTES: usize = 1 << 20;

/// Where a piece of a buffer ends, in rows or in bytes, and whether the next root will hardly have it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub end: usize,
    pub is_passing: bool,
}

/// How the buffers of a node are cut.
#[derive(Debug, Default)]
pub struct Cuts {
    /// Rows before which texts are cut, ascending.
    rows: Vec<usize>,
    /// The rows above the first cut are of this root alone.
    system: usize,
    /// Behind this row cuts are close to each other.
    coarse: usize,
}

impl Cuts {
    /// Those of a root: system rows, key table, and pieces of its write buffer, of whose messages these are the hashes of
    /// the keys.
    pub fn of_root(n_system: usize, order: usize, messages: impl Iterator<Item = u64>) -> Cuts {
        let buffer = n_system + order;
        let (mut rows, mut fine) = (vec![n_system, buffer], Vec::new());
        let (mut last, mut last_fine) = (0, 0);
        for (number, hash) in messages.enumerate() {
            let here = number + 1;
            if COARSE.has_cut(here - last, hash) {
                (last, last_fine) = (here, here);
                rows.push(buffer + here);
                fine.clear();
            } else if FINE.has_cut(here - last_fine, hash >> 32) {
                last_fine = here;
                fine.push(buffer + here);
            }
        }
        rows.append(&mut fine);
        Cuts { rows, system: n_system, coarse: buffer + last }
    }

    /// None for what is no root.
    fn pieces(&self, count: usize, cuts: impl Iterator<Item = usize>, system: usize) -> Vec<Piece> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let mut pieces: Vec<Piece> = cuts.map(|end| Piece { end, is_passing: end == system }).collect();
        pieces.push(Piece { end: count, is_passing: true });
        pieces
    }

    /// In bytes of the validity of a column.
    pub fn of_validity(&self, size_bytes: usize) -> Vec<Piece> {
        let is_passing = size_bytes <= VALIDITY_AS_IT_IS_MAX_SIZE_BYTES;
        let is_cut = !self.rows.is_empty();
        is_cut.then_some(Piece { end: size_bytes, is_passing }).into_iter().collect()
    }

    /// In bytes of the texts of a column.
    pub fn of_texts(&self, column: &StringArray) -> Vec<Piece> {
        let ends = column.offsets();
        let byte = |row: usize| (ends[row] - ends[0]) as usize;
        let rows = self.rows.iter().filter(|row| **row < column.len());
        self.pieces(byte(column.len()), rows.map(|row| byte(*row)), byte(self.system))
    }

    /// In bytes of the offsets of a column.
    pub fn of_offsets(&self, column: &StringArray) -> Vec<Piece> {
        let mut last = 0;
        let far = self.rows.iter().filter(|row| {
            let min = if **row > self.coarse { LATE_OFFSETS_MIN } else { OFFSETS_MIN };
            let is_far = **row >= last + min && **row < column.len();
            last = if is_far { **row } else { last };
            is_far
        });
        let byte = |row: usize| row * size_of::<i32>();
        self.pieces(byte(column.len() + 1), far.map(|row| byte(*row)), 0)
    }
}

impl Spacing {
    fn has_cut(&self, since: usize, hash: u64) -> bool {
        since >= self.max || (since >= self.min && hash.is_multiple_of(self.one_in))
    }
}

#[derive(Debug)]
struct Frame {
    raw: Buffer,
    packed: Vec<u8>,
}

/// Bytes at the start and at the end of a piece that tell it from others.
const HASHED_END_SIZE_BYTES: usize = 64;

/// A hash by which a piece is found again. All of it is compared then, so it is enough to hash a little; pieces whose
/// middles alone differ are compressed each time.
fn hash_of_ends(part: &[u8]) -> u64 {
    let hash = |end: &[u8]| xxh3_64_with_seed(end, part.len() as u64);
    match (part.first_chunk::<HASHED_END_SIZE_BYTES>(), part.last_chunk::<HASHED_END_SIZE_BYTES>()) {
        (Some(first), Some(last)) => hash(first).rotate_left(1) ^ hash(last),
        _ => hash(part),
    }
}

/// By the hash of what they hold, which needs no other.
type ByHash = HashMap<u64, Frame, BuildHasherDefault<AsItIs>>;

#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Compresses buffers, and keeps what those of one node became for the next one.
#[derive(Debug, Default)]
pub struct Frames {
    compressor: Option<Compressor>,
    kept: ByHash,
    /// Of the node that is being written.
    next: ByHash,
}

impl Frames {
    /// Appends a buffer as ZSTD frames, one for each piece; as one if there is none.
    pub fn pack(&mut self, raw: &Buffer, pieces: &[Piece], file: &mut Vec<u8>) -> Result<(), String> {
        if self.compressor.is_none() {
            self.compressor = Some(Compressor::new()?);
        }
        let compressor = self.compressor.as_mut().ok_or("no compressor")?;
        if pieces.is_empty() {
            return compressor.append(raw, file);
        }
        let mut start = 0;
        for Piece { end, is_passing } in pieces.iter().copied() {
            if end == start {
                continue;
            }
            let part = raw.slice_with_length(start, end - start);
            start = end;
            if is_passing && part.len() <= AS_IT_IS_MAX_SIZE_BYTES {
                append_as_it_is(&part, file);
                continue;
            }
            let hash = hash_of_ends(&part);
            let before = file.len();
            let packed = match self.kept.remove(&hash) {
                Some(frame) if frame.raw == part => {
                    file.extend_from_slice(&frame.packed);
                    frame.packed
                }
                _ => {
                    compressor.append(&part, file)?;
                    file[before..].to_vec()
                }
            };
            self.next.insert(hash, Frame { raw: part, packed });
        }
        Ok(())
    }

    /// The node is written: what the one before had, and this one has not, is not kept any longer.
    pub fn turn(&mut self) {
        let content: usize = self.next.values().map(|frame| frame.raw.len()).sum();
        self.kept = std::mem::take(&mut self.next);
        self.next.reserve(self.kept.len());
        if content > KEPT_CONTENT_MAX_SIZE_BYTES {
            *self = Frames::default();
        }
    }
}

/// Appends a buffer as one LZ4 frame.
pub fn lz4(raw: &[u8], file: &mut Vec<u8>) -> Result<(), String> {
    use std::io::Write;
    let mut encoder = lz4_flex::frame::FrameEncoder::new(file);
    encoder.write_all(raw).map_err(|error| error.to_string())?;
    encoder.finish().map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;

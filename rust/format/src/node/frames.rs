//! Compressing buffers: as one frame, or as several one after the other, of which most are kept from the node before.
//!
//! A root has nearly all rows in common with the root before it, and compressing it took more than half of a commit's
//! processor time in the core. So its texts are cut where a row says so, whatever stands before it: a row that comes in
//! or goes moves no cut but those next to it. What stands between two cuts is a ZSTD frame of its own; of those that the
//! last root had as well the compressed bytes are still there.
//!
//! Invariant: what is stored does not depend on what was kept. A kept frame is taken only for the very same bytes.

use std::collections::HashMap;

use arrow_array::{Array, StringArray};
use arrow_buffer::Buffer;
use xxhash_rust::xxh3::xxh3_64;

use super::zstd::Compressor;

/// Messages between two cuts; of those whose number may be the last, one in so many is.
const MESSAGES_MIN: usize = 32;
const MESSAGES_MAX: usize = 128;
const ONE_IN: u64 = 32;
/// Offsets of so many rows at least: a frame takes some bytes of its own.
const OFFSETS_MIN: usize = 128;
/// What larger nodes are compressed to is not kept.
const KEPT_CONTENT_MAX_SIZE_BYTES: usize = 1 << 20;

/// Rows before which the texts of a node are cut.
#[derive(Debug, Default)]
pub struct Cuts(Vec<usize>);

impl Cuts {
    /// Those of a root: system rows, key table, and pieces of its write buffer.
    pub fn of_root<'a>(n_system: usize, order: usize, messages: impl Iterator<Item = &'a str>) -> Cuts {
        let buffer = n_system + order;
        let mut cuts = vec![n_system, buffer];
        let mut last = 0;
        for (number, key) in messages.enumerate() {
            let since = number + 1 - last;
            let is_cut = xxh3_64(key.as_bytes()).is_multiple_of(ONE_IN);
            if since >= MESSAGES_MAX || (since >= MESSAGES_MIN && is_cut) {
                last = number + 1;
                cuts.push(buffer + last);
            }
        }
        Cuts(cuts)
    }

    /// In bytes of the texts of a column.
    pub fn of_texts(&self, column: &StringArray) -> Vec<usize> {
        let ends = column.offsets();
        let rows = self.0.iter().filter(|row| **row < column.len());
        rows.map(|row| (ends[*row] - ends[0]) as usize).collect()
    }

    /// In bytes of the offsets of a column.
    pub fn of_offsets(&self) -> Vec<usize> {
        let mut last = 0;
        let far = self.0.iter().filter(|row| {
            let is_far = **row >= last + OFFSETS_MIN;
            last = if is_far { **row } else { last };
            is_far
        });
        far.map(|row| row * size_of::<i32>()).collect()
    }
}

#[derive(Debug)]
struct Frame {
    raw: Buffer,
    packed: Vec<u8>,
}

/// Compresses buffers, and keeps what those of one node became for the next one.
#[derive(Debug, Default)]
pub struct Frames {
    compressor: Option<Compressor>,
    kept: HashMap<u64, Frame>,
    /// Of the node that is being written.
    next: HashMap<u64, Frame>,
}

impl Frames {
    /// Appends a buffer as ZSTD frames, with cuts at these bytes.
    pub fn pack(&mut self, raw: &Buffer, cuts: &[usize], file: &mut Vec<u8>) -> Result<(), String> {
        if self.compressor.is_none() {
            self.compressor = Some(Compressor::new()?);
        }
        let compressor = self.compressor.as_mut().ok_or("no compressor")?;
        if cuts.is_empty() {
            return compressor.append(raw, file);
        }
        let mut start = 0;
        for end in cuts.iter().copied().chain([raw.len()]) {
            if end == start {
                continue;
            }
            let part = raw.slice_with_length(start, end - start);
            start = end;
            let hash = xxh3_64(&part);
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

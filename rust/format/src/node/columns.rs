//! Decoding of the columns of a node's record batch: from the body of an Arrow message to strings (format §5).
//!
//! Only the decompression of ZSTD differs between builds. If a buffer states a larger size than the format allows, the
//! file is refused before memory is allocated. All values are validated after reading.

use std::io::Read;

use arrow_array::StringArray;
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::{CompressionType, RecordBatch, root_as_message};
use lz4_flex::frame::FrameDecoder;

use super::COLUMNS;
use super::zstd::Zstd;

/// Number of buffers of a column: validity, offsets and bytes.
pub const BUFFERS_PER_COLUMN: usize = 3;
/// A compressed buffer begins with its decompressed size, or -1 if it is not compressed.
const SIZE_PREFIX_SIZE_BYTES: usize = 8;
pub const NOT_COMPRESSED: i64 = -1;

/// Maximum size of the content of a node.
pub const CONTENT_MAX_SIZE_BYTES: u64 = 2 << 30;
/// Up to this size, any compression ratio is accepted. Nodes should have at most 1 MiB (`node_file_max_size_bytes`);
/// only a large transaction creates a much larger node.
pub const SMALL_CONTENT_SIZE_BYTES: u64 = 4 << 20;
/// Maximum accepted compression ratio; padded keys do not compress better.
const COMPRESSION_RATIO_MAX: u64 = 1024;
/// Above this size, only a lower compression ratio is accepted, so that the memory of a reader is proportional to the
/// bytes that it reads.
const MEDIUM_CONTENT_SIZE_BYTES: u64 = 64 << 20;
const LARGE_COMPRESSION_RATIO_MAX: u64 = 32;

/// Maximum decompressed size that a compressed record batch of this size may state (format §5).
fn content_limit_bytes(body_size_bytes: u64) -> u64 {
    let most = body_size_bytes.saturating_mul(LARGE_COMPRESSION_RATIO_MAX).max(MEDIUM_CONTENT_SIZE_BYTES);
    let content = body_size_bytes.saturating_mul(COMPRESSION_RATIO_MAX);
    content.clamp(SMALL_CONTENT_SIZE_BYTES, most).min(CONTENT_MAX_SIZE_BYTES)
}

/// The header of a record batch, after a check that all buffers are inside its body and that their stated sizes are
/// within the limit.
pub fn checked<'a>(metadata: &'a [u8], body: &[u8]) -> Result<RecordBatch<'a>, String> {
    // A continuation marker may precede the length of the message.
    let message = match metadata.get(..4) {
        Some([0xFF, 0xFF, 0xFF, 0xFF]) => metadata.get(8..),
        Some(_) => metadata.get(4..),
        None => None,
    };
    let message = root_as_message(message.ok_or("the record batch has no header")?)
        .map_err(|error| format!("the header of the record batch is damaged: {error}"))?;
    let batch = message.header_as_record_batch().ok_or("the message is not a record batch")?;
    let is_compressed = batch.compression().is_some();
    let mut uncompressed: u64 = 0;
    for place in batch.buffers().into_iter().flatten() {
        let content = content_of(place, body)?;
        let size = match content.first_chunk::<SIZE_PREFIX_SIZE_BYTES>() {
            Some(prefix) if is_compressed => match i64::from_le_bytes(*prefix) {
                NOT_COMPRESSED => (content.len() - SIZE_PREFIX_SIZE_BYTES) as u64,
                size => u64::try_from(size).map_err(|_| format!("{size} is no uncompressed size of a buffer"))?,
            },
            None if is_compressed && !content.is_empty() => {
                return Err("a compressed buffer is too short to state its size".into());
            }
            _ => content.len() as u64,
        };
        uncompressed = uncompressed.saturating_add(size);
    }
    let limit = content_limit_bytes(body.len() as u64);
    if uncompressed > limit {
        return Err(format!(
            "refused: its {} bytes state that they decompress to {uncompressed} bytes; the limit is {limit}",
            body.len()
        ));
    }
    if batch.length() < 0 || batch.length() as u64 > limit {
        return Err(format!("{} is not a number of rows", batch.length()));
    }
    Ok(batch)
}

/// Returns the four columns of a batch that was [`checked`] against this body. Uncompressed buffers are not copied.
pub fn read(batch: &RecordBatch<'_>, body: &Buffer) -> Result<[StringArray; COLUMNS.len()], String> {
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return Err("the record batch has no columns".into());
    };
    if nodes.len() != COLUMNS.len() || buffers.len() != BUFFERS_PER_COLUMN * COLUMNS.len() {
        return Err(format!("a record batch of {} columns with {} buffers", nodes.len(), buffers.len()));
    }
    let mut plain = Plain::of(batch)?;
    let mut column = |number: usize| -> Result<StringArray, String> {
        let node = nodes.get(number);
        if node.length() != batch.length() {
            return Err(format!("column {} has {} rows, not {}", COLUMNS[number], node.length(), batch.length()));
        }
        let mut buffer = |part: usize| -> Result<Buffer, String> {
            let place = buffers.get(BUFFERS_PER_COLUMN * number + part);
            content_of(place, body)?;
            plain.buffer(body.slice_with_length(place.offset() as usize, place.length() as usize))
        };
        let (validity, offsets, bytes) = (buffer(0)?, buffer(1)?, buffer(2)?);
        texts(node.length() as usize, node.null_count(), validity, offsets, bytes)
            .map_err(|message| format!("column {}: {message}", COLUMNS[number]))
    };
    Ok([column(0)?, column(1)?, column(2)?, column(3)?])
}

fn content_of<'a>(place: &arrow_ipc::Buffer, body: &'a [u8]) -> Result<&'a [u8], String> {
    let (offset, length) = (place.offset(), place.length());
    usize::try_from(offset)
        .ok()
        .zip(usize::try_from(length).ok())
        .and_then(|(offset, length)| body.get(offset..offset.checked_add(length)?))
        .ok_or_else(|| format!("a buffer of {length} bytes at {offset} is outside of the record batch"))
}

/// Decompresses the buffers of a batch.
enum Plain {
    AsTheyAre,
    Lz4,
    Zstd(Zstd),
}

impl Plain {
    fn of(batch: &RecordBatch<'_>) -> Result<Plain, String> {
        match batch.compression().map(|how| how.codec()) {
            None => Ok(Plain::AsTheyAre),
            Some(CompressionType::LZ4_FRAME) => Ok(Plain::Lz4),
            Some(CompressionType::ZSTD) => Ok(Plain::Zstd(Zstd::new()?)),
            Some(other) => Err(format!("unknown compression {}", other.0)),
        }
    }

    /// Decompresses one buffer. The caller has checked its stated size against the limit.
    fn buffer(&mut self, content: Buffer) -> Result<Buffer, String> {
        let Some(prefix) = content.first_chunk::<SIZE_PREFIX_SIZE_BYTES>() else { return Ok(content) };
        let stated = i64::from_le_bytes(*prefix);
        let compressed = &content[SIZE_PREFIX_SIZE_BYTES..];
        let size = match (&self, usize::try_from(stated)) {
            (Plain::AsTheyAre, _) => return Ok(content),
            (_, Ok(0)) => return Ok(Buffer::from([])),
            (_, Ok(size)) => size,
            (_, Err(_)) if stated == NOT_COMPRESSED => return Ok(content.slice(SIZE_PREFIX_SIZE_BYTES)),
            (_, Err(_)) => return Err(format!("{stated} is no uncompressed size of a buffer")),
        };
        let found = match self {
            Plain::AsTheyAre => return Ok(content),
            Plain::Lz4 => lz4(compressed, size),
            Plain::Zstd(zstd) => zstd.decompress(compressed, size),
        };
        let found = found.map_err(|error| format!("a buffer cannot be decompressed: {error}"))?;
        if found.len() != size {
            return Err(format!("a buffer that says it decompresses to {size} bytes has more or fewer"));
        }
        Ok(Buffer::from_vec(found))
    }
}

/// Decompresses at most one byte more than the stated size, to detect a longer frame without decompressing it.
fn lz4(compressed: &[u8], size: usize) -> Result<Vec<u8>, String> {
    let mut found = Vec::with_capacity(size);
    let mut frame = FrameDecoder::new(compressed).take(size as u64 + 1);
    frame.read_to_end(&mut found).map_err(|error| error.to_string())?;
    Ok(found)
}

fn texts(
    rows: usize,
    null_count: i64,
    validity: Buffer,
    offsets: Buffer,
    bytes: Buffer,
) -> Result<StringArray, String> {
    // Ignore the validity buffer of a column without nulls, because Arrow writers may omit it.
    let nulls = if null_count == 0 {
        None
    } else {
        if validity.len() < rows.div_ceil(8) {
            return Err("the validity buffer is too short for its rows".into());
        }
        let nulls = NullBuffer::new(BooleanBuffer::new(validity, 0, rows));
        if nulls.null_count() as i64 != null_count {
            return Err(format!("{} rows are null, the record batch says {null_count}", nulls.null_count()));
        }
        Some(nulls)
    };
    let ends = if rows == 0 { OffsetBuffer::new_empty() } else { offsets_of(rows, offsets)? };
    StringArray::try_new(ends, bytes, nulls).map_err(|error| format!("not a valid Arrow record batch: {error}"))
}

fn offsets_of(rows: usize, buffer: Buffer) -> Result<OffsetBuffer<i32>, String> {
    let size = (rows + 1) * size_of::<i32>();
    if buffer.len() < size {
        return Err("the offset buffer is too short for its rows".into());
    }
    let is_aligned = buffer.as_ptr().align_offset(align_of::<i32>()) == 0;
    // Other writers need not align buffers.
    let buffer = if is_aligned { buffer } else { Buffer::from(&buffer[..size]) };
    let ends: ScalarBuffer<i32> = ScalarBuffer::new(buffer, 0, rows + 1);
    if ends[0] < 0 || !ends.is_sorted() {
        return Err("not a valid Arrow record batch: the offsets of its texts do not ascend".into());
    }
    Ok(OffsetBuffer::new(ends))
}

#[cfg(test)]
mod tests;

//! Decompression of ZSTD in data files and manifests of tables, which is not part of the format.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Size of the steps in which data is decompressed; the limit is checked after each step.
const STEP_SIZE_BYTES: usize = 1 << 20;

/// Returns the content of a frame; `None` if the frame is damaged or contains more than `limit` bytes.
pub fn decompressed(frame: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut rest = frame;
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut rest).ok()?;
    let mut found = Vec::new();
    while !decoder.is_finished() {
        decoder.decode_blocks(&mut rest, BlockDecodingStrategy::UptoBytes(STEP_SIZE_BYTES)).ok()?;
        found.append(&mut decoder.collect()?);
        if found.len() > limit {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame is decompressed up to the limit only. Otherwise a small page of a data file without a stated length
    /// could take a gigabyte of memory.
    #[test]
    fn a_frame_is_read_up_to_its_limit() {
        let content = b"some rows, ".repeat(300_000);
        let frame = zstd::bulk::compress(&content, 1).unwrap();
        assert_eq!(decompressed(&frame, content.len()).as_ref(), Some(&content));
        assert_eq!(decompressed(&frame, content.len() - 1), None);
        assert_eq!(decompressed(&frame[..frame.len() / 2], content.len()), None);
        assert_eq!(decompressed(b"no frame", 100), None);
        assert_eq!(decompressed(&zstd::bulk::compress(b"", 1).unwrap(), 0), Some(Vec::new()));
    }
}

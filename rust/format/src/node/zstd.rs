//! ZSTD: by the library in C where that can be linked; in a browser, which writes no nodes, by one in Rust that
//! decompresses.

/// Starts each frame (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// The header of a frame says how long its content is, which is all in one piece, with one byte, or with two.
const SIZE_IN_ONE_BYTE: u8 = 0x20;
const SIZE_IN_TWO_BYTES: u8 = 0x60;
/// With two bytes the size is told from here on.
const TWO_BYTES_MIN: usize = 256;
/// The last block of a frame, which holds its bytes as they are.
const LAST_RAW_BLOCK: u32 = 1;

/// Appends a frame that holds at most 64 KiB as they are.
pub fn append_as_it_is(raw: &[u8], file: &mut Vec<u8>) {
    file.extend_from_slice(&MAGIC);
    match u8::try_from(raw.len()) {
        Ok(size) => file.extend_from_slice(&[SIZE_IN_ONE_BYTE, size]),
        Err(_) => {
            file.push(SIZE_IN_TWO_BYTES);
            file.extend_from_slice(&((raw.len() - TWO_BYTES_MIN) as u16).to_le_bytes());
        }
    }
    let block = LAST_RAW_BLOCK | ((raw.len() as u32) << 3);
    file.extend_from_slice(&block.to_le_bytes()[..3]);
    file.extend_from_slice(raw);
}

#[cfg(any(test, target_family = "wasm"))]
pub mod in_rust {
    use ruzstd::decoding::FrameDecoder;

    /// Decompresses one buffer after the other.
    pub struct Zstd(FrameDecoder);

    impl Zstd {
        pub fn new() -> Result<Zstd, String> {
            Ok(Zstd(FrameDecoder::new()))
        }

        /// What the frames hold, which is an error if that is more than `size` bytes.
        pub fn decompress(&mut self, compressed: &[u8], size: usize) -> Result<Vec<u8>, String> {
            let mut found = vec![0; size];
            let written = self
                .0
                .decode_all(compressed, &mut found)
                .map_err(|_| "not valid ZSTD, or more of it than is stated")?;
            found.truncate(written);
            Ok(found)
        }
    }

    /// Nobody writes nodes in a browser.
    #[derive(Debug)]
    pub struct Compressor;

    impl Compressor {
        pub fn new() -> Result<Compressor, String> {
            Err("there is no compressor for ZSTD here".to_string())
        }

        pub fn append(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), String> {
            Err("there is no compressor for ZSTD here".to_string())
        }
    }
}

#[cfg(not(target_family = "wasm"))]
pub mod in_c {
    /// Decompresses one buffer after the other.
    pub struct Zstd(zstd::bulk::Decompressor<'static>);

    impl Zstd {
        pub fn new() -> Result<Zstd, String> {
            zstd::bulk::Decompressor::new().map(Zstd).map_err(|error| error.to_string())
        }

        /// What the frames hold, which is an error if that is more than `size` bytes.
        pub fn decompress(&mut self, compressed: &[u8], size: usize) -> Result<Vec<u8>, String> {
            self.0.decompress(compressed, size).map_err(|error| error.to_string())
        }
    }

    /// Levels 3 to 9 gain at most three percent on padded keys; those below 0 take half as many bytes more.
    const LEVEL: i32 = 1;

    /// Compresses one buffer after the other.
    pub struct Compressor(zstd::bulk::Compressor<'static>);

    impl Compressor {
        pub fn new() -> Result<Compressor, String> {
            zstd::bulk::Compressor::new(LEVEL).map(Compressor).map_err(|error| error.to_string())
        }

        /// Appends one frame.
        pub fn append(&mut self, raw: &[u8], file: &mut Vec<u8>) -> Result<(), String> {
            let start = file.len();
            file.resize(start + zstd::zstd_safe::compress_bound(raw.len()), 0);
            let size =
                self.0.compress_to_buffer(raw, &mut file[start..]).map_err(|error| error.to_string())?;
            file.truncate(start + size);
            Ok(())
        }
    }

    impl std::fmt::Debug for Compressor {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("Compressor")
        }
    }
}

#[cfg(not(target_family = "wasm"))]
pub use in_c::{Compressor, Zstd};
#[cfg(target_family = "wasm")]
pub use in_rust::{Compressor, Zstd};

//! Decompression of ZSTD with the C library. The WebAssembly build cannot link the C library and uses a Rust library.

#[cfg(any(test, target_family = "wasm"))]
pub mod in_rust {
    use ruzstd::decoding::FrameDecoder;

    /// Decompressor for any number of buffers.
    pub struct Zstd(FrameDecoder);

    impl Zstd {
        pub fn new() -> Result<Zstd, String> {
            Ok(Zstd(FrameDecoder::new()))
        }

        /// Decompresses the frames; fails if they contain more than `size` bytes.
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
}

#[cfg(not(target_family = "wasm"))]
pub mod in_c {
    /// Decompressor for any number of buffers.
    pub struct Zstd(zstd::bulk::Decompressor<'static>);

    impl Zstd {
        pub fn new() -> Result<Zstd, String> {
            zstd::bulk::Decompressor::new().map(Zstd).map_err(|error| error.to_string())
        }

        /// Decompresses the frames; fails if they contain more than `size` bytes.
        pub fn decompress(&mut self, compressed: &[u8], size: usize) -> Result<Vec<u8>, String> {
            self.0.decompress(compressed, size).map_err(|error| error.to_string())
        }
    }
}

#[cfg(not(target_family = "wasm"))]
pub use in_c::Zstd;
#[cfg(target_family = "wasm")]
pub use in_rust::Zstd;

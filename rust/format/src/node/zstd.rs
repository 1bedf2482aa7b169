//! Decompression of ZSTD: by the library in C, or in a browser, where that cannot be linked, by one in Rust.

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
}

#[cfg(not(target_family = "wasm"))]
pub use in_c::Zstd;
#[cfg(target_family = "wasm")]
pub use in_rust::Zstd;

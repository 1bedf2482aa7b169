//! Files that an Iceberg table references: its metadata, manifest lists and manifests, decoded. Also the Bloom filters
//! of Parquet files, which pyarrow cannot read. This crate decodes bytes and reads no files.
//!
//! A location that cannot be decoded is an error. Garbage collection deletes every unreferenced file, so no location may
//! be skipped.

pub mod bloom_filter;
mod manifests;
mod metadata;
mod reference;

use bytes::Bytes;

use trinitylake_base::error::Result;

pub use metadata::Metadata;
pub use reference::{Form, Named};

/// Files that a metadata file references.
pub fn in_metadata(bytes: &Bytes, path: &str) -> Result<Metadata> {
    metadata::read(bytes, path)
}

/// Files that a manifest list or a manifest references. `path` is for errors.
pub fn in_file(form: Form, bytes: &Bytes, path: &str) -> Result<Vec<Named>> {
    match form {
        Form::ManifestList => manifests::manifests(bytes, path),
        Form::Manifest => manifests::content_files(bytes, path),
        Form::Content | Form::Deletes => Ok(Vec::new()),
    }
}

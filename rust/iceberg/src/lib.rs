//! Files that an Iceberg table references: its metadata, manifest lists and manifests, decoded. Also the Bloom filters
//! of Parquet files, which pyarrow cannot read. This crate decodes bytes and reads no files.
//!
//! A location that cannot be decoded is an error. Garbage collection deletes every unreferenced file, so no location may
//! be skipped.

pub mod bloom_filter;
mod manifests;
mod metadata;

use bytes::Bytes;

use trinitylake_base::error::Result;

pub use metadata::{Metadata, read as in_metadata};

/// Kind of a file, which determines the references that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    ManifestList,
    Manifest,
    /// No references: a data file or statistics.
    Content,
    /// No references: a delete file.
    Deletes,
}

/// A reference to a file of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As stored in the referencing file, usually a URI.
    pub location: String,
    pub form: Form,
}

/// Files that a manifest list or a manifest references. `path` is for errors.
pub fn in_file(form: Form, bytes: &Bytes, path: &str) -> Result<Vec<Named>> {
    match form {
        Form::ManifestList => manifests::manifests(bytes, path),
        Form::Manifest => manifests::content_files(bytes, path),
        Form::Content | Form::Deletes => Ok(Vec::new()),
    }
}

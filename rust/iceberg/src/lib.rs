//! Decodes the metadata, manifest lists and manifests of an Iceberg table, and returns the files that they reference.
//! Also decodes Bloom filters of Parquet files, which pyarrow cannot read. This crate reads no files.
//!
//! A location that cannot be decoded is an error. Garbage collection deletes every unreferenced file, so no location
//! may be skipped.

pub mod bloom_filter;
mod manifests;
mod metadata;

use bytes::Bytes;

use trinitylake_base::error::Result;

pub use metadata::{Metadata, read as in_metadata};

/// Type of a file, which determines the references that it contains.
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
    /// Location as stored in the referencing file, usually a URI.
    pub location: String,
    pub form: Form,
}

/// Returns the files that a manifest list or a manifest references. `path` is for error messages.
pub fn in_file(form: Form, bytes: &Bytes, path: &str) -> Result<Vec<Named>> {
    match form {
        Form::ManifestList => manifests::manifests(bytes, path),
        Form::Manifest => manifests::content_files(bytes, path),
        Form::Content | Form::Deletes => Ok(Vec::new()),
    }
}

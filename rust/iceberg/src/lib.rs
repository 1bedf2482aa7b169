//! Which files an Iceberg table consists of: what its metadata, manifest lists and manifests name. No storage: bytes in,
//! locations out, as they are written there.
//!
//! A name that cannot be read is an error, never a file less: who asks wants to delete all that is not named.

mod avro;
mod metadata;

use bytes::Bytes;

use trinitylake_base::error::Result;

pub use metadata::Metadata;

/// How to find what else a file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    ManifestList,
    Manifest,
    /// It names nothing: a data file, statistics.
    Content,
    /// It names nothing: rows that were deleted from data files.
    Deletes,
}

/// A file of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As it is written: a URI, mostly.
    pub location: String,
    pub form: Form,
}

/// What a metadata file names.
pub fn in_metadata(bytes: &Bytes, path: &str) -> Result<Metadata> {
    metadata::read(bytes, path)
}

/// What a manifest list or a manifest names. `path` is for errors.
pub fn in_file(form: Form, bytes: &Bytes, path: &str) -> Result<Vec<Named>> {
    match form {
        Form::ManifestList => avro::manifests(bytes, path),
        Form::Manifest => avro::content_files(bytes, path),
        Form::Content | Form::Deletes => Ok(Vec::new()),
    }
}

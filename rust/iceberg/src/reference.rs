//! A reference from one file of a table to another.

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

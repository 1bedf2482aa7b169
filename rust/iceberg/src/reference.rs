//! A file that another file of a table references.

/// Which references a file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    ManifestList,
    Manifest,
    /// None: a data file, statistics.
    Content,
    /// None: rows that were deleted from data files.
    Deletes,
}

/// A file of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As it is stored, usually a URI.
    pub location: String,
    pub form: Form,
}

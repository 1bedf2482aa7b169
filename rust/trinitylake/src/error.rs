//! What can go wrong, sorted by what the caller should do next.
//!
//! A kind answers "retry, fix the input, give up, or call someone?"; the message says what, where and
//! which limit. Kinds are stable: Python exceptions, exit codes and documentation are made from them.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A committed transaction that another one lost to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Winner {
    pub version: u64,
    pub transaction_id: String,
    pub message: String,
    pub author: String,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A namespace, table or view that was named does not exist.
    #[error("{0}")]
    ObjectNotFound(String),
    #[error("{0}")]
    ObjectAlreadyExists(String),
    #[error("{0}")]
    NamespaceNotEmpty(String),
    #[error("{0}")]
    InvalidName(String),
    #[error("{0}")]
    InvalidLocation(String),
    /// An argument that no rule of the format covers: a bad option, an unknown isolation level.
    #[error("{0}")]
    InvalidArgument(String),
    /// Another transaction committed first and touched the same things. Start again on the new version.
    #[error("{message}")]
    CommitConflict { message: String, keys: Vec<String>, winners: Vec<Winner> },
    /// The commit may or may not have happened; nothing was deleted.
    #[error("{0}")]
    CommitStateUnknown(String),
    #[error("{0}")]
    TransactionExpired(String),
    #[error("{0}")]
    VersionNotFound(String),
    #[error("{0}")]
    VersionExpired(String),
    #[error("{path}: {message}")]
    CorruptFile { path: String, message: String },
    #[error("{0}")]
    UnsupportedVersion(String),
    /// A file of the lakehouse is not there. Callers that know what the file meant turn this into
    /// their own kind; what is left reaches the user as a storage error.
    #[error("{path}: no such file")]
    FileNotFound { path: String },
    #[error("{message}")]
    Storage { message: String, retryable: bool },
    #[error("{0}")]
    PermissionDenied(String),
    #[error("{0}")]
    NotALakehouse(String),
}

impl Error {
    pub fn corrupt(path: impl Into<String>, message: impl fmt::Display) -> Self {
        Error::CorruptFile { path: path.into(), message: message.to_string() }
    }

    pub fn is_file_not_found(&self) -> bool {
        matches!(self, Error::FileNotFound { .. })
    }
}

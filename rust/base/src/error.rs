//! The kinds of errors. A kind tells the caller what to do next: retry, correct the input, give up, or ask an
//! operator. The message says what failed, where, and which limit applies.
//!
//! Kinds are stable: Python exceptions, exit codes and documentation are made from them.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The committed transaction that caused a conflict.
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
    /// The transaction is over, or its commit has begun: it does not take this step any more.
    #[error("{0}")]
    TransactionClosed(String),
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
    /// The store did nothing of what it was asked for, and will not on another try: no space is left, there
    /// is no such bucket, it lacks the feature.
    #[error("{0}")]
    StorageRefused(String),
    #[error("{0}")]
    PermissionDenied(String),
    #[error("{0}")]
    NotALakehouse(String),
    /// The lakehouse lies elsewhere than it records: it can be read, and written once it was relocated.
    #[error("{0}")]
    LakehouseMoved(String),
}

impl Error {
    pub fn conflict(message: String) -> Error {
        Error::CommitConflict { message, keys: Vec::new(), winners: Vec::new() }
    }

    pub fn corrupt(path: impl Into<String>, message: impl fmt::Display) -> Self {
        Error::CorruptFile { path: path.into(), message: message.to_string() }
    }

    /// Does this answer to the creation of a file prove that the request created nothing? The list is of what
    /// does: any other error leaves open whether the file is there, or will be.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::PermissionDenied(_)
            | Error::InvalidLocation(_)
            | Error::InvalidArgument(_)
            | Error::StorageRefused(_) => true,
            Error::ObjectNotFound(_)
            | Error::ObjectAlreadyExists(_)
            | Error::NamespaceNotEmpty(_)
            | Error::InvalidName(_)
            | Error::CommitConflict { .. }
            | Error::CommitStateUnknown(_)
            | Error::TransactionExpired(_)
            | Error::TransactionClosed(_)
            | Error::VersionNotFound(_)
            | Error::VersionExpired(_)
            | Error::CorruptFile { .. }
            | Error::UnsupportedVersion(_)
            | Error::FileNotFound { .. }
            | Error::Storage { .. }
            | Error::NotALakehouse(_)
            | Error::LakehouseMoved(_) => false,
        }
    }

    pub fn is_file_not_found(&self) -> bool {
        matches!(self, Error::FileNotFound { .. })
    }
}

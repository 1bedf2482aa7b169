//! The kinds of errors. From the kind, a caller decides what to do next: retry, correct the input, abort, or ask an
//! operator. The message says what failed, where, and which limit applies.
//!
//! Kinds are stable, because Python exceptions, exit codes and the documentation are generated from them.

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
    /// A namespace, table or view in the request does not exist.
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
    /// An invalid argument without a more specific kind of error, such as an unknown isolation level.
    #[error("{0}")]
    InvalidArgument(String),
    /// A concurrent transaction changed the same objects and committed first. The caller has to repeat the transaction
    /// on the new version.
    #[error("{message}")]
    CommitConflict { message: String, keys: Vec<String>, winners: Vec<Winner> },
    /// It is unknown whether the transaction was committed. No file was deleted.
    #[error("{0}")]
    CommitStateUnknown(String),
    #[error("{0}")]
    TransactionExpired(String),
    /// The transaction has ended or its commit has begun, so it no longer accepts this operation.
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
    /// A file of the lakehouse does not exist. Callers that know the meaning of the file translate this into a more
    /// specific kind; otherwise it reaches the user as a storage error.
    #[error("{path}: no such file")]
    FileNotFound { path: String },
    #[error("{message}")]
    Storage { message: String, retryable: bool },
    /// The store refused the request without any effect, and a retry would fail as well: the disk is full, the bucket
    /// does not exist, or the store lacks the feature.
    #[error("{0}")]
    StorageRefused(String),
    #[error("{0}")]
    PermissionDenied(String),
    #[error("{0}")]
    NotALakehouse(String),
    /// The lakehouse is not at its recorded root URI. It can be read, and has to be relocated before it is written to.
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

    pub fn is_file_not_found(&self) -> bool {
        matches!(self, Error::FileNotFound { .. })
    }
}

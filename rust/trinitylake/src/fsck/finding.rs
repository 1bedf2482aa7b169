//! Findings of fsck.

use bytes::Bytes;

use crate::error::Error;

/// The type of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A referenced file does not exist.
    Missing,
    /// A file cannot be decoded, or its checksum is wrong.
    Damaged,
    /// An intact file is stored under the name of another file.
    Misplaced,
    /// Files contradict each other.
    Broken,
    /// The hint file is missing or does not contain a version number.
    Hint,
    /// No retained version references the file. This is harmless: garbage collection deletes the file.
    Unreferenced,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Missing => "missing",
            Kind::Damaged => "damaged",
            Kind::Misplaced => "misplaced",
            Kind::Broken => "broken",
            Kind::Hint => "hint",
            Kind::Unreferenced => "unreferenced",
        }
    }
}

/// A fault of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    pub path: String,
    pub message: String,
    /// Affected versions among the checked ones, ascending.
    pub versions: Vec<u64>,
    /// The names of the affected objects, or a description of their key range.
    pub affected: Vec<String>,
}

impl Finding {
    pub(super) fn new(kind: Kind, path: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { kind, path: path.into(), message: message.into(), versions: Vec::new(), affected: Vec::new() }
    }

    /// Returns the finding for an error that occurred when a file was read.
    pub(super) fn of(error: &Error, path: &str) -> Finding {
        let kind = if error.is_file_not_found() { Kind::Missing } else { Kind::Damaged };
        let message = match error {
            Error::CorruptFile { message, .. } => message.clone(),
            Error::FileNotFound { .. } => "the file is missing".into(),
            other => other.to_string(),
        };
        Finding::new(kind, path, message)
    }

    pub(super) fn at(mut self, version: u64) -> Finding {
        self.versions = vec![version];
        self
    }
}

/// The definition of a table, whose Iceberg files the caller checks.
#[derive(Clone, Debug)]
pub struct FoundTable {
    pub namespace: String,
    pub name: String,
    pub location: String,
    pub definition: Bytes,
}

/// A faulty definition. It is reported only if it is the value of its key in a checked version.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub key: String,
    pub finding: Finding,
}

//! Options of a transaction: isolation level, id and its log entry.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::lakehouse_definition::proto::IsolationLevel;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The commit fails if a concurrent transaction wrote a key that this transaction also wrote.
    #[default]
    Snapshot,
    /// The commit also fails if a concurrent transaction wrote a key, or into a range, that this transaction read.
    Serializable,
}

impl Isolation {
    pub fn parse(name: &str) -> Result<Isolation> {
        match name.to_ascii_lowercase().as_str() {
            "snapshot" => Ok(Isolation::Snapshot),
            "serializable" => Ok(Isolation::Serializable),
            _ => {
                Err(Error::InvalidArgument(format!("isolation {name:?} is not one of \"snapshot\", \"serializable\"")))
            }
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Isolation::Snapshot => "snapshot",
            Isolation::Serializable => "serializable",
        }
    }

    pub(crate) fn to_proto(self) -> IsolationLevel {
        match self {
            Isolation::Snapshot => IsolationLevel::Snapshot,
            Isolation::Serializable => IsolationLevel::Serializable,
        }
    }

    pub(crate) fn of_proto(level: IsolationLevel) -> Isolation {
        match level {
            IsolationLevel::Snapshot => Isolation::Snapshot,
            IsolationLevel::Serializable => Isolation::Serializable,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct TransactionOptions {
    pub isolation: Isolation,
    /// Id chosen by the user, which is recorded in the tree, so that it commits at most once. `None` for a new UUID.
    pub id: Option<String>,
    pub message: String,
    pub author: String,
    pub properties: BTreeMap<String, String>,
}

/// Commit message and author of a commit that the library makes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// If empty, the default message of the library is used.
    pub message: String,
    pub author: String,
}

impl Note {
    /// Returns the message, or `own` if the message is empty.
    pub fn message_or(&self, own: &str) -> String {
        if self.message.is_empty() { own.to_string() } else { self.message.clone() }
    }

    /// Returns options for a commit of the library with the default message `own`.
    pub(crate) fn options(&self, own: &str) -> TransactionOptions {
        let (message, author) = (self.message_or(own), self.author.clone());
        TransactionOptions { message, author, ..TransactionOptions::default() }
    }
}

//! Changes of a transaction: new locations of keys, and the lakehouse definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::definition_file::encode_file;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::node::mutable_node::{Message, Text};

/// The new location of a key.
#[derive(Clone, Debug)]
pub(crate) enum NewValue {
    /// A definition file that exists already, for instance of a renamed object.
    Existing(String),
    /// A definition whose file the commit has to write.
    Staged {
        path: String,
        bytes: Bytes,
        written: bool,
    },
    Deleted,
}

impl NewValue {
    pub(crate) fn location(&self) -> Option<&str> {
        match self {
            NewValue::Existing(path) | NewValue::Staged { path, .. } => Some(path),
            NewValue::Deleted => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// Location of the object in the version on which this write is based; `None` if the object is new.
    pub base: Option<String>,
    pub value: NewValue,
    /// Number of the newest version against which this write was checked for conflicts.
    pub checked: u64,
    /// The former key of a renamed object, for the log.
    pub renamed_from: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub writes: BTreeMap<String, Write>,
    /// Path and content of a changed lakehouse definition.
    pub definition: Option<(String, Arc<LakehouseDefinition>)>,
    pub is_definition_written: bool,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.definition.is_none()
    }

    /// Returns the changes as messages for the buffer of a root.
    pub(crate) fn messages(&self, id: &str) -> Vec<Message> {
        let txn: Text = id.into();
        self.writes
            .iter()
            .map(|(key, write)| Message::new(key.as_str().into(), write.value.location().map(Into::into), txn.clone()))
            .collect()
    }

    /// Returns the definition files that have not been written yet.
    pub(crate) fn unwritten_files(&self) -> Vec<(String, Bytes)> {
        let definition = self.definition.iter().filter(|_| !self.is_definition_written);
        let definition = definition.map(|(path, definition)| (path.clone(), definition.encode_file(path)));
        definition.chain(self.object_files(false)).collect()
    }

    /// Returns the definition files of objects that have been written, or those that have not.
    pub(crate) fn object_files(&self, is_written: bool) -> impl Iterator<Item = (String, Bytes)> {
        self.writes.values().filter_map(move |write| match &write.value {
            NewValue::Staged { path, bytes, written } if *written == is_written => {
                Some((path.clone(), encode_file(path, bytes)))
            }
            NewValue::Staged { .. } | NewValue::Existing(_) | NewValue::Deleted => None,
        })
    }

    /// Returns the paths of all definition files of this transaction, written or not.
    pub(crate) fn own_files(&self) -> Vec<String> {
        let staged = self.writes.values().filter_map(|write| match &write.value {
            NewValue::Staged { path, .. } => Some(path),
            NewValue::Existing(_) | NewValue::Deleted => None,
        });
        self.definition.iter().map(|(path, _)| path).chain(staged).cloned().collect()
    }

    pub(crate) fn mark_written(&mut self) {
        self.is_definition_written = true;
        for write in self.writes.values_mut() {
            if let NewValue::Staged { written, .. } = &mut write.value {
                *written = true;
            }
        }
    }
}

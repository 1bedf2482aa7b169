//! Checks of definition files: they exist, can be decoded, and their checksums and paths are right (format §6).

use bytes::Bytes;
use futures::{StreamExt, stream};
use prost::Message as _;

use super::Fsck;
use super::finding::{Finding, FoundTable, Kind, Suspect};
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::file_names::{definition_id, is_saved_state, transaction_file};
use crate::key::ObjectKind;
use crate::lakehouse_definition::proto::{DistributedTransactionDef, NamespaceDef, TableDef, ViewDef};
use crate::tree::node_source::PARALLEL_REQUESTS;

impl Fsck {
    /// Reads and checks definitions, given by key and location. Returns the tables if the caller checks their files.
    pub(super) async fn check_definitions(&mut self, named: Vec<(String, String)>) -> Result<Vec<FoundTable>> {
        let mut wanted = Vec::new();
        for (key, location) in named {
            // Keys of unknown formats belong to extensions and are not checked.
            if let Some(name) = self.name_of(&key) {
                wanted.push((key, location, name));
            }
        }
        let storage = self.storage.clone();
        let files: Vec<_> = wanted
            .into_iter()
            .map(|(key, location, name)| {
                let storage = storage.clone();
                let inline = self.inline_definitions.get(&location).cloned();
                async move {
                    let bytes = match (storage.get(&location).await, inline) {
                        // The file may not be written yet if the root contains the definition.
                        (Err(Error::FileNotFound { .. }), Some(bytes)) => Ok(bytes),
                        (read, _) => read,
                    };
                    (key, location, name, bytes)
                }
            })
            .collect();
        let mut read = stream::iter(files).buffered(PARALLEL_REQUESTS);
        let mut tables = Vec::new();
        while let Some((key, location, (kind, namespace, name), bytes)) = read.next().await {
            let finding = match bytes {
                Ok(bytes) => {
                    self.counts.definitions += 1;
                    match checked_definition(kind, &name, &location, &bytes) {
                        Err((found, message)) => Finding::new(found, &location, message),
                        Ok(definition) => {
                            if self.wants_tables && kind == ObjectKind::Table {
                                tables.push(FoundTable { namespace, name, location, definition });
                            }
                            continue;
                        }
                    }
                }
                // A running expiry has deleted the saved state, and will delete the key.
                Err(Error::FileNotFound { .. })
                    if kind == ObjectKind::TransactionRecord && is_saved_state(&location) =>
                {
                    continue;
                }
                Err(error @ (Error::FileNotFound { .. } | Error::CorruptFile { .. } | Error::InvalidLocation(_))) => {
                    Finding::of(&error, &location)
                }
                Err(error) => return Err(error),
            };
            self.suspects.push(Suspect { key, finding });
        }
        Ok(tables)
    }
}

/// Decodes a definition. Returns the definition, or the fault of its file.
pub(crate) fn checked_definition(
    kind: ObjectKind,
    name: &str,
    location: &str,
    file: &Bytes,
) -> Result<Bytes, (Kind, String)> {
    let definition = match decode_file(location, file) {
        Ok(definition) => definition,
        Err(error) => return Err((Kind::Damaged, error.to_string())),
    };
    if let Some((named, _)) = definition_id(location)
        && named != kind
    {
        let message =
            format!("it is the definition of a {}, where that of a {} is expected", named.word(), kind.word());
        return Err((Kind::Misplaced, message));
    }
    match fault_of(kind, name, location, &definition) {
        Some(problem) => Err(problem),
        None => Ok(definition),
    }
}

fn fault_of(kind: ObjectKind, name: &str, location: &str, bytes: &Bytes) -> Option<(Kind, String)> {
    let decoded = match kind {
        ObjectKind::Namespace => NamespaceDef::decode(bytes.clone()).map(|definition| definition.id),
        ObjectKind::Table => TableDef::decode(bytes.clone()).map(|definition| definition.id),
        ObjectKind::View => ViewDef::decode(bytes.clone()).map(|definition| definition.id),
        ObjectKind::TransactionRecord => {
            return match DistributedTransactionDef::decode(bytes.clone()) {
                Err(error) => Some((Kind::Damaged, format!("not the record of a transaction: {error}"))),
                Ok(record) if record.id != name || transaction_file(location).is_none_or(|(id, _)| id != name) => {
                    Some((Kind::Misplaced, format!("it is the record of transaction {:?}, not of {name}", record.id)))
                }
                Ok(_) => None,
            };
        }
    };
    match decoded {
        Err(error) => Some((Kind::Damaged, format!("not the definition of a {}: {error}", kind.word()))),
        Ok(id) if uuid::Uuid::try_parse(&id).is_err() => Some((Kind::Damaged, format!("its id {id:?} is not a UUID"))),
        Ok(_) => None,
    }
}

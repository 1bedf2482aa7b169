//! Summary of a transaction for the log, from its writes and from the table changes that the layer above describes. If
//! a root contains several transactions, each of them has a summary.

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::file_names::root_version;
use crate::key::ObjectKind;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::transaction::changes::{NewValue, Write};
use crate::transaction::handle::Transaction;
use crate::version::summary_format::{Clause, Rows, Summary, TableChange, shown};

impl Transaction {
    /// Sets the description of the changes of a table, replacing an earlier description. `InvalidArgument` if it is not
    /// printable ASCII.
    pub fn describe(&mut self, namespace: &str, name: &str, changes: Vec<TableChange>) -> Result<()> {
        let is_plain = |text: &str| text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if let Some(odd) = changes.iter().find(|one| !is_plain(&one.verb) || !is_plain(&one.tail)) {
            return Err(Error::InvalidArgument(format!("{odd:?} is not plain text for the log")));
        }
        let key = self.base.config.names.key(ObjectKind::Table, namespace, name)?;
        self.descriptions.insert(key, changes);
        Ok(())
    }

    pub fn summary(&self) -> Summary {
        let writes = &self.changes.writes;
        let moved: HashSet<&str> = writes.values().filter_map(|write| write.renamed_from.as_deref()).collect();
        let mut clauses = match &self.changes.definition {
            Some((_, changed)) => of_definition(&self.base.definition, changed),
            None => Vec::new(),
        };
        let gone = |key: &str, write: &Write| moved.contains(key) && matches!(write.value, NewValue::Deleted);
        for (key, write) in writes.iter().filter(|(key, write)| !gone(key, write)) {
            self.add_clauses(key, write, &mut clauses);
        }
        let is_record = |key: &String| ObjectKind::of_key(key) == Some(ObjectKind::TransactionRecord);
        if writes.keys().all(is_record) {
            // A companion: another transaction writes its changes.
            for (key, changes) in &self.descriptions {
                if let Some((_, namespace, name)) = self.base.config.names.decode_parts(key) {
                    clauses.extend(changes.iter().map(|one| Clause::of_change(one, namespace, name)));
                }
            }
        }
        Summary::of(clauses)
    }

    fn add_clauses(&self, key: &str, write: &Write, clauses: &mut Vec<Clause>) {
        let names = self.base.config.names;
        let Some((kind, namespace, name)) = names.decode_parts(key) else { return };
        let object = |verb: &str| Clause::of_object(verb, kind, namespace, name);
        let changes = self.descriptions.get(key).map(Vec::as_slice).unwrap_or_default();
        let rows = changes.iter().fold(Rows::default(), |sum, one| sum.plus(one.rows));
        let former = write.renamed_from.as_deref().and_then(|key| names.decode_parts(key));
        if let Some((_, former_namespace, former_name)) = former {
            let renamed = Clause::of_object("rename", kind, former_namespace, former_name);
            clauses.push(renamed.to(namespace, name));
        }
        match (&write.value, &write.base) {
            _ if kind == ObjectKind::TransactionRecord => clauses.extend(self.of_record(name, write)),
            (NewValue::Deleted, _) => clauses.push(object("drop")),
            (NewValue::Existing(_), _) if former.is_some() => {}
            (NewValue::Existing(path), Some(base)) if path == base => {}
            (NewValue::Existing(_), _) => clauses.push(object("restore")),
            (NewValue::Staged { .. }, None) if former.is_none() => {
                clauses.push(object("create").with_rows(rows));
            }
            (NewValue::Staged { .. }, _) if changes.is_empty() => {
                if former.is_none() {
                    clauses.push(object("alter"));
                }
            }
            (NewValue::Staged { .. }, _) => {
                clauses.extend(changes.iter().map(|one| Clause::of_change(one, namespace, name)));
            }
        }
    }

    /// Returns the clause for a record; `None` for the records of this transaction and its companions.
    fn of_record(&self, id: &str, write: &Write) -> Option<Clause> {
        let is_own = id == self.info.id || self.companions.iter().any(|companion| companion.id == id);
        let verb = match &write.value {
            NewValue::Deleted => "forget",
            NewValue::Staged { .. } | NewValue::Existing(_) if is_own => return None,
            NewValue::Staged { .. } | NewValue::Existing(_) => "roll back",
        };
        Some(Clause::of_object(verb, ObjectKind::TransactionRecord, "", id))
    }
}

/// Returns a clause for each changed part of the lakehouse definition.
fn of_definition(before: &LakehouseDefinition, after: &LakehouseDefinition) -> Vec<Clause> {
    let (old, new) = (before.exported_snapshots(), after.exported_snapshots());
    let made = new.iter().filter(|(name, root)| old.get(*name) != Some(*root));
    let mut clauses: Vec<Clause> = made.map(|(name, root)| Clause::plain(tag(name, root))).collect();
    let dropped = old.keys().filter(|name| !new.contains_key(*name));
    clauses.extend(dropped.map(|name| Clause::plain(format!("drop tag {}", shown(name)))));
    if before.root_uri() != after.root_uri() {
        clauses.push(Clause::plain("relocate the lakehouse"));
    }
    if clauses.is_empty() {
        clauses.push(Clause::plain("alter the lakehouse"));
    }
    clauses
}

fn tag(name: &str, root: &str) -> String {
    match root_version(root) {
        Some(version) => format!("tag version {version} as {}", shown(name)),
        None => format!("tag {}", shown(name)),
    }
}

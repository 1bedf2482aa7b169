//! Statements on objects: create, replace, drop, rename, and the rules that keep the lakehouse consistent.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::file_names::{definition_path, lakehouse_definition_path};
use crate::key::{ObjectKind, ObjectName};
use crate::lakehouse_definition::LakehouseDefinition;
use crate::transaction::changes::{NewValue, Write};
use crate::transaction::footprint::Requirement;
use crate::transaction::handle::Transaction;

impl Transaction {
    pub async fn create(&mut self, kind: ObjectKind, namespace: &str, name: &str, definition: Bytes) -> Result<()> {
        let key = self.check_name_is_free(kind, namespace, name).await?;
        let value = self.stage(kind, namespace, name, definition);
        self.write(key, None, value);
        Ok(())
    }

    /// Replaces the definition of an object.
    pub async fn replace(&mut self, kind: ObjectKind, namespace: &str, name: &str, definition: Bytes) -> Result<()> {
        let (key, current) = self.check_exists(kind, namespace, name).await?;
        let value = self.stage(kind, namespace, name, definition);
        self.write(key, Some(current), value);
        Ok(())
    }

    /// Drops an object; a namespace must be empty.
    pub async fn drop_object(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<()> {
        let (key, current) = self.check_exists(kind, namespace, name).await?;
        if kind == ObjectKind::Namespace {
            self.check_empty(namespace).await?;
        }
        self.write(key, Some(current), NewValue::Deleted);
        Ok(())
    }

    /// Renames a table or view, in the same or another namespace. Its definition file stays the same.
    pub async fn rename(&mut self, kind: ObjectKind, from: (&str, &str), to: (&str, &str)) -> Result<()> {
        if !matches!(kind, ObjectKind::Table | ObjectKind::View) {
            return Err(Error::InvalidArgument(format!("a {} cannot be renamed", kind.word())));
        }
        let (old_key, current) = self.check_exists(kind, from.0, from.1).await?;
        let new_key = self.check_name_is_free(kind, to.0, to.1).await?;
        let value = match self.changes.writes.get(&old_key) {
            Some(write) => write.value.clone(),
            None => NewValue::Existing(current.clone()),
        };
        let renamed_before = self.changes.writes.get(&old_key).and_then(|write| write.renamed_from.clone());
        self.write(old_key.clone(), Some(current), NewValue::Deleted);
        // An object that this transaction created has no former name in other versions.
        let renamed_from = renamed_before
            .or_else(|| self.changes.writes.contains_key(&old_key).then_some(old_key))
            .filter(|former| *former != new_key);
        self.write(new_key.clone(), None, value);
        if let Some(write) = self.changes.writes.get_mut(&new_key) {
            write.renamed_from = renamed_from;
        }
        Ok(())
    }

    /// Changes the definition of the lakehouse, except its root URIs and the settings on which the tree depends.
    pub fn set_lakehouse_definition(&mut self, bytes: Bytes) -> Result<()> {
        self.check_open()?;
        self.check_writable()?;
        let definition = LakehouseDefinition::decode(bytes, "(lakehouse definition)")?;
        crate::config::TreeConfig::of(&definition)?;
        let fixed = self.base.definition.fixed_settings();
        for ((setting, old), (_, new)) in fixed.into_iter().zip(definition.fixed_settings()) {
            if old != new {
                return Err(Error::InvalidArgument(format!(
                    "{setting} is fixed when a lakehouse is created: it is {old} and cannot become {new}"
                )));
            }
        }
        let current = self.definition();
        let has_same_place =
            definition.root_uri() == current.root_uri() && definition.former_root_uris() == current.former_root_uris();
        let definition = match current.root_uri() {
            Some(root) if !has_same_place => definition.placed_at(root, current.former_root_uris())?,
            _ => definition,
        };
        self.change_definition(definition);
        Ok(())
    }

    /// Records the root URI at which the lakehouse was opened, and adds the previously recorded URI and `former` to the
    /// root URIs below which files were written. Afterwards the transaction may write. Returns whether the definition
    /// changes.
    pub fn relocate(&mut self, former: &[String]) -> Result<bool> {
        self.check_open()?;
        let Some(definition) = self.placement().relocate(self.definition(), former)? else {
            return Ok(false);
        };
        self.change_definition(definition);
        Ok(true)
    }

    fn change_definition(&mut self, definition: LakehouseDefinition) {
        let path = lakehouse_definition_path(self.lakehouse.environment().uuid());
        self.changes.definition = Some((path, Arc::new(definition)));
        self.changes.is_definition_written = false;
        self.saved.is_changed = true;
    }

    pub(crate) fn stage(&self, kind: ObjectKind, namespace: &str, name: &str, bytes: Bytes) -> NewValue {
        let id = self.lakehouse.environment().uuid();
        let max_size_bytes = self.base.config.file_path_max_size_bytes;
        let path = definition_path(kind, namespace, name, id, max_size_bytes);
        NewValue::Staged { path, bytes, written: false }
    }

    pub(crate) fn write(&mut self, key: String, current: Option<String>, value: NewValue) {
        self.saved.is_changed = true;
        match self.changes.writes.get_mut(&key) {
            // This transaction created and drops the object: only a read of the absent key remains.
            Some(write) if write.base.is_none() && matches!(value, NewValue::Deleted) => {
                self.changes.writes.remove(&key);
                self.footprint_mut().read_key(&key);
            }
            Some(write) => write.value = value,
            None => {
                let checked = self.base.number;
                self.changes.writes.insert(key, Write { base: current, value, checked, renamed_from: None });
            }
        }
    }

    async fn check_exists(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<(String, String)> {
        self.check_open()?;
        self.check_writable()?;
        let key = self.base.config.names.key(kind, namespace, name)?;
        match self.peek(&key).await? {
            Some(location) => Ok((key, location)),
            None => {
                // Record the absence as a read, because the caller may act on it.
                self.footprint_mut().read_key(&key);
                Err(Error::ObjectNotFound(format!("{} does not exist", object(kind, namespace, name))))
            }
        }
    }

    /// Checks that an object of this name may be created: its namespace exists, and no table or view has the name.
    pub(crate) async fn check_name_is_free(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Result<String> {
        self.check_open()?;
        self.check_writable()?;
        let names = self.base.config.names;
        let key = names.key(kind, namespace, name)?;
        if self.peek(&key).await?.is_some() {
            self.footprint_mut().read_key(&key);
            return Err(Error::ObjectAlreadyExists(format!("{} exists", object(kind, namespace, name))));
        }
        let other = match kind {
            ObjectKind::Table => ObjectKind::View,
            ObjectKind::View => ObjectKind::Table,
            ObjectKind::Namespace | ObjectKind::TransactionRecord => return Ok(key),
        };
        let namespace_key = names.namespace_key(namespace)?;
        if self.peek(&namespace_key).await?.is_none() {
            self.footprint_mut().read_key(&namespace_key);
            return Err(Error::ObjectNotFound(format!(
                "namespace {namespace} does not exist; create it before its {}s",
                kind.word()
            )));
        }
        // If the name is too long for an object of the other kind, no such object can have it.
        let other_key = names.key(other, namespace, name).ok();
        if let Some(other_key) = &other_key
            && self.peek(other_key).await?.is_some()
        {
            self.footprint_mut().read_key(other_key);
            return Err(Error::ObjectAlreadyExists(format!(
                "{} exists, and a {} cannot have the same name",
                object(other, namespace, name),
                kind.word()
            )));
        }
        // Requirements are recorded last, because a statement that fails has none.
        self.require_unless_written(Requirement::Exists(namespace_key.clone()), &namespace_key);
        if let Some(other_key) = other_key {
            self.require_unless_written(Requirement::Absent(other_key.clone()), &other_key);
        }
        Ok(key)
    }

    /// Adds a requirement, unless this transaction writes the key, because a concurrent change of a written key is a
    /// conflict anyway.
    fn require_unless_written(&mut self, requirement: Requirement, key: &str) {
        if !self.changes.writes.contains_key(key) {
            self.footprint_mut().require(requirement);
        }
    }

    async fn check_empty(&mut self, namespace: &str) -> Result<()> {
        let names = self.base.config.names;
        let ranges = [
            names.objects_in(ObjectKind::Table, Some(namespace))?,
            names.objects_in(ObjectKind::View, Some(namespace))?,
            names.namespaces_below(Some(namespace))?,
        ];
        for range in &ranges {
            if let Some((key, _)) = self.peek_range(range, Some(1)).await?.first() {
                self.footprint_mut().read_key(key);
                let example = names.decode(key).map_or_else(|| key.clone(), |name| name.to_string());
                return Err(Error::NamespaceNotEmpty(format!("namespace {namespace} is not empty: it has {example}")));
            }
        }
        for range in ranges {
            self.footprint_mut().require(Requirement::Empty(range));
        }
        Ok(())
    }
}

fn object(kind: ObjectKind, namespace: &str, name: &str) -> ObjectName {
    ObjectName { kind, namespace: namespace.to_string(), name: name.to_string() }
}

//! Statements that restore objects from an earlier version.
//!
//! A restored object references files that possibly no later version references: its definition, and the files that the
//! definition names. They exist as long as the earlier version is retained. After that version has expired, garbage
//! collection publishes its fence and then deletes these files. Therefore the transaction reads the expiry boundary
//! after it has begun, and conflicts with every later fence ([`drops_history`]). The caller then begins a new
//! transaction, which checks the boundary again.

use crate::error::{Error, Result};
use crate::key::ObjectKind;
use crate::transaction::changes::NewValue;
use crate::transaction::commit::inline_definitions::write_definitions_of;
use crate::transaction::handle::Transaction;
use crate::version::Version;
use crate::version::expired_versions::check_retained_by;
use crate::version::expiry_boundary::boundary;

impl Transaction {
    /// Allows this transaction to use files that only `source` references. `VersionExpired` if `source` has expired.
    pub async fn depend_on_version(&mut self, source: &Version) -> Result<()> {
        self.check_open()?;
        let oldest = boundary(self.lakehouse.storage().as_ref()).await?;
        check_retained_by(&self.base.definition, oldest, source.number)?;
        write_definitions_of(self.lakehouse.storage().as_ref(), source).await?;
        self.depends_on_past = true;
        Ok(())
    }

    /// Sets the location of an object to `location`, from an earlier version; creates the object if it does not exist.
    /// Returns whether this is a change. Call [`Transaction::depend_on_version`] first.
    pub async fn put_back(&mut self, kind: ObjectKind, namespace: &str, name: &str, location: &str) -> Result<bool> {
        self.check_open()?;
        self.check_writable()?;
        let key = self.base.config.names.key(kind, namespace, name)?;
        let current = self.peek(&key).await?;
        if current.as_deref() == Some(location) {
            return Ok(false);
        }
        if current.is_none() {
            self.check_name_is_free(kind, namespace, name).await?;
        }
        self.write(key, current, NewValue::Existing(location.to_string()));
        Ok(true)
    }

    /// Refuses to save a transaction that depends on an earlier version: the process that resumes it could not check it
    /// against garbage collection.
    pub(crate) fn check_needs_no_earlier_version(&self) -> Result<()> {
        if self.depends_on_past {
            return Err(Error::InvalidArgument(
                "a transaction that restores objects of an earlier version cannot be saved".into(),
            ));
        }
        Ok(())
    }
}

/// Whether files of earlier versions may be deleted after this version: it is a gc fence or changes the tags.
pub(crate) fn drops_history(previous: &Version, version: &Version) -> bool {
    version.metadata.collects_before_millis().is_some()
        || previous.metadata.gc_before_millis != version.metadata.gc_before_millis
        || previous.definition.exported_snapshots() != version.definition.exported_snapshots()
}

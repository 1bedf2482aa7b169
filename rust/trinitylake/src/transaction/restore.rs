//! Bringing back objects as an earlier version has them, as an ordinary change.
//!
//! What is brought back names files that perhaps no later version reaches: its definition, and what that names. They
//! are there as long as the earlier version is kept. Garbage collection takes them once that has expired, and makes a
//! version of its own before it deletes anything. So the transaction looks at the boundary after it has begun, and
//! loses against every collection after that (`forgets_the_past`): then it begins again, and looks again.

use super::Transaction;
use super::changes::NewValue;
use super::inline_definitions::write_definitions_of;
use crate::error::{Error, Result};
use crate::key::ObjectKind;
use crate::version::Version;
use crate::version::boundary::boundary;
use crate::version::retention::check_retained_by;

impl Transaction {
    /// From here on it may name files that only `source` still reaches. `VersionExpired` if that is not kept any more.
    pub async fn rest_on(&mut self, source: &Version) -> Result<()> {
        self.check_open()?;
        let oldest = boundary(self.lakehouse.storage().as_ref()).await?;
        check_retained_by(&self.base.definition, oldest, source.number)?;
        write_definitions_of(self.lakehouse.storage().as_ref(), source).await?;
        self.rests_on_past = true;
        Ok(())
    }

    /// Gives an object the definition file of an earlier version, whether it is there now or not. Returns whether that
    /// changes anything. [`Transaction::rest_on`] comes before.
    pub async fn put_back(
        &mut self,
        kind: ObjectKind,
        namespace: &str,
        name: &str,
        location: &str,
    ) -> Result<bool> {
        self.check_open()?;
        self.check_writable()?;
        let key = self.base.config.names.key(kind, namespace, name)?;
        let current = self.peek(&key).await?;
        if current.as_deref() == Some(location) {
            return Ok(false);
        }
        if current.is_none() {
            self.check_free(kind, namespace, name).await?;
        }
        self.write(key, current, NewValue::Existing(location.to_string()));
        Ok(true)
    }

    /// Only whoever commits it can tell whether the past that it rests on is there.
    pub(super) fn check_needs_no_past(&self) -> Result<()> {
        if self.rests_on_past {
            return Err(Error::InvalidArgument(
                "a transaction that brings back objects of an earlier version cannot be saved".into(),
            ));
        }
        Ok(())
    }
}

/// Did a version give up something of the past: a garbage collection, or a change of the named snapshots?
pub(super) fn forgets_the_past(previous: &Version, version: &Version) -> bool {
    version.metadata.collects_before_millis().is_some()
        || previous.metadata.gc_before_millis != version.metadata.gc_before_millis
        || previous.definition.exported_snapshots() != version.definition.exported_snapshots()
}

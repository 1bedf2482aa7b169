//! Root of a lakehouse, and whether it is the recorded one (format §2).
//!
//! Iceberg's metadata holds whole URIs. A lakehouse that was copied or moved can still be read, since
//! locations below a recorded root are taken for files below the present one. It must not be written until
//! the present root is recorded: else nobody could tell files of the copy from files of the original.

use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::RootUri;

use crate::definition::LakehouseDefinition;

/// The roots of one lakehouse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    present: String,
    recorded: Option<String>,
    former: Vec<String>,
}

impl Placement {
    /// `present` is the root that the lakehouse was opened at.
    pub fn of(present: &str, definition: &LakehouseDefinition) -> Placement {
        Placement {
            present: present.to_string(),
            recorded: definition.root_uri().map(str::to_string),
            former: definition.former_root_uris().to_vec(),
        }
    }

    /// Whether the root is the recorded one, or none is recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorded.as_ref().is_none_or(|recorded| is_same_place(recorded, &self.present))
    }

    /// The roots below which files of this lakehouse may be named, but for the present one.
    pub fn other_roots(&self) -> Vec<String> {
        let recorded = self.recorded.iter().filter(|recorded| **recorded != self.present);
        self.former.iter().chain(recorded).cloned().collect()
    }

    /// `LakehouseMoved` where the lakehouse lies elsewhere than it records.
    pub fn check_writable(&self) -> Result<()> {
        match &self.recorded {
            Some(recorded) if !self.is_recorded() => Err(Error::LakehouseMoved(format!(
                "this lakehouse records that it lies at {recorded} and was opened at {}: it can be read here, and \
                 written once `relocate` has recorded the new root; if the one at {recorded} is still in use, this \
                 becomes a lakehouse of its own",
                self.present
            ))),
            _ => Ok(()),
        }
    }

    /// The definition that records the present root. `former` are roots of files that no definition has
    /// recorded. `None` if that changes nothing.
    pub fn relocate(
        &self,
        definition: &LakehouseDefinition,
        former: &[String],
    ) -> Result<Option<LakehouseDefinition>> {
        let mut roots: Vec<String> = Vec::new();
        for root in former {
            roots.push(RootUri::parse_literally(root)?.as_str().to_string());
        }
        roots.extend(self.other_roots());
        let mut kept: Vec<String> = Vec::new();
        for root in roots {
            if root != self.present && !kept.contains(&root) {
                kept.push(root);
            }
        }
        let is_unchanged = self.recorded.as_deref() == Some(&self.present) && kept == self.former;
        if is_unchanged { Ok(None) } else { definition.placed_at(&self.present, &kept).map(Some) }
    }
}

/// Roots that this release cannot parse are compared as text.
fn is_same_place(one: &str, other: &str) -> bool {
    one == other
        || match (RootUri::parse_literally(one), RootUri::parse_literally(other)) {
            (Ok(one), Ok(other)) => one.is_same_place(&other),
            _ => false,
        }
}

#[cfg(test)]
mod tests;

//! Root URI of a lakehouse, and whether it is the recorded one (format §2).
//!
//! Iceberg's metadata contains whole URIs. A copied or moved lakehouse can still be read, because locations below a
//! recorded root URI are resolved below the current one. It must not be written to before the current root URI is
//! recorded; otherwise files of the copy could not be distinguished from files of the original.

use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::RootUri;

use crate::lakehouse_definition::LakehouseDefinition;

/// The current, recorded and former root URIs of one lakehouse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    present: String,
    recorded: Option<String>,
    former: Vec<String>,
}

impl Placement {
    /// `present` is the root URI with which the lakehouse was opened.
    pub fn of(present: &str, definition: &LakehouseDefinition) -> Placement {
        Placement {
            present: present.to_string(),
            recorded: definition.root_uri().map(str::to_string),
            former: definition.former_root_uris().to_vec(),
        }
    }

    /// Whether the current root URI is the recorded one, or none is recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorded.as_ref().is_none_or(|recorded| is_same_place(recorded, &self.present))
    }

    /// Returns all root URIs below which files of this lakehouse may be referenced, except the current one.
    pub fn other_roots(&self) -> Vec<String> {
        let recorded = self.recorded.iter().filter(|recorded| **recorded != self.present);
        self.former.iter().chain(recorded).cloned().collect()
    }

    /// `LakehouseMoved` if the lakehouse is not at the recorded root.
    pub fn check_writable(&self) -> Result<()> {
        match &self.recorded {
            Some(recorded) if !self.is_recorded() => Err(Error::LakehouseMoved(format!(
                "this lakehouse has the recorded root {recorded}, but was opened at {}: it can be read, and written to \
                 after `relocate` has recorded the new root. If the lakehouse at {recorded} is still in use, the two \
                 are independent from then on",
                self.present
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the definition with the current root URI as the recorded one, and with `former` added to the former root
    /// URIs. `None` if this changes nothing.
    pub fn relocate(&self, definition: &LakehouseDefinition, former: &[String]) -> Result<Option<LakehouseDefinition>> {
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

/// Whether two root URIs mean the same place. URIs that this release cannot parse are compared as strings.
fn is_same_place(one: &str, other: &str) -> bool {
    one == other
        || match (RootUri::parse_literally(one), RootUri::parse_literally(other)) {
            (Ok(one), Ok(other)) => one.is_same_place(&other),
            _ => false,
        }
}

#[cfg(test)]
mod tests;

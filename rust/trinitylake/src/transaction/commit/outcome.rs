//! Outcome of one commit: a version, or the conflicts that the caller has to resolve.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed(u64),
    /// Tables to rebase on their newer definitions, and watched reads to repeat. The caller resolves all of them and
    /// commits again.
    Conflicts(Conflicts),
}

/// A table that this transaction and a transaction that committed first both changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictingTable {
    pub key: String,
    pub namespace: String,
    pub name: String,
    /// Location of the definition on which this transaction's change is based.
    pub base_location: String,
    /// Location of the definition in the newest version.
    pub winner_location: String,
    /// Number of that newest version.
    pub version: u64,
}

/// Conflicts that the layer above has to resolve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// Tables by key. [`Transaction::rebase`] resolves each of them.
    pub tables: Vec<ConflictingTable>,
    /// Watched reads that changed, named as in [`Error::CommitConflict`]. [`Transaction::begin_watch`] resolves them.
    pub watched: Vec<String>,
}

impl Conflicts {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.watched.is_empty()
    }

    /// Names of all conflicts, as in [`Error::CommitConflict`].
    pub(crate) fn names(&self) -> Vec<String> {
        let tables = self.tables.iter().map(|conflict| format!("table {}.{}", conflict.namespace, conflict.name));
        let watched = self.watched.iter().cloned();
        let mut names: Vec<String> = tables.chain(watched).collect();
        names.sort();
        names.dedup();
        names
    }
}

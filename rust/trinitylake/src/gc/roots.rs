//! Roots of garbage collection: a list of everything that retains files. To add a new type of root, add a line to
//! [`of`].

use std::sync::Arc;

use crate::error::Result;
use crate::lakehouse::Lakehouse;
use crate::transaction::saved::list::SavedWalk;
use crate::version::Version;
use crate::version::store_clock::StoreTime;

/// Start of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// A version from the boundary to the latest one, even if a rollback has undone it.
    Version(u64),
    /// A tagged version, possibly below the boundary.
    Tag(u64),
}

impl Root {
    pub(super) fn version(self) -> u64 {
        match self {
            Root::Version(number) | Root::Tag(number) => number,
        }
    }
}

/// Returns the roots in ascending order, tagged versions below the boundary first.
///
/// Transactions are not roots, whether they are saved, in the intent queue or running. Either their own files are
/// younger than all deleted files ([`open_transactions_since`]), or their commit fails with `TransactionExpired`
/// (`gc_fence`). The boundary retains their base versions.
pub(super) fn of(latest: &Version, oldest: u64) -> Vec<Root> {
    let mut roots: Vec<Root> = (oldest..=latest.number).map(Root::Version).collect();
    roots.splice(0..0, latest.definition.pinned_versions().filter(|version| *version < oldest).map(Root::Tag));
    roots
}

/// Returns the versions `from..=latest`, and all tagged versions.
pub(super) fn between(from: u64, latest: &Version) -> Vec<Root> {
    let pinned = latest.definition.pinned_versions().map(Root::Tag);
    pinned.chain((from..=latest.number).map(Root::Version)).collect()
}

/// Returns a time of the store before which no file of an open saved transaction was written.
pub(super) async fn open_transactions_since(lakehouse: &Arc<Lakehouse>, time: StoreTime) -> Result<u64> {
    let mut walk = SavedWalk::begin(lakehouse, Some(time)).await?;
    let mut since = u64::MAX;
    while let Some(page) = walk.next().await? {
        let open = page.iter().filter(|one| one.is_resumable);
        since = open.map(|one| one.transaction.files_since_millis).fold(since, u64::min);
    }
    Ok(since)
}

//! Submission: the parts of a transaction that the group commit and the intent queue use.

use std::sync::Arc;

use bytes::Bytes;

use crate::config::Coordination;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::node::mutable_node::Message;
use crate::storage::BackgroundUploads;
use crate::transaction::footprint::Footprint;
use crate::transaction::options::Isolation;
use crate::version::root_metadata::CommittedTransaction;

/// Everything that a root has to record about one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submission {
    pub info: CommittedTransaction,
    /// Transactions whose changes are part of the messages of this one. They are in the same root, or in none.
    pub companions: Vec<CommittedTransaction>,
    pub isolation: Isolation,
    pub footprint: Arc<Footprint>,
    /// At most one message for each key.
    pub messages: Vec<Message>,
    pub definition: Option<(String, Arc<LakehouseDefinition>)>,
    /// Definition files that are not written yet.
    pub files: Vec<(String, Bytes)>,
    /// Definition files of objects that are written.
    pub written: Vec<(String, Bytes)>,
    /// Whether the root will contain `files`, so that they may be written at the same time (`inline_definitions`).
    pub fits_in_root: bool,
    /// Background uploads, if the transaction belongs to this process.
    pub pending: Option<Arc<BackgroundUploads>>,
    /// Number of the version up to which the transaction was validated.
    pub validated: u64,
    /// Whether the transaction needs files of an earlier version (`restore`). Then only its own validation, and not
    /// admission, can compare it with newer versions.
    pub depends_on_past: bool,
    pub coordination: Coordination,
    /// Number of roots tried.
    pub attempt: u32,
    /// The last version that may contain the transaction, if it is in the intent queue.
    pub last_version: Option<u64>,
    /// Id of the transaction that this one aborts. At most one of the two transactions ever commits.
    pub aborts: Option<String>,
}

impl Submission {
    /// Returns the entries for the log: this transaction, then its companions.
    pub(crate) fn transactions(&self) -> impl Iterator<Item = &CommittedTransaction> {
        std::iter::once(&self.info).chain(&self.companions)
    }

    /// Whether all files that the transaction references are durable, so that it may be in an intent.
    pub(crate) fn is_complete(&self) -> bool {
        self.files.is_empty() && self.pending.as_ref().is_none_or(|pending| pending.is_settled())
    }

    /// Whether the transaction may join a group of another leader, which does not wait for files of members.
    pub(crate) fn may_join(&self) -> bool {
        self.fits_in_root || self.is_complete()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.messages.iter().map(Message::size_bytes).sum()
    }

    /// Size of the definitions of this transaction that the root will contain.
    pub(crate) fn inline_size_bytes(&self) -> usize {
        if self.fits_in_root { files_size_bytes(&self.files) } else { 0 }
    }
}

pub(crate) fn files_size_bytes(files: &[(String, Bytes)]) -> usize {
    files.iter().map(|(path, bytes)| path.len() + bytes.len()).sum()
}

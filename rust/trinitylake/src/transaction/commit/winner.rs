//! The transaction that won a race, as errors show it.

use crate::error::Winner;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

pub(crate) fn winner(version: &Version, transaction: usize) -> Winner {
    let committed = version.metadata.committed.get(transaction);
    Winner {
        version: version.number,
        transaction_id: committed.map(|transaction| transaction.id.clone()).unwrap_or_default(),
        message: committed.map(CommittedTransaction::description).unwrap_or_default().to_string(),
        author: committed.map(|transaction| transaction.author.clone()).unwrap_or_default(),
    }
}

pub(crate) fn describe(winner: &Winner) -> String {
    let name = if winner.message.is_empty() { &winner.transaction_id } else { &winner.message };
    let author = if winner.author.is_empty() { String::new() } else { format!(" by {}", winner.author) };
    format!("version {}{author} ({name})", winner.version)
}

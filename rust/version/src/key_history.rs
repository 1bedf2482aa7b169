//! The versions that changed a given key. The number of requests is proportional to the number of these versions.
//!
//! One row or message determines the value of a key (rule 1). Node files never change, and a node that a version no
//! longer references is never referenced again, except by a rollback. Therefore, if the same row of the same file, or a
//! message of the same transaction, determines the value in two versions without a rollback between them, the key did
//! not change between them. Otherwise the range of versions is split into halves.

use std::sync::Arc;

use super::root_metadata::LastRollback;
use super::version::Version;
use super::versions::Versions;
use trinitylake_base::error::Result;
use trinitylake_tree::flush::REHOMED;
use trinitylake_tree::search::{DecidedBy, Decision, decide};

/// A version that changed the key, with the locations before and after; `None` if the object did not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStep {
    pub version: u64,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Value of the key in one version.
#[derive(Clone, Debug)]
struct Look {
    number: u64,
    decision: Decision,
    last_rollback: LastRollback,
}

impl Look {
    async fn at(version: &Arc<Version>, key: &str) -> Result<Look> {
        let decision = decide(version.nodes(), &version.root, &version.root_path, key).await?;
        Ok(Look { number: version.number, decision, last_rollback: version.metadata.last_rollback })
    }

    /// Whether certainly no version after `older`, up to this one, changed the key.
    fn is_unchanged_since(&self, older: &Look) -> bool {
        let no_rollback = match self.last_rollback {
            LastRollback::Never => true,
            LastRollback::Version(rollback) => rollback <= older.number,
            LastRollback::Unknown => false,
        };
        // A row of an inner node may become a message with this transaction id several times, with other values in
        // between.
        let is_rehomed = self.decision.by == DecidedBy::Transaction(REHOMED.into());
        no_rollback && !is_rehomed && self.decision == older.decision
    }
}

impl Versions {
    /// Returns versions after `oldest`, up to `newest`, that changed the key: at most `limit`, newest first. `oldest`
    /// is not included, because only the version before it shows whether it changed the key.
    pub async fn key_history(&self, key: &str, newest: u64, oldest: u64, limit: usize) -> Result<Vec<KeyStep>> {
        let look = async |number: u64| Look::at(&self.version(number).await?, key).await;
        let mut steps = Vec::new();
        if newest <= oldest {
            return Ok(steps);
        }
        let mut waiting = vec![(look(oldest).await?, look(newest).await?)];
        while let Some((low, high)) = waiting.pop() {
            if steps.len() >= limit {
                break;
            }
            if high.is_unchanged_since(&low) {
                continue;
            }
            if high.number - low.number == 1 {
                if low.decision.location != high.decision.location {
                    steps.push(KeyStep {
                        version: high.number,
                        before: low.decision.location,
                        after: high.decision.location,
                    });
                }
                continue;
            }
            let middle = look(low.number + (high.number - low.number) / 2).await?;
            waiting.push((low, middle.clone()));
            waiting.push((middle, high));
        }
        Ok(steps)
    }
}

//! Admission: which members of a group may share the next root.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::submission::Submission;
use crate::error::{Error, Result};
use crate::node::mutable_node::Text;
use crate::version::Version;
use crate::version::publisher::Publisher;

/// Keys and ids that a version, or the admitted members of a group, have written.
#[derive(Default)]
struct Written {
    keys: BTreeSet<Text>,
    ids: HashSet<String>,
    aborted: HashSet<String>,
    /// The version is a gc fence, so each transaction has to validate the age of its own files.
    collects: bool,
}

impl Written {
    fn add(&mut self, member: &Submission) {
        self.keys.extend(member.messages.iter().map(|message| message.key.clone()));
        self.ids.extend(member.transactions().map(|transaction| transaction.id.clone()));
        self.aborted.extend(member.aborts.clone());
    }
}

impl Submission {
    /// Whether this transaction depends on any of these keys or ids.
    fn is_touched(&self, written: &Written) -> bool {
        let keys = &written.keys;
        let reads = self.footprint.reads_that_count(self.isolation);
        self.messages.iter().any(|message| keys.contains(&message.key))
            || self.footprint.requirements.concern_any(keys)
            || self.footprint.watched.contains_any(keys)
            || reads.is_some_and(|reads| reads.contains_any(keys))
            || self.aborts.as_ref().is_some_and(|id| written.ids.contains(id))
            || self.transactions().any(|transaction| written.aborted.contains(&transaction.id))
    }
}

/// Returns for each member whether it may be in the root after `previous`. Each member is compared with the versions
/// since its validation, and with the members that were admitted before it.
pub(crate) async fn admit(publisher: &Publisher, previous: &Arc<Version>, group: &[Submission]) -> Result<Vec<bool>> {
    let mut written_by_version: HashMap<u64, Written> = HashMap::new();
    let mut written = Written::default();
    let mut has_definition = false;
    let mut admitted = Vec::with_capacity(group.len());
    'group: for member in group {
        if member.validated > previous.number {
            admitted.push(false);
            continue;
        }
        for number in member.validated + 1..=previous.number {
            let written = match written_by_version.get(&number) {
                Some(written) => written,
                // If the version has expired, the validation of the member reports that.
                None => match written_in(publisher, previous, number).await {
                    Ok(written) => written_by_version.entry(number).or_insert(written),
                    Err(Error::VersionExpired(_)) => {
                        admitted.push(false);
                        continue 'group;
                    }
                    Err(error) => return Err(error),
                },
            };
            let must_look = member.definition.is_some() || member.depends_on_past || written.collects;
            if must_look || member.is_touched(written) {
                admitted.push(false);
                continue 'group;
            }
        }
        let is_in = !(member.is_touched(&written) || (member.definition.is_some() && has_definition));
        if is_in {
            written.add(member);
            has_definition |= member.definition.is_some();
        }
        admitted.push(is_in);
    }
    Ok(admitted)
}

async fn written_in(publisher: &Publisher, tip: &Arc<Version>, number: u64) -> Result<Written> {
    let version = if number == tip.number { tip.clone() } else { publisher.version(number).await? };
    let changes = match version.recorded_changes() {
        Some(changes) => changes,
        None => version.changes(publisher.version(number - 1).await?.as_ref()).await?,
    };
    let committed = &version.metadata.committed;
    Ok(Written {
        keys: changes.iter().map(|change| change.key.as_str().into()).collect(),
        ids: committed.iter().map(|transaction| transaction.id.clone()).collect(),
        aborted: committed.iter().filter_map(|transaction| transaction.gives_up()).map(str::to_string).collect(),
        collects: version.metadata.collects_before_millis().is_some(),
    })
}

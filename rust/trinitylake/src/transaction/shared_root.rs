//! A transaction as the commit queue sees it: what a root needs to know of it, and which transactions fit
//! into one root.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::footprint::Footprint;
use super::inline_definitions;
use super::{Coordination, Isolation};
use crate::definition::LakehouseDefinition;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::node::draft::{Message, Text};
use crate::storage::BackgroundUploads;
use crate::version::Version;
use crate::version::root_metadata::CommittedTransaction;

/// All that a root needs to know of one transaction.
#[derive(Clone, Debug)]
pub(super) struct Submission {
    pub info: CommittedTransaction,
    pub isolation: Isolation,
    pub footprint: Arc<Footprint>,
    /// At most one for each key.
    pub messages: Vec<Message>,
    pub definition: Option<(String, Arc<LakehouseDefinition>)>,
    /// Definition files that are not written yet.
    pub files: Vec<(String, Bytes)>,
    /// They need not be there before the root, which holds them (`inline_definitions`).
    pub fits_in_root: bool,
    /// What its statements have written behind, if it is of this process.
    pub pending: Option<Arc<BackgroundUploads>>,
    /// The version up to which conflicts were looked for.
    pub validated: u64,
    /// See `restore`: it must itself look at each version that is between.
    pub rests_on_past: bool,
    pub coordination: Coordination,
    /// How many roots it has tried to be in.
    pub attempt: u32,
    /// It waits in the queue across processes (`commit_queue`), for a version up to this one.
    pub last_version: Option<u64>,
    /// The id of the transaction that this one gives up: the two are never both committed.
    pub gives_up: Option<String>,
}

/// What a version, or the members of a group so far, committed.
#[derive(Default)]
struct Written {
    keys: BTreeSet<Text>,
    ids: HashSet<String>,
    given_up: HashSet<String>,
    /// Files may have been deleted that no version refers to: whose they are has to look.
    collects: bool,
}

impl Written {
    fn add(&mut self, member: &Submission) {
        self.keys.extend(member.messages.iter().map(|message| message.key.clone()));
        self.ids.insert(member.info.id.clone());
        self.given_up.extend(member.gives_up.clone());
    }
}

impl Submission {
    /// Does this transaction depend on any of this?
    fn is_touched(&self, written: &Written) -> bool {
        let keys = &written.keys;
        let reads = self.footprint.reads_that_count(self.isolation);
        self.messages.iter().any(|message| keys.contains(&message.key))
            || self.footprint.requirements.concern_any(keys)
            || self.footprint.watched.contains_any(keys)
            || reads.is_some_and(|reads| reads.contains_any(keys))
            || self.gives_up.as_ref().is_some_and(|id| written.ids.contains(id))
            || written.given_up.contains(&self.info.id)
    }

    /// Does all last that it refers to? Only then may it be in an intent.
    pub(super) fn is_complete(&self) -> bool {
        self.files.is_empty() && self.pending.as_ref().is_none_or(|pending| pending.is_settled())
    }

    /// May it be in the root of another, who waits for nothing of it?
    pub(super) fn may_join(&self) -> bool {
        self.fits_in_root || self.is_complete()
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.messages.iter().map(Message::size_bytes).sum()
    }

    /// Of definitions that the root holds.
    pub(super) fn inline_size_bytes(&self) -> usize {
        if self.fits_in_root { inline_definitions::size_bytes(&self.files) } else { 0 }
    }
}

/// Which of the group may be in the root after `previous`: in order, each held against what others wrote
/// since it was validated and against those admitted before it.
pub(super) async fn admit(
    lakehouse: &Lakehouse,
    previous: &Arc<Version>,
    group: &[Submission],
) -> Result<Vec<bool>> {
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
                // What cannot be read any more is for its own validation to explain.
                None => match written_in(lakehouse, previous, number).await {
                    Ok(written) => written_by_version.entry(number).or_insert(written),
                    Err(Error::VersionExpired(_)) => {
                        admitted.push(false);
                        continue 'group;
                    }
                    Err(error) => return Err(error),
                },
            };
            let must_look = member.definition.is_some() || member.rests_on_past || written.collects;
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

async fn written_in(lakehouse: &Lakehouse, tip: &Arc<Version>, number: u64) -> Result<Written> {
    let version = if number == tip.number { tip.clone() } else { lakehouse.version(number).await? };
    let changes = match version.changes_told() {
        Some(changes) => changes,
        None => version.changes(lakehouse.version(number - 1).await?.as_ref()).await?,
    };
    let committed = &version.metadata.committed;
    Ok(Written {
        keys: changes.iter().map(|change| change.key.as_str().into()).collect(),
        ids: committed.iter().map(|transaction| transaction.id.clone()).collect(),
        given_up: committed
            .iter()
            .filter_map(|transaction| transaction.gives_up())
            .map(str::to_string)
            .collect(),
        collects: version.metadata.collects_before_millis().is_some(),
    })
}

//! State of the model of the intent queue: stored files, the state of each writer, and possible faults.

use std::collections::BTreeSet;

use crate::state::Delivery;

pub const KEYS: usize = 3;
pub const MAX_TRIES: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The key to which the transaction appends its id. The id is the index of the writer.
    pub key: usize,
    pub watched: Option<usize>,
}

/// An intent with one transaction.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Intent {
    pub id: u8,
    pub validated: u8,
    pub last_version: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// Writer and attempt, which identify the root like its `commit_id`.
    pub commit: (u8, u8),
    /// The admitted transactions in order.
    pub members: Vec<Intent>,
    /// The transaction whose rollback this root records; such a root has no members.
    pub gives_up: Option<u8>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Answer {
    Committed(u8),
    /// The transaction is certainly not committed.
    Refused,
    RolledBack,
    Unknown,
    /// The process has died.
    None,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub enum Phase {
    Ready,
    Waiting,
    /// The writer has listed the queue and found these intents.
    Leading {
        previous: u8,
        guests: Vec<Intent>,
    },
    ReadingBack {
        previous: u8,
        guests: Vec<Intent>,
    },
    /// A root was created, by this writer or another one.
    Leaving {
        version: u8,
        guests: Vec<Intent>,
    },
    CatchingUp,
    Done(Answer),
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Writer {
    pub phase: Phase,
    pub validated: u8,
    pub queued_until: u8,
    pub attempt: u8,
    pub tries: u8,
    /// Whether the writer knows that an intent of this attempt is in the queue.
    pub has_intent: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    pub writers: Vec<Writer>,
    pub chain: Vec<Root>,
    pub intents: BTreeSet<Intent>,
    pub late_roots: BTreeSet<(u8, Root)>,
    pub late_intents: BTreeSet<Intent>,
    pub budget: Budget,
}

/// Numbers of faults that may still occur.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Budget {
    pub faults: u8,
    pub late: u8,
    pub crashes: u8,
    pub rollbacks: u8,
}

/// A bug: one step of the protocol is omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Admits an intent without comparing it with the versions since its validation.
    AdmitsWithoutValidation,
    /// Compares the members of a root with earlier versions, but not with each other.
    IgnoresEarlierMembers,
    AdmitsAfterTheLastVersion,
    /// Reports a transaction as not committed although its intent may still be in the queue.
    ReportsQueuedAsRefused,
    /// Checks for conflicts before it searches for its own id.
    DoesNotSearchForItself,
    IgnoresWatchedReads,
    /// Rolls back without a root that records it.
    RollsBackWithoutARecord,
    /// Admits an intent without requiring that its id has no record.
    AdmitsAfterARollback,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Action {
    Intend(usize, Delivery),
    GoAlone(usize),
    Look(usize),
    /// Lists the intents. The writer may not know the latest version.
    Gather {
        writer: usize,
        is_behind: bool,
    },
    Put(usize, Delivery),
    ReadBack(usize),
    Leave {
        writer: usize,
        deletes: bool,
    },
    CatchUp(usize),
    GiveUp(usize),
    RollBack(usize),
    Crash(usize),
    LandRoot(usize),
    LandIntent(Intent),
}

#[derive(Clone, Debug)]
pub struct Queue {
    pub works: Vec<Work>,
    /// Number of versions after its validated one that may contain an intent.
    pub queued_versions: u8,
    pub max_attempts: u8,
    pub budget: Budget,
    pub bug: Option<Bug>,
}

impl State {
    pub fn latest(&self) -> u8 {
        self.chain.len() as u8
    }

    pub fn create(&mut self, version: u8, root: Root) -> bool {
        let is_free = usize::from(version) == self.chain.len() + 1;
        if is_free {
            self.chain.push(root);
        }
        is_free
    }

    /// The versions above `validated` that contain an id.
    pub fn versions_of(&self, id: u8, validated: u8) -> impl Iterator<Item = u8> {
        let roots = (1..).zip(&self.chain).skip(usize::from(validated));
        roots.filter(move |(_, root)| root.members.iter().any(|member| member.id == id)).map(|(version, _)| version)
    }
}

impl Budget {
    pub fn spend(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Answered => {}
            Delivery::Late => self.late -= 1,
            Delivery::RequestLost | Delivery::ReplyLost | Delivery::Refused => self.faults -= 1,
        }
    }

    pub fn deliveries(self) -> impl Iterator<Item = Delivery> {
        let faults = [Delivery::RequestLost, Delivery::ReplyLost].into_iter().filter(move |_| self.faults > 0);
        let late = [Delivery::Late].into_iter().filter(move |_| self.late > 0);
        [Delivery::Answered].into_iter().chain(faults).chain(late)
    }
}

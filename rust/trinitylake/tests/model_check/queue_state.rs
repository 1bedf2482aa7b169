//! What the model of the commit queue consists of: what is stored, what each writer remembers, and what may go wrong.

use std::collections::BTreeSet;

use crate::state::Delivery;

pub const KEYS: usize = 3;
pub const MAX_TRIES: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The key that it appends its id to; the id is the number of the writer.
    pub key: usize,
    pub watched: Option<usize>,
}

/// A transaction as its submission tells of it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Intent {
    pub id: u8,
    pub validated: u8,
    pub last_version: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// Writer and attempt: the `commit_id`.
    pub commit: (u8, u8),
    /// What was admitted, in order, each with the version up to which it was looked at.
    pub members: Vec<Intent>,
    /// The transaction that this root records as rolled back; then it has no member.
    pub gives_up: Option<u8>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Answer {
    Committed(u8),
    /// Certainly not.
    Refused,
    RolledBack,
    Unknown,
    /// The process is gone.
    None,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub enum Phase {
    Ready,
    Waiting,
    /// Has looked into the queue, and found these.
    Leading {
        previous: u8,
        guests: Vec<Intent>,
    },
    ReadingBack {
        previous: u8,
        guests: Vec<Intent>,
    },
    /// Its root is there, or that of another is.
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
    /// Is an intent of this attempt in the queue, as far as it knows?
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

/// How much may still go wrong.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Budget {
    pub faults: u8,
    pub late: u8,
    pub crashes: u8,
    pub rollbacks: u8,
}

/// A step left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Carries an intent without holding it against the versions since it was validated.
    CarriesWithoutLooking,
    /// Holds the members of a root against the versions before, but not against each other.
    ForgetsTheMembersBefore,
    CarriesPastTheLastVersion,
    /// Takes what it could not commit for not committed, though its intent is still about.
    GivesUpForCertain,
    /// Looks for conflicts before it looks for its own id.
    DoesNotLookForItself,
    ForgetsWhatIsWatched,
    /// Rolls back without a root that says so.
    RollsBackByItself,
    /// Carries an intent without requiring that its record is absent.
    CarriesPastARollback,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Action {
    Intend(usize, Delivery),
    GoAlone(usize),
    Look(usize),
    /// Lists the intents. The latest version that it knows may be older.
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
    /// So many versions after the one that it was validated on may hold an intent.
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

    /// The versions that hold an id, above `validated`.
    pub fn versions_of(&self, id: u8, validated: u8) -> impl Iterator<Item = u8> {
        let roots = (1..).zip(&self.chain).skip(usize::from(validated));
        roots
            .filter(move |(_, root)| root.members.iter().any(|member| member.id == id))
            .map(|(version, _)| version)
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
        let faults =
            [Delivery::RequestLost, Delivery::ReplyLost].into_iter().filter(move |_| self.faults > 0);
        let late = [Delivery::Late].into_iter().filter(move |_| self.late > 0);
        [Delivery::Answered].into_iter().chain(faults).chain(late)
    }
}

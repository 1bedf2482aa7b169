//! Queued appends of several processes are in one version, or in none.

use std::sync::Arc;

use bytes::Bytes;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::file_names::INTENT_PREFIX;
use crate::key::ObjectKind::Table;
use crate::lakehouse::Lakehouse;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{MemoryFiles, add_namespace, add_table, assert_whole, create, open, text};
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::{CommitLimits, Outcome, QueuedAppends, Transaction, TransactionOptions};
use crate::version::Version;

struct Owned(Transaction);

impl AsMut<Transaction> for Owned {
    fn as_mut(&mut self) -> &mut Transaction {
        &mut self.0
    }
}

const TABLE: &str = "00000000-0000-4000-8000-000000000001";
const LIMITS: CommitLimits = CommitLimits { max_attempts: 3, timeout_millis: 1_000, coordination: None };

/// A process with appends in the queue.
struct Process {
    lakehouse: Arc<Lakehouse>,
    entries: Vec<Owned>,
    queued: QueuedAppends,
}

impl Process {
    async fn begin(lakehouse: &Arc<Lakehouse>, rows: &'static str, appends: usize) -> Process {
        let base = lakehouse.known();
        let begin = |_| Owned(lakehouse.begin(base.clone(), TransactionOptions::default()).unwrap());
        let mut entries: Vec<Owned> = (0..appends).map(begin).collect();
        let queued =
            QueuedAppends::new(lakehouse, TABLE, ("n", "t"), &mut entries, Bytes::from_static(rows.as_bytes()))
                .unwrap();
        Process { lakehouse: lakehouse.clone(), entries, queued }
    }

    /// Returns the rows of other processes that this one has to append as well; `None` if its appends are committed.
    async fn wait(&mut self) -> Result<Option<Vec<Bytes>>> {
        let leads = self.queued.wait(&self.lakehouse, &mut self.entries).await?;
        Ok(leads.then(|| self.queued.rows_of_others().cloned().collect()))
    }

    /// Appends the rows of this process and of others.
    async fn lead(&mut self) -> Result<Outcome> {
        let mut leader = self.lakehouse.begin(self.lakehouse.known(), TransactionOptions::default()).unwrap();
        leader.replace(Table, "n", "t", text(leader.id())).await?;
        leader.commit_with(&mut self.entries, Some(&mut self.queued), true, LIMITS).await
    }

    /// Appends the rows of this process, in the same steps as the layer above. Returns the version.
    async fn append(&mut self) -> Result<u64> {
        let error = loop {
            let led = match self.wait().await {
                Ok(None) => break None,
                Ok(Some(_)) => self.lead().await,
                Err(error) => Err(error),
            };
            match led {
                Ok(Outcome::Committed(version)) => return Ok(version),
                Ok(Outcome::Conflicts(_)) | Err(Error::CommitConflict { .. }) => {}
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = error
            && QueuedAppends::withdraw(&mut self.entries).await?.is_none()
        {
            return Err(error);
        }
        Ok(self.entries[0].0.committed_version().unwrap())
    }

    fn ids(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.0.id().to_string()).collect()
    }
}

async fn start() -> Arc<MemoryFiles> {
    let files = MemoryFiles::shared();
    let lakehouse = create(files.clone(), &TestEnvironment::seeded(1)).await;
    add_namespace(&lakehouse, "n").await.unwrap();
    add_table(&lakehouse, "n", "t").await.unwrap();
    files
}

/// The versions that contain the transactions.
async fn versions_with(lakehouse: &Arc<Lakehouse>, ids: &[String]) -> Vec<u64> {
    let latest = lakehouse.latest().await.unwrap();
    let versions = lakehouse.versions(1, latest.number, &latest).await.unwrap();
    let contains = |version: &Version| {
        let found = ids.iter().filter(|id| version.metadata.commits(id)).count();
        assert!(found == 0 || found == ids.len(), "appends of one file are in several versions");
        found > 0
    };
    versions.iter().filter(|version| contains(version)).map(|version| version.number).collect()
}

fn queue(files: &MemoryFiles) -> Vec<String> {
    files.paths().into_iter().filter(|path| path.starts_with(INTENT_PREFIX)).collect()
}

#[tokio::test]
async fn a_leader_commits_appends_of_another_process() {
    let files = start().await;
    let environment = TestEnvironment::seeded(2);
    let (one, two) = (open(files.clone(), &environment).await, open(files.clone(), &environment).await);
    let mut first = Process::begin(&one, "of the first", 2).await;
    assert!(first.wait().await.unwrap().unwrap().is_empty(), "it is alone");
    let mut second = Process::begin(&two, "of the second", 1).await;
    assert_eq!(second.wait().await.unwrap().unwrap(), [&b"of the first"[..]]);
    let version = two.known().number + 1;
    assert_eq!(second.lead().await.unwrap(), Outcome::Committed(version));
    let latest = open(files.clone(), &environment).await.latest().await.unwrap();
    let committed: Vec<&str> = latest.metadata.committed.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(committed, [second.ids(), first.ids()].concat());
    assert!(first.wait().await.unwrap().is_none());
    for Owned(entry) in first.entries.iter().chain(&second.entries) {
        assert_eq!(entry.committed_version(), Some(version));
        assert_eq!(outcome_of(&one, entry.id()).await.unwrap(), TransactionOutcome::Committed(Some(version)));
    }
    assert_eq!(queue(&files), [] as [&str; 0]);
}

/// If two processes lead with the same appends, only one commits: the second root would contain the rows twice.
#[tokio::test]
async fn two_leaders_of_the_same_appends_commit_them_once() {
    let files = start().await;
    let environment = TestEnvironment::seeded(3);
    let (one, two) = (open(files.clone(), &environment).await, open(files.clone(), &environment).await);
    let (mut first, mut second) = (Process::begin(&one, "a", 1).await, Process::begin(&two, "b", 1).await);
    assert!(first.wait().await.unwrap().unwrap().is_empty());
    let with_first = second.wait().await.unwrap().unwrap();
    let with_second = first.wait().await.unwrap().unwrap();
    assert_eq!((with_first.len(), with_second.len()), (1, 1));
    second.lead().await.unwrap();
    let before = two.known().number;
    let lost = first.lead().await.unwrap();
    assert_eq!(lost, Outcome::Committed(before), "it finds its own append");
    assert_eq!(two.latest().await.unwrap().number, before);

    // Both leaders take the append of a third process.
    let mut third = Process::begin(&one, "c", 1).await;
    assert!(third.wait().await.unwrap().unwrap().is_empty());
    let (mut first, mut second) = (Process::begin(&one, "d", 1).await, Process::begin(&two, "e", 1).await);
    first.wait().await.unwrap().unwrap();
    let others = second.wait().await.unwrap().unwrap();
    let of_first = others.iter().position(|rows| &rows[..] == b"d").unwrap();
    second.queued.refuse(&two, &[of_first]).await;
    assert_eq!(second.queued.rows_of_others().collect::<Vec<_>>(), [&b"c"[..]]);
    first.lead().await.unwrap();
    let error = second.lead().await.unwrap_err();
    assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
    assert_eq!(versions_with(&two, &third.ids()).await.len(), 1);
    assert_eq!(versions_with(&two, &second.ids()).await.len(), 0);
    second.append().await.unwrap();
    assert_eq!(versions_with(&two, &second.ids()).await.len(), 1);
}

#[tokio::test]
async fn withdrawn_appends_are_in_no_version() {
    let files = start().await;
    let environment = TestEnvironment::seeded(4);
    let (one, two) = (open(files.clone(), &environment).await, open(files.clone(), &environment).await);
    let (mut first, mut second) = (Process::begin(&one, "a", 2).await, Process::begin(&two, "b", 1).await);
    first.wait().await.unwrap().unwrap();
    assert_eq!(second.wait().await.unwrap().unwrap().len(), 1);
    assert_eq!(QueuedAppends::withdraw(&mut first.entries).await.unwrap(), None);
    assert!(first.entries.iter().all(|entry| !entry.0.is_unknown()));
    assert!(matches!(second.lead().await, Err(Error::CommitConflict { .. })));
    assert!(second.wait().await.unwrap().unwrap().is_empty());
    let version = second.append().await.unwrap();
    assert_eq!(versions_with(&one, &first.ids()).await, [0; 0]);
    assert_eq!(QueuedAppends::withdraw(&mut second.entries).await.unwrap(), Some(version));
}

/// A leader appends its own rows and the rows of a waiting process, with any fault at any operation. Each append is in
/// one version or in none, as the error says, and the waiting process always commits.
#[tokio::test]
async fn a_fault_at_any_operation_loses_and_repeats_no_append() {
    let actions = [
        Action::FailBefore,
        Action::FailAfter,
        Action::DieBefore,
        Action::DieAfter,
        Action::Late,
        Action::Deny,
        Action::AlreadyExistsAfter,
    ];
    let start = start().await;
    let run = async |files: Arc<MemoryFiles>, faults: Vec<Fault>| {
        let healthy = open(files.clone(), &TestEnvironment::seeded(5)).await;
        let mut waiting = Process::begin(&healthy, "waiting", 2).await;
        waiting.wait().await.unwrap();
        let faulty = Arc::new(FaultyStorage::new(files.clone(), []));
        let broken = Lakehouse::open(faulty.clone(), TestEnvironment::seeded(6), None).await.unwrap();
        let opening = faulty.log().len() as u64;
        faults.into_iter().for_each(|fault| faulty.add(fault));
        let mut leader = Process::begin(&broken, "leader", 2).await;
        let result = leader.append().await;
        (faulty, opening, waiting, leader, result)
    };
    let (recording, opening, _, _, result) = run(start.copy(), Vec::new()).await;
    result.unwrap();
    let operations = recording.log().split_off(usize::try_from(opening).unwrap());
    let (mut unknown, mut certain, mut fired) = (0, 0, 0);
    for operation in &operations {
        for action in actions {
            if action == Action::AlreadyExistsAfter && operation.verb != Verb::PutIfAbsent {
                continue;
            }
            let what = format!("{action:?} at {operation:?}");
            let files = start.copy();
            let fault = Fault::new(Trigger::at(operation.index), action);
            let (faulty, _, mut waiting, leader, result) = run(files.clone(), vec![fault]).await;
            // The number of operations is random, because a process polls for another leader.
            fired += usize::from(faulty.unfired().is_empty());
            faulty.revive();
            faulty.deliver_late().await;
            waiting.append().await.unwrap();
            let lakehouse = open(files, &TestEnvironment::seeded(9)).await;
            assert_eq!(versions_with(&lakehouse, &waiting.ids()).await.len(), 1, "{what}");
            let landed = versions_with(&lakehouse, &leader.ids()).await;
            assert_whole(&lakehouse.known()).await;
            match result {
                Ok(version) => assert_eq!(landed, [version], "{what}"),
                // Even for a refused root the outcome is unknown while the rows wait in the queue.
                Err(error) if leader.entries[0].0.is_unknown() => {
                    assert!(matches!(error, Error::CommitStateUnknown(_)), "{what}: {error}");
                    unknown += 1;
                    assert!(landed.len() <= 1, "{what}");
                }
                Err(_) => {
                    certain += 1;
                    assert_eq!(landed, [0; 0], "{what}");
                }
            }
        }
    }
    assert!(unknown > 0 && certain > 0, "{unknown} unknown, {certain} certain");
    assert!(fired > 3 * operations.len(), "{fired} faults at {} operations", operations.len());
}

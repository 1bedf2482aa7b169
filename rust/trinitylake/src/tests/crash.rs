//! In each run of a scenario, the process dies at one storage operation or the operation fails. A process that then
//! opens the lakehouse finds either the old version or the new one, complete, and every acknowledged commit.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::file_names::root_version;
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, create, names, new_lakehouse, open,
    small_definition, text,
};
use crate::transaction::Isolation;
use crate::version::expiry_boundary::boundary;

/// Work of a process on a lakehouse, including opening it.
type Scenario = fn(Arc<dyn Storage>, Arc<TestEnvironment>) -> BoxFuture<'static, Result<()>>;

const ACTIONS: [Action; 6] = [
    Action::FailBefore,
    Action::FailAfter,
    Action::DieBefore,
    Action::DieAfter,
    Action::Late,
    Action::AlreadyExistsAfter,
];

/// A lakehouse with a tree of several levels and filled buffers.
async fn start() -> Arc<MemoryFiles> {
    let (files, _, lakehouse) = new_lakehouse().await;
    for i in 0..30 {
        add_namespace(&lakehouse, &format!("n{i:02}")).await.unwrap();
    }
    files
}

/// Version and names of a lakehouse, after a check that it is complete; `None` if there is none.
async fn state(files: &Arc<MemoryFiles>) -> Option<(u64, Vec<String>)> {
    match Lakehouse::open(files.clone(), TestEnvironment::seeded(9), None).await {
        Ok(lakehouse) => {
            let latest = lakehouse.known();
            assert_whole(&latest).await;
            for i in boundary(files.as_ref()).await.unwrap()..latest.number {
                assert_whole(&lakehouse.version(i).await.unwrap()).await;
            }
            Some((latest.number, names(&latest).await))
        }
        Err(Error::NotALakehouse(_)) => None,
        Err(error) => panic!("the lakehouse does not open: {error}"),
    }
}

async fn enumerate(start: Arc<MemoryFiles>, scenario: Scenario) {
    let old = state(&start).await;
    let files = start.copy();
    let recording = Arc::new(FaultyStorage::new(files.clone(), []));
    scenario(recording.clone(), TestEnvironment::seeded(2)).await.unwrap();
    let new = state(&files).await;
    let operations = recording.log();
    assert!(!operations.is_empty());

    for operation in &operations {
        for action in ACTIONS {
            if action == Action::AlreadyExistsAfter && operation.verb != Verb::PutIfAbsent {
                continue;
            }
            let what = format!("{action:?} at {operation:?}");
            let files = start.copy();
            let faulty =
                Arc::new(FaultyStorage::new(files.clone(), [Fault::new(Trigger::at(operation.index), action)]));
            let result = scenario(faulty.clone(), TestEnvironment::seeded(2)).await;
            assert_eq!(faulty.unfired(), [], "{what}");
            faulty.revive();
            faulty.deliver_late().await;
            let found = state(&files).await;
            match &result {
                Ok(()) => assert_eq!(found, new, "{what}: acknowledged, and gone"),
                Err(Error::CommitStateUnknown(_)) => {
                    assert!(found == old || found == new, "{what}: {found:?}")
                }
                Err(error) => {
                    assert_eq!(found, old, "{what}: the commit failed with {error}, but its version exists")
                }
            }
            // Later commits work.
            let environment = TestEnvironment::seeded(3);
            let lakehouse = match found {
                Some(_) => open(files.clone(), &environment).await,
                None => create(files.clone(), &environment).await,
            };
            add_namespace(&lakehouse, "afterwards").await.unwrap();
        }
    }
}

#[tokio::test]
async fn creating_a_lakehouse() {
    enumerate(MemoryFiles::shared(), |storage, environment| {
        Box::pin(async move { Lakehouse::create(storage, environment, small_definition(), None).await.map(drop) })
    })
    .await;
}

/// After a crash between two writes of nodes, readers see nothing of the commit (failure mode 16).
#[tokio::test]
async fn mode_16_committing_with_flushes_and_splits() {
    enumerate(start().await, |storage, environment| {
        Box::pin(async move {
            let lakehouse = Lakehouse::open(storage, environment, None).await?;
            let mut transaction = begin_on(&lakehouse)?;
            for i in 0..8 {
                transaction.create(ObjectKind::Namespace, &format!("m{i}"), "", text("m")).await?;
                transaction.create(ObjectKind::Table, "n07", &format!("t{i}"), text("t")).await?;
            }
            transaction.drop_object(ObjectKind::Namespace, "n03", "").await?;
            commit(&mut transaction).await.map(drop)
        })
    })
    .await;
}

#[tokio::test]
async fn committing_one_table() {
    enumerate(start().await, |storage, environment| {
        Box::pin(async move {
            let lakehouse = Lakehouse::open(storage, environment, None).await?;
            let mut transaction = begin_on(&lakehouse)?;
            transaction.create(ObjectKind::Table, "n07", "t", text("t")).await?;
            commit(&mut transaction).await.map(drop)
        })
    })
    .await;
}

// Begin on the version that opening has found, because reading the latest version again would add an operation.
fn begin_on(lakehouse: &Arc<Lakehouse>) -> Result<crate::transaction::Transaction> {
    lakehouse.begin(lakehouse.known(), crate::transaction::TransactionOptions::default())
}

#[tokio::test]
async fn rolling_back() {
    enumerate(start().await, |storage, environment| {
        Box::pin(async move {
            let lakehouse = Lakehouse::open(storage, environment, None).await?;
            lakehouse.rollback(5, "", "").await.map(drop)
        })
    })
    .await;
}

#[tokio::test]
async fn expiring() {
    enumerate(start().await, |storage, environment| {
        Box::pin(async move {
            let lakehouse = Lakehouse::open(storage, environment, None).await?;
            expire(&lakehouse, Some(20), false).await.map(drop)
        })
    })
    .await;
}

#[tokio::test]
async fn a_second_expiry_completes_an_interrupted_one() {
    let start = start().await;
    let recording = Arc::new(FaultyStorage::new(start.copy(), []));
    let lakehouse = open(recording.clone(), &TestEnvironment::seeded(2)).await;
    expire(&lakehouse, Some(20), false).await.unwrap();
    for index in 0..recording.log().len() as u64 {
        let files = start.copy();
        let fault = Fault::new(Trigger::at(index), Action::DieBefore);
        let faulty = Arc::new(FaultyStorage::new(files.clone(), [fault]));
        if let Ok(lakehouse) = Lakehouse::open(faulty, TestEnvironment::seeded(2), None).await {
            expire(&lakehouse, Some(20), false).await.unwrap_err();
        }
        let lakehouse = open(files.clone(), &TestEnvironment::seeded(3)).await;
        expire(&lakehouse, Some(21), false).await.unwrap();
        let lowest = files.paths().iter().filter_map(|path| root_version(path)).min();
        assert_eq!(lowest, Some(21), "died at operation {index}");
    }
}

/// A fault during the second attempt of a commit that has lost its first race.
#[tokio::test]
async fn rebasing() {
    enumerate(start().await, |storage, environment| {
        Box::pin(async move {
            let lakehouse = Lakehouse::open(storage.clone(), environment.clone(), None).await?;
            let base = lakehouse.version(28).await?;
            let mut transaction = lakehouse.begin(base, Default::default())?;
            transaction.create(ObjectKind::Table, "n07", "t", text("t")).await?;
            commit(&mut transaction).await.map(drop)
        })
    })
    .await;
}

#[tokio::test]
async fn a_commit_succeeds_after_a_writer_died() {
    let files = start().await;
    let environment = TestEnvironment::seeded(4);
    let died = Arc::new(FaultyStorage::new(
        files.clone(),
        [Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path("_0"), Action::DieAfter)],
    ));
    let lakehouse = open(died, &environment).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(ObjectKind::Namespace, "x", "", text("x")).await.unwrap();
    let _ = commit(&mut transaction).await;
    let other = open(files, &environment).await;
    add_namespace(&other, "y").await.unwrap();
    add_table(&other, "y", "t").await.unwrap();
    assert_whole(&other.latest().await.unwrap()).await;
}

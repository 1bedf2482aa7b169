//! The intent queue across processes: the leader commits each waiting intent once, and stale intents are skipped.

use std::sync::Arc;

use futures::future::join_all;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::file_names::{INTENT_PREFIX, intent_path};
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::latency::{Latency, LatencyStorage};
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, assert_whole, commit, create, creating, in_queue, lead_in_queue,
    leave_intent, names, new_lakehouse, open,
};
use crate::transaction::commit::intent_queue::waiting_intents;
use crate::transaction::commit::submission::Submission;
use crate::transaction::{CommitLimits, Coordination, Outcome};

async fn add_in_queue(lakehouse: &Arc<Lakehouse>, namespace: &str) -> Result<u64> {
    match creating(lakehouse, namespace).await.commit(in_queue()).await? {
        Outcome::Committed(version) => Ok(version),
        Outcome::Conflicts(conflicts) => panic!("{conflicts:?}"),
    }
}

/// An intent is written after all files that it references. Otherwise a leader could commit a reference to a definition
/// that is never written.
#[tokio::test]
async fn an_intent_references_only_existing_files() {
    let (files, first, _) = two().await;
    let mut transaction = creating(&first, "n").await;
    lead_in_queue(&first, Submission { last_version: Some(9), ..transaction.submission() }).await;
    assert_eq!(intents(&files), Vec::<String>::new());
    leave_intent(&first, &mut transaction, 9).await;
    assert_eq!(intents(&files).len(), 1);
}

/// A path for an intent that sorts before all others, different for each name.
fn intent_named(name: &str) -> String {
    let id = name.bytes().fold(1, |id: u128, byte| id << 8 | u128::from(byte));
    intent_path(0, uuid::Uuid::from_u128(id), None)
}

fn intents(files: &MemoryFiles) -> Vec<String> {
    files.paths().into_iter().filter(|path| path.starts_with(INTENT_PREFIX)).collect()
}

/// A lakehouse with two independent handles.
async fn two() -> (Arc<MemoryFiles>, Arc<Lakehouse>, Arc<Lakehouse>) {
    let (files, environment, first) = new_lakehouse().await;
    let second = open(files.clone(), &environment).await;
    (files, first, second)
}

#[tokio::test(start_paused = true)]
async fn many_concurrent_processes_share_few_roots() {
    for is_remote in [false, true] {
        let environment = TestEnvironment::seeded(1);
        let files = if is_remote { MemoryFiles::remote(environment.clone()) } else { MemoryFiles::shared() };
        create(files.clone(), &environment).await;
        let slow = Arc::new(LatencyStorage::new(files.clone(), Latency::S3_STANDARD));
        let commits = (0..40).map(|process| {
            let (slow, environment) = (slow.clone(), environment.clone());
            async move {
                let lakehouse = open(slow, &environment).await;
                add_in_queue(&lakehouse, &format!("p{process:02}")).await.unwrap()
            }
        });
        let versions = join_all(commits).await;
        let latest = open(files.clone(), &environment).await.latest().await.unwrap();
        assert_eq!(names(&latest).await.len(), 40);
        assert!(latest.number <= 10, "{versions:?}");
        assert!(versions.iter().all(|version| (1..=latest.number).contains(version)), "{versions:?}");
        assert_eq!(intents(&files), [] as [&str; 0]);
        assert_whole(&latest).await;
    }
}

#[tokio::test]
async fn the_intent_of_a_dead_process_is_committed() {
    let (files, owner, other) = two().await;
    let mut waiting = creating(&owner, "waiting").await;
    leave_intent(&owner, &mut waiting, 10).await;
    // The first commit of this writer does not wait in the queue, but it lists the queue while it creates its root.
    assert_eq!(add_in_queue(&other, "a").await.unwrap(), 1);
    assert_eq!(add_in_queue(&other, "b").await.unwrap(), 2);
    let latest = other.latest().await.unwrap();
    assert_eq!(names(&latest).await, ["namespace a", "namespace b", "namespace waiting"]);
    let committed: Vec<&str> = latest.metadata.committed.iter().map(|one| one.id.as_str()).collect();
    assert!(committed.len() == 2 && committed.contains(&waiting.id()), "{committed:?}");
    assert_eq!(intents(&files), [] as [&str; 0]);
    // The owner is alive after all.
    assert_eq!(commit(&mut waiting).await.unwrap(), 2);
    assert_eq!(other.latest().await.unwrap().number, 2);
}

#[tokio::test]
async fn a_committed_intent_is_not_committed_again() {
    let (files, owner, other) = two().await;
    let mut waiting = creating(&owner, "waiting").await;
    leave_intent(&owner, &mut waiting, 10).await;
    let intent = owner.storage().get(&intents(&files)[0]).await.unwrap();
    assert_eq!(commit(&mut waiting).await.unwrap(), 1);
    files.overwrite(&intent_named("left over"), intent);
    for namespace in ["a", "b", "c"] {
        add_in_queue(&other, namespace).await.unwrap();
    }
    let latest = other.latest().await.unwrap();
    let versions = other.versions(2, latest.number, &latest).await.unwrap();
    assert!(versions.iter().all(|version| version.metadata.committed.len() == 1));
    assert_eq!(names(&latest).await.len(), 4);
}

#[tokio::test]
async fn a_conflicting_intent_is_not_committed() {
    let (_, owner, other) = two().await;
    let mut waiting = creating(&owner, "wanted").await;
    leave_intent(&owner, &mut waiting, 10).await;
    assert_eq!(add_in_queue(&other, "wanted").await.unwrap(), 1);
    assert_eq!(add_in_queue(&other, "b").await.unwrap(), 2);
    assert_eq!(other.known().metadata.committed.len(), 1);
    let error = waiting.commit(in_queue()).await.unwrap_err();
    assert!(matches!(&error, Error::CommitConflict { keys, .. } if keys == &["namespace wanted"]), "{error}");
}

#[tokio::test]
async fn an_intent_is_removed_after_its_last_version() {
    let (files, owner, other) = two().await;
    let mut waiting = creating(&owner, "waiting").await;
    leave_intent(&owner, &mut waiting, 1).await;
    for namespace in ["a", "b", "c"] {
        add_in_queue(&other, namespace).await.unwrap();
    }
    assert_eq!(names(&other.known()).await.len(), 3);
    assert_eq!(intents(&files), [] as [&str; 0]);
}

#[tokio::test]
async fn damaged_intents_are_skipped() {
    let (files, owner, other) = two().await;
    let mut waiting = creating(&owner, "waiting").await;
    leave_intent(&owner, &mut waiting, 10).await;
    let path = intents(&files)[0].clone();
    let bytes = owner.storage().get(&path).await.unwrap();
    for (name, damaged) in [("cut", bytes.slice(..bytes.len() - 3)), ("empty", bytes.slice(..0))] {
        files.overwrite(&intent_named(name), damaged);
    }
    let mut flipped = bytes.to_vec();
    flipped[bytes.len() / 2] ^= 1;
    files.overwrite(&path, flipped);
    add_in_queue(&other, "a").await.unwrap();
    add_in_queue(&other, "b").await.unwrap();
    assert_eq!(names(&other.known()).await, ["namespace a", "namespace b"]);
    assert_eq!(commit(&mut waiting).await.unwrap(), 3);
}

/// No process waits for the owner of an unreadable intent, which is deleted. Otherwise it would stay first in the
/// queue, and the owners of all later intents would wait.
#[tokio::test]
async fn an_unreadable_intent_is_removed_without_a_wait() {
    let (files, owner, other) = two().await;
    let mut waiting = creating(&owner, "waiting").await;
    leave_intent(&owner, &mut waiting, 10).await;
    let intent = owner.storage().get(&intents(&files)[0]).await.unwrap();
    for path in intents(&files) {
        files.delete(&path).await.unwrap();
    }
    // Two intents of a dead process that sort before all others: one is damaged, the other one is past its last
    // version.
    let mut over = creating(&owner, "over").await;
    leave_intent(&owner, &mut over, 0).await;
    let stale = intents(&files)[0].clone();
    files.overwrite(&intent_named("cut"), intent.slice(..intent.len() - 3));
    files.overwrite(&intent_named("over"), files.get(&stale).await.unwrap());
    files.delete(&stale).await.unwrap();

    let mut late = creating(&other, "late").await;
    let before = other.environment().elapsed_millis();
    leave_intent(&other, &mut late, 20).await;
    assert_eq!(other.environment().elapsed_millis(), before, "the writer waited");
    let first = &intent_named("")[..28];
    assert!(intents(&files).iter().all(|path| !path.starts_with(first)), "{:?}", intents(&files));
}

/// A file of a user in the folder of the queue is not an intent. Otherwise all writers would wait for its owner at each
/// commit.
#[tokio::test]
async fn foreign_files_in_the_queue_are_ignored() {
    let (files, _, other) = two().await;
    let foreign = ["_queue/.keep", "_queue/00000000000000000000-notes.binpb", "_queue/a/b.binpb"];
    foreign.iter().for_each(|path| files.overwrite(path, ""));
    let mut late = creating(&other, "late").await;
    late.write_files().await.unwrap();
    let queued = Submission { coordination: Coordination::Queue, ..late.submission() };
    assert!(waiting_intents(other.publisher(), std::slice::from_ref(&queued)).await.is_empty());
    files.overwrite(&intent_named("one"), "");
    assert_eq!(waiting_intents(other.publisher(), &[queued]).await, [intent_named("one")]);
    files.delete(&intent_named("one")).await.unwrap();

    let before = other.environment().elapsed_millis();
    leave_intent(&other, &mut late, 20).await;
    assert_eq!(other.environment().elapsed_millis(), before, "the writer waited");
    assert!(foreign.iter().all(|path| files.has(path)), "a foreign file was removed");
}

#[tokio::test]
async fn the_outcome_is_unknown_while_an_intent_may_still_be_committed() {
    let (files, environment, rival) = new_lakehouse().await;
    let intruder = Intruder::new(&files);
    let lakehouse = open(intruder.clone(), &environment).await;
    for i in 0..20 {
        let rival = rival.clone();
        intruder.add(move || async move {
            add_namespace(&rival, &format!("n{i}")).await.unwrap();
        });
    }
    let mut unlucky = creating(&lakehouse, "unlucky").await;
    let limits = CommitLimits { max_attempts: 3, ..in_queue() };
    let error = unlucky.commit(limits).await.unwrap_err();
    let Error::CommitStateUnknown(message) = &error else { panic!("{error}") };
    assert!(message.contains("from the queue, up to version 6"), "{message}");
}

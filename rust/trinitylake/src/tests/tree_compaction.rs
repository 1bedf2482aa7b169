//! Compaction of the tree: the same objects and fewer nodes, also with concurrent commits.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, assert_whole, begin, commit, contents, create, names, open,
};
use crate::transaction::Isolation;
use crate::tree_compaction::compact;

/// Two of three namespaces go, so that leaves are thin and buffers hold what was dropped.
async fn thin_out(lakehouse: &Arc<Lakehouse>, n: usize) {
    for i in (0..n).filter(|i| i % 3 != 0) {
        let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
        transaction.drop_object(ObjectKind::Namespace, &format!("n{i:02}"), "").await.unwrap();
        commit(&mut transaction).await.unwrap();
    }
}

/// A tree of the small order of these tests is smaller as inserts make it than as a bulk build does, which leaves room:
/// 26 nodes became 32.
#[tokio::test]
async fn a_tree_that_would_become_larger_is_left_alone() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files, &environment).await;
    for i in 0..60 {
        add_namespace(&lakehouse, &format!("n{:02}", (i * 37) % 60)).await.unwrap();
    }
    let number = lakehouse.latest().await.unwrap().number;
    let done = compact(&lakehouse, false, false, "", "").await.unwrap();
    assert!(done.after.nodes > done.before.nodes, "{:?}", (done.before, done.after));
    assert!(done.version.is_none());
    assert_eq!(lakehouse.latest().await.unwrap().number, number);
}

#[tokio::test]
async fn the_same_objects_are_in_fewer_nodes() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = create(files.clone(), &environment).await;
    for i in 0..60 {
        add_namespace(&lakehouse, &format!("n{:02}", (i * 37) % 60)).await.unwrap();
    }
    thin_out(&lakehouse, 60).await;
    let before = lakehouse.latest().await.unwrap();
    let planned = compact(&lakehouse, false, true, "", "").await.unwrap();
    assert!(planned.version.is_none());
    assert_eq!(lakehouse.latest().await.unwrap().number, before.number, "dry");
    let done = compact(&lakehouse, false, false, "tidy", "me").await.unwrap();
    let version = done.version.unwrap();
    assert_eq!(version.number, before.number + 1);
    assert_eq!(done.before, planned.before);
    assert_eq!(done.after.nodes, planned.after.nodes);
    assert!(done.after.nodes < done.before.nodes, "{done:?}", done = (done.before, done.after));
    assert_eq!(done.after.messages, 0);
    assert_eq!(contents(&version).await, contents(&before).await);
    assert!(version.changes(&before).await.unwrap().is_empty(), "it changed nothing");
    assert_eq!(version.metadata.committed[0].message, "tidy");
    assert_whole(&version).await;
    let old = open(files.clone(), &environment).await.version(before.number).await.unwrap();
    assert_eq!(contents(&old).await, contents(&before).await, "the version before is as it was");
    let again = compact(&lakehouse, false, false, "", "").await.unwrap();
    assert!(again.version.is_none(), "nothing to gain");
    assert!(compact(&lakehouse, true, false, "", "").await.unwrap().version.is_some(), "unless it is forced");
    for i in 0..30 {
        add_namespace(&lakehouse, &format!("after{i:02}")).await.unwrap();
    }
    let on_top = open(files, &environment).await.latest().await.unwrap();
    assert_eq!(names(&on_top).await.len(), 50);
    assert_whole(&on_top).await;
}

/// It was given up whenever somebody committed while it built the tree, which on a busy lakehouse is always.
#[tokio::test]
async fn what_others_commit_meanwhile_is_put_on_top() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let rival = create(files.clone(), &environment).await;
    for i in 0..40 {
        add_namespace(&rival, &format!("n{:02}", (i * 23) % 40)).await.unwrap();
    }
    let intruder = Intruder::new(&files);
    let lakehouse = open(intruder.clone(), &environment).await;
    for round in 0..3 {
        let rival = open(files.clone(), &environment).await;
        intruder.add(move || async move {
            for i in 0..8 {
                add_namespace(&rival, &format!("late{round}-{i}")).await.unwrap();
            }
        });
    }
    let done = compact(&lakehouse, true, false, "", "").await.unwrap();
    assert_eq!(intruder.waiting(), 0, "it lost three times");
    let version = done.version.unwrap();
    assert_eq!(names(&version).await.len(), 64);
    let before = lakehouse.version(version.number - 1).await.unwrap();
    assert_eq!(contents(&version).await, contents(&before).await);
    assert!(version.changes(&before).await.unwrap().is_empty());
    assert_whole(&version).await;
}

/// What a rollback changed is in no message: on top of the tree that was built it would be missing.
#[tokio::test]
async fn a_rollback_meanwhile_is_a_conflict() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let rival = create(files.clone(), &environment).await;
    for i in 0..20 {
        add_namespace(&rival, &format!("n{i:02}")).await.unwrap();
    }
    let intruder = Intruder::new(&files);
    let lakehouse = open(intruder.clone(), &environment).await;
    intruder.add(move || async move {
        rival.rollback(5, "", "").await.unwrap();
    });
    let error = compact(&lakehouse, true, false, "", "").await.unwrap_err();
    assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
    assert_eq!(names(&lakehouse.latest().await.unwrap()).await.len(), 5);
    assert!(compact(&lakehouse, true, false, "", "").await.unwrap().version.is_some());
}

//! Compaction of the tree: the same objects in fewer nodes, also with concurrent commits.

use std::sync::Arc;

use crate::error::Error;
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::tests::fixture::{
    Intruder, add_namespace, assert_whole, begin, commit, contents, names, new_lakehouse, open,
};
use crate::transaction::Isolation;
use crate::tree_compaction::compact;

/// Drops two of three namespaces, so that leaves are sparse and buffers contain the drops.
async fn thin_out(lakehouse: &Arc<Lakehouse>, n: usize) {
    for i in (0..n).filter(|i| i % 3 != 0) {
        let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
        transaction.drop_object(ObjectKind::Namespace, &format!("n{i:02}"), "").await.unwrap();
        commit(&mut transaction).await.unwrap();
    }
}

/// A tree is not compacted if it would become larger. With the small order of these tests, a bulk build leaves so much
/// space for inserts that 26 nodes become 32.
#[tokio::test]
async fn a_tree_that_would_become_larger_is_not_compacted() {
    let (_, _, lakehouse) = new_lakehouse().await;
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
async fn a_compaction_keeps_the_objects_in_fewer_nodes() {
    let (files, environment, lakehouse) = new_lakehouse().await;
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
    assert!(version.changes(&before).await.unwrap().is_empty(), "the compaction changed an object");
    assert_eq!(version.metadata.committed[0].message, "tidy");
    assert_whole(&version).await;
    let old = open(files.clone(), &environment).await.version(before.number).await.unwrap();
    assert_eq!(contents(&old).await, contents(&before).await, "the previous version was changed");
    let again = compact(&lakehouse, false, false, "", "").await.unwrap();
    assert!(again.version.is_none(), "a second compaction has nothing to gain");
    assert!(compact(&lakehouse, true, false, "", "").await.unwrap().version.is_some(), "force compacts anyway");
    for i in 0..30 {
        add_namespace(&lakehouse, &format!("after{i:02}")).await.unwrap();
    }
    let on_top = open(files, &environment).await.latest().await.unwrap();
    assert_eq!(names(&on_top).await.len(), 50);
    assert_whole(&on_top).await;
}

/// A compaction succeeds while other transactions commit. Otherwise it would never succeed on a busy lakehouse.
#[tokio::test]
async fn concurrent_commits_are_applied_on_top_of_a_compaction() {
    let (files, environment, rival) = new_lakehouse().await;
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
    assert_eq!(intruder.waiting(), 0, "the compaction did not lose three races");
    let version = done.version.unwrap();
    assert_eq!(names(&version).await.len(), 64);
    let before = lakehouse.version(version.number - 1).await.unwrap();
    assert_eq!(contents(&version).await, contents(&before).await);
    assert!(version.changes(&before).await.unwrap().is_empty());
    assert_whole(&version).await;
}

/// A concurrent rollback is a conflict: its changes are in no message, so they would be missing in the new tree.
#[tokio::test]
async fn a_concurrent_rollback_conflicts_with_a_compaction() {
    let (files, environment, rival) = new_lakehouse().await;
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

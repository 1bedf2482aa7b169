//! Structural requirements are checked at both isolation levels.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::key::ObjectKind::{Namespace, Table, View};
use crate::lakehouse::Lakehouse;
use crate::tests::fixture::{MemoryFiles, add_namespace, add_table, begin, commit, create, names, text};
use crate::transaction::Isolation::{Serializable, Snapshot};
use crate::transaction::Transaction;

/// A lakehouse with namespaces `empty` and `full`, and table `full.t`.
async fn lake() -> Arc<Lakehouse> {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    for namespace in ["empty", "full"] {
        add_namespace(&lakehouse, namespace).await.unwrap();
    }
    add_table(&lakehouse, "full", "t").await.unwrap();
    lakehouse
}

/// Commits `first` and then `second`, which have the same base version; returns the result of `second`.
async fn race(first: &mut Transaction, second: &mut Transaction) -> Result<u64> {
    commit(first).await.unwrap();
    commit(second).await
}

#[track_caller]
fn assert_conflict(result: Result<u64>) {
    assert!(matches!(result, Err(Error::CommitConflict { .. })), "{result:?}");
}

/// Checks that every object is in an existing namespace and that no table has the name of a view.
async fn assert_consistent(lakehouse: &Lakehouse) {
    let latest = lakehouse.latest().await.unwrap();
    for name in names(&latest).await {
        let Some((kind, full_name)) = name.split_once(' ') else { continue };
        let Some((namespace, object)) = full_name.rsplit_once('.') else { continue };
        if kind == "namespace" {
            continue;
        }
        assert!(latest.locate(Namespace, namespace, "").await.unwrap().is_some(), "{name} has no namespace");
        let other = if kind == "table" { View } else { Table };
        assert!(latest.locate(other, namespace, object).await.unwrap().is_none(), "{name} is a table and a view");
    }
}

#[tokio::test]
async fn no_object_is_created_in_a_dropped_namespace() {
    for isolation in [Snapshot, Serializable] {
        for kind in [Table, View] {
            let lakehouse = lake().await;
            let mut dropper = begin(&lakehouse, isolation).await;
            dropper.drop_object(Namespace, "empty", "").await.unwrap();
            let mut creator = begin(&lakehouse, isolation).await;
            creator.create(kind, "empty", "new", text("")).await.unwrap();
            assert_conflict(race(&mut dropper, &mut creator).await);
            assert_consistent(&lakehouse).await;
        }
    }
}

#[tokio::test]
async fn a_table_is_not_renamed_into_a_dropped_namespace() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let mut dropper = begin(&lakehouse, isolation).await;
        dropper.drop_object(Namespace, "empty", "").await.unwrap();
        let mut mover = begin(&lakehouse, isolation).await;
        mover.rename(Table, ("full", "t"), ("empty", "t")).await.unwrap();
        assert_conflict(race(&mut dropper, &mut mover).await);
        assert_consistent(&lakehouse).await;
    }
}

#[tokio::test]
async fn a_namespace_that_is_no_longer_empty_is_not_dropped() {
    for isolation in [Snapshot, Serializable] {
        for kind in [Table, View] {
            let lakehouse = lake().await;
            let mut creator = begin(&lakehouse, isolation).await;
            creator.create(kind, "empty", "new", text("")).await.unwrap();
            let mut dropper = begin(&lakehouse, isolation).await;
            dropper.drop_object(Namespace, "empty", "").await.unwrap();
            assert_conflict(race(&mut creator, &mut dropper).await);
            assert_consistent(&lakehouse).await;
        }
        let lakehouse = lake().await;
        let mut mover = begin(&lakehouse, isolation).await;
        mover.rename(Table, ("full", "t"), ("empty", "t")).await.unwrap();
        let mut dropper = begin(&lakehouse, isolation).await;
        dropper.drop_object(Namespace, "empty", "").await.unwrap();
        assert_conflict(race(&mut mover, &mut dropper).await);
        assert_consistent(&lakehouse).await;

        let lakehouse = lake().await;
        let mut creator = begin(&lakehouse, isolation).await;
        creator.create(Namespace, "empty.child", "", text("")).await.unwrap();
        let mut dropper = begin(&lakehouse, isolation).await;
        dropper.drop_object(Namespace, "empty", "").await.unwrap();
        assert_conflict(race(&mut creator, &mut dropper).await);
    }
}

/// A transaction that drops all objects of a namespace may drop the namespace, unless another transaction has added an
/// object.
#[tokio::test]
async fn emptying_and_dropping_a_namespace_conflicts_with_new_objects() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let drop_full = async || {
            let mut dropper = begin(&lakehouse, isolation).await;
            dropper.drop_object(Table, "full", "t").await.unwrap();
            dropper.drop_object(Namespace, "full", "").await.unwrap();
            dropper
        };
        let mut lost = drop_full().await;
        let mut creator = begin(&lakehouse, isolation).await;
        creator.create(View, "full", "v", text("")).await.unwrap();
        assert_conflict(race(&mut creator, &mut lost).await);

        let mut remover = begin(&lakehouse, isolation).await;
        remover.drop_object(View, "full", "v").await.unwrap();
        commit(&mut remover).await.unwrap();
        let mut dropper = drop_full().await;
        let mut bystander = begin(&lakehouse, isolation).await;
        bystander.create(Table, "empty", "t", text("")).await.unwrap();
        race(&mut bystander, &mut dropper).await.unwrap();
        assert_eq!(names(&lakehouse.latest().await.unwrap()).await, ["namespace empty", "table empty.t"]);
    }
}

/// Objects that were created and dropped in the meantime do not prevent the drop.
#[tokio::test]
async fn a_namespace_that_is_empty_again_can_be_dropped_under_snapshot() {
    let lakehouse = lake().await;
    let mut dropper = begin(&lakehouse, Snapshot).await;
    dropper.drop_object(Namespace, "empty", "").await.unwrap();
    add_table(&lakehouse, "empty", "brief").await.unwrap();
    let mut remover = begin(&lakehouse, Snapshot).await;
    remover.drop_object(Table, "empty", "brief").await.unwrap();
    commit(&mut remover).await.unwrap();
    commit(&mut dropper).await.unwrap();
    assert_consistent(&lakehouse).await;
}

#[tokio::test]
async fn a_table_and_a_view_of_one_name_do_not_both_commit() {
    for isolation in [Snapshot, Serializable] {
        for (winner, loser) in [(Table, View), (View, Table)] {
            let lakehouse = lake().await;
            let mut first = begin(&lakehouse, isolation).await;
            first.create(winner, "full", "same", text("")).await.unwrap();
            let mut second = begin(&lakehouse, isolation).await;
            second.create(loser, "full", "same", text("")).await.unwrap();
            assert_conflict(race(&mut first, &mut second).await);
            assert_consistent(&lakehouse).await;
        }
    }
}

#[tokio::test]
async fn replacing_a_table_by_a_view_conflicts_with_a_change_of_the_table() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let mut exchanger = begin(&lakehouse, isolation).await;
        exchanger.drop_object(Table, "full", "t").await.unwrap();
        exchanger.create(View, "full", "t", text("")).await.unwrap();
        let mut changer = begin(&lakehouse, isolation).await;
        changer.replace(Table, "full", "t", text("")).await.unwrap();
        assert_conflict(race(&mut changer, &mut exchanger).await);
        assert_consistent(&lakehouse).await;
    }
}

#[tokio::test]
async fn the_rules_hold_over_many_versions_with_flushes_between() {
    let lakehouse = lake().await;
    let mut creator = begin(&lakehouse, Snapshot).await;
    creator.create(Table, "empty", "new", text("")).await.unwrap();
    let mut dropper = begin(&lakehouse, Snapshot).await;
    dropper.drop_object(Namespace, "empty", "").await.unwrap();
    for i in 0..30 {
        add_namespace(&lakehouse, &format!("n{i:02}")).await.unwrap();
    }
    commit(&mut creator).await.unwrap();
    for i in 30..60 {
        add_namespace(&lakehouse, &format!("n{i:02}")).await.unwrap();
    }
    assert_conflict(commit(&mut dropper).await);
    assert_consistent(&lakehouse).await;
}

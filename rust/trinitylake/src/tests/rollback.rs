//! Rollback to an older tree, as a new version.

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::file_names::root_path;
use crate::key::ObjectKind;
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, contents, create, names,
    new_lakehouse, open, text,
};
use crate::transaction::Isolation;

#[tokio::test]
async fn a_rollback_restores_the_tree_of_its_target() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for i in 0..40 {
        add_namespace(&lakehouse, &format!("n{i:02}")).await.unwrap();
    }
    for target in [0, 7, 25, 40] {
        let before = lakehouse.latest().await.unwrap();
        let version = lakehouse.rollback(target, "oops", "me").await.unwrap();
        assert_eq!(version.number, before.number + 1);
        assert_eq!(contents(&version).await, contents(&lakehouse.version(target).await.unwrap()).await);
        assert_eq!(version.metadata.rollback_from_root.as_ref(), Some(&before.root_path));
        assert_eq!(version.metadata.previous_root.as_ref(), Some(&root_path(before.number)));
        assert_eq!(version.metadata.committed[0].message, "oops");
        assert_whole(&version).await;
        // Later commits work as after any version.
        for i in 0..15 {
            add_namespace(&lakehouse, &format!("after{target}-{i}")).await.unwrap();
        }
        let on_top = open(files.clone(), &environment).await.latest().await.unwrap();
        assert_eq!(names(&on_top).await.len() as u64, target + 15);
        assert_whole(&on_top).await;
    }
}

#[tokio::test]
async fn a_rollback_to_a_missing_version_is_refused() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    assert!(matches!(lakehouse.rollback(1, "", "").await, Err(Error::VersionNotFound(_))));
}

/// A rollback fails if a transaction commits after the rollback has read the latest version, because the rollback would
/// undo that transaction without notice.
#[tokio::test]
async fn a_rollback_conflicts_with_a_concurrent_commit() {
    let (files, environment, rival) = new_lakehouse().await;
    add_namespace(&rival, "a").await.unwrap();
    let intruder = Intruder::new(&files);
    let lakehouse = open(intruder.clone(), &environment).await;
    intruder.add(move || async move {
        add_namespace(&rival, "unseen").await.unwrap();
    });
    let error = lakehouse.rollback(0, "", "").await.unwrap_err();
    assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
    assert_eq!(names(&lakehouse.latest().await.unwrap()).await, ["namespace a", "namespace unseen"]);
    assert_eq!(lakehouse.rollback(0, "", "").await.unwrap().number, 3);
}

/// A rollback has no messages, so its changes are determined by a comparison of trees.
#[tokio::test]
async fn conflicts_are_found_across_a_rollback() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (_, _, lakehouse) = new_lakehouse().await;
        add_namespace(&lakehouse, "kept").await.unwrap();
        add_namespace(&lakehouse, "undone").await.unwrap();
        for i in 0..20 {
            add_namespace(&lakehouse, &format!("undone{i}")).await.unwrap();
        }

        let mut changes_undone = begin(&lakehouse, isolation).await;
        changes_undone.replace(ObjectKind::Namespace, "undone", "", text("new")).await.unwrap();
        let mut table_in_undone = begin(&lakehouse, isolation).await;
        table_in_undone.create(ObjectKind::Table, "undone", "t", text("t")).await.unwrap();
        let mut table_in_kept = begin(&lakehouse, isolation).await;
        table_in_kept.create(ObjectKind::Table, "kept", "t", text("t")).await.unwrap();
        let mut reads_undone = begin(&lakehouse, isolation).await;
        reads_undone.read(ObjectKind::Namespace, "undone7", "").await.unwrap();
        reads_undone.create(ObjectKind::Namespace, "other", "", text("other")).await.unwrap();

        lakehouse.rollback(1, "", "").await.unwrap();
        for mut lost in [changes_undone, table_in_undone] {
            let error = commit(&mut lost).await.unwrap_err();
            assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
        }
        commit(&mut table_in_kept).await.unwrap();
        let read = commit(&mut reads_undone).await;
        match isolation {
            Isolation::Snapshot => drop(read.unwrap()),
            Isolation::Serializable => assert!(matches!(read, Err(Error::CommitConflict { .. }))),
        }
        let latest = lakehouse.latest().await.unwrap();
        let names = names(&latest).await;
        assert!(names.contains(&"namespace kept".into()) && names.contains(&"table kept.t".into()), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("undone")), "{names:?}");
    }
}

#[tokio::test]
async fn a_table_added_after_a_rollback_is_in_the_rolled_back_tree() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    add_namespace(&lakehouse, "a").await.unwrap();
    lakehouse.rollback(0, "", "").await.unwrap();
    assert!(matches!(add_table(&lakehouse, "a", "t").await, Err(Error::ObjectNotFound(_))));
    add_namespace(&lakehouse, "a").await.unwrap();
    add_table(&lakehouse, "a", "t").await.unwrap();
}

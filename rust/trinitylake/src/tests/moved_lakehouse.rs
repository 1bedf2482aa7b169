//! A copied lakehouse can be read immediately, and written to after it was relocated.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::key::ObjectKind;
use crate::root_uri::RootUri;
use crate::storage::{Durability, LocalStorage, Storage};
use crate::tests::fixture::{MemoryFiles, add_namespace, begin, commit, create, names, open, small_definition, text};
use crate::transaction::{CommitLimits, Isolation, Transaction};

fn local(root: &std::path::Path) -> Arc<dyn Storage> {
    let root = RootUri::parse(root.to_str().unwrap()).unwrap();
    Arc::new(LocalStorage::new(&root, Durability::None))
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A copied lakehouse is read-only until it is relocated. Otherwise, after `cp -a`, a process that writes to the copy
/// would change files of the original, which the Iceberg metadata of the copy still names.
#[tokio::test]
async fn a_copy_can_be_read_and_after_a_relocation_written() {
    let folder = tempfile::tempdir().unwrap();
    let environment = TestEnvironment::seeded(1);
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let original = create(local(&first), &environment).await;
    add_namespace(&original, "a").await.unwrap();
    copy(&first, &second);

    let moved = open(local(&second), &environment).await;
    assert_eq!(names(&moved.latest().await.unwrap()).await, ["namespace a"]);
    let refused = add_namespace(&moved, "b").await.unwrap_err();
    assert!(matches!(&refused, Error::LakehouseMoved(message) if message.contains("relocate")), "{refused}");
    let refused = moved.rollback(0, "", "").await.unwrap_err();
    assert!(matches!(refused, Error::LakehouseMoved(_)), "{refused}");
    let refused = crate::expiry::expire(&moved, Some(1), false).await.unwrap_err();
    assert!(matches!(refused, Error::LakehouseMoved(_)), "{refused}");
    let mut saved = begin(&moved, Isolation::Snapshot).await;
    assert!(matches!(saved.save().await, Err(Error::LakehouseMoved(_))));
    assert_eq!(moved.latest().await.unwrap().number, 1, "a version was written");

    let mut transaction = begin(&moved, Isolation::Snapshot).await;
    assert!(transaction.relocate(&[]).unwrap());
    transaction.create(ObjectKind::Namespace, "b", "", text("b")).await.unwrap();
    commit(&mut transaction).await.unwrap();
    add_namespace(&moved, "c").await.unwrap();
    assert_eq!(moved.placement().other_roots(), [original.storage().root()]);
    assert!(!begin(&moved, Isolation::Snapshot).await.relocate(&[]).unwrap(), "the place is already recorded");

    // The original and the copy are now independent lakehouses.
    add_namespace(&original, "d").await.unwrap();
    let reopened = open(local(&second), &environment).await;
    assert!(reopened.placement().is_recorded());
    assert_eq!(names(&reopened.latest().await.unwrap()).await.len(), 3);
}

/// A change of the lakehouse definition keeps the recorded root URI. Otherwise a change that is based on an earlier
/// definition would restore the old root URI.
#[tokio::test]
async fn a_new_definition_does_not_move_the_lakehouse() {
    let files = MemoryFiles::shared();
    let lakehouse = create(files, &TestEnvironment::seeded(1)).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.set_lakehouse_definition(small_definition().bytes().clone()).unwrap();
    transaction.commit(CommitLimits::default()).await.unwrap();
    let definition = lakehouse.latest().await.unwrap().definition.clone();
    assert_eq!(definition.root_uri(), Some(lakehouse.storage().root()));
}

/// A saved transaction can be committed after the lakehouse was moved and relocated. Otherwise it would be refused,
/// because its base version records the old root URI, although the relocation is done.
#[tokio::test]
async fn a_saved_transaction_commits_after_a_relocation() {
    let folder = tempfile::tempdir().unwrap();
    let environment = TestEnvironment::seeded(1);
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let original = create(local(&first), &environment).await;
    let mut saved = begin(&original, Isolation::Snapshot).await;
    saved.create(ObjectKind::Namespace, "job", "", text("job")).await.unwrap();
    saved.save().await.unwrap();
    let mut late = begin(&original, Isolation::Snapshot).await;
    late.create(ObjectKind::Namespace, "late", "", text("late")).await.unwrap();
    late.save().await.unwrap();
    std::fs::rename(&first, &second).unwrap();

    let moved = open(local(&second), &environment).await;
    let refused = Transaction::resume(&moved, saved.id()).await.unwrap().save().await.unwrap_err();
    assert!(matches!(refused, Error::LakehouseMoved(_)), "not yet: {refused}");
    let mut relocation = begin(&moved, Isolation::Snapshot).await;
    assert!(relocation.relocate(&[]).unwrap());
    commit(&mut relocation).await.unwrap();

    let mut resumed = Transaction::resume(&moved, saved.id()).await.unwrap();
    assert!(!resumed.relocate(&[]).unwrap(), "the place is already recorded");
    resumed.check_writable().unwrap();
    resumed.save().await.unwrap();
    let reopened = open(local(&second), &environment).await;
    let mut resumed = Transaction::resume(&reopened, saved.id()).await.unwrap();
    commit(&mut resumed).await.unwrap();
    assert!(names(&moved.latest().await.unwrap()).await.contains(&"namespace job".to_string()));

    // Back at the old place, the lakehouse counts as moved again, although the base versions of its transactions record
    // that place.
    std::fs::rename(&second, &first).unwrap();
    let back = open(local(&first), &environment).await;
    let mut resumed = Transaction::resume(&back, late.id()).await.unwrap();
    assert!(matches!(resumed.check_writable(), Err(Error::LakehouseMoved(_))));
    assert!(matches!(commit(&mut resumed).await, Err(Error::LakehouseMoved(_))));
}

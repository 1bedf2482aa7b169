//! Rollback of single objects to an earlier version.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::expiry::expire;
use crate::key::ObjectKind::{Namespace, Table};
use crate::lakehouse::Lakehouse;
use crate::node::mutable_node::MutableNode;
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, add_table, begin, commit, create, new_lakehouse, open,
};
use crate::transaction::Isolation;

/// Publishes a gc fence without other changes.
async fn collect(lakehouse: &Arc<Lakehouse>) {
    let latest = lakehouse.latest().await.unwrap();
    let mut metadata = lakehouse.publisher().next_metadata(&latest, Vec::new());
    metadata.gc_before_millis = Some(7);
    let height = lakehouse.nodes().height_of(&latest.root).await.unwrap();
    let draft = MutableNode::of(&latest.root, height);
    lakehouse.publisher().publish_alone(&latest, metadata, draft, "the collection").await.unwrap();
}

/// A restoration conflicts with a collection that commits first. Otherwise its root could reference files that the
/// collection has deleted since the restoration began.
#[tokio::test]
async fn a_restoration_conflicts_with_an_earlier_collection() {
    for is_collected in [false, true] {
        let (files, environment, rival) = new_lakehouse().await;
        add_namespace(&rival, "a").await.unwrap();
        add_table(&rival, "a", "t").await.unwrap();
        let mut drop = begin(&rival, Isolation::Snapshot).await;
        drop.drop_object(Table, "a", "t").await.unwrap();
        commit(&mut drop).await.unwrap();

        let intruder = Intruder::new(&files);
        let lakehouse = open(intruder.clone(), &environment).await;
        let past = lakehouse.version(2).await.unwrap();
        let location = past.locate(Table, "a", "t").await.unwrap().unwrap();
        let mut restoration = begin(&lakehouse, Isolation::Snapshot).await;
        restoration.depend_on_version(&past).await.unwrap();
        assert!(restoration.put_back(Table, "a", "t", &location).await.unwrap());
        assert!(restoration.save().await.is_err(), "another process could not check the earlier version");
        let other = rival.clone();
        intruder.add(move || async move {
            if is_collected {
                collect(&other).await;
            } else {
                add_namespace(&other, "b").await.unwrap();
            }
        });
        let outcome = commit(&mut restoration).await;
        let latest = rival.latest().await.unwrap();
        let now = latest.locate(Table, "a", "t").await.unwrap();
        if is_collected {
            assert!(matches!(outcome, Err(Error::CommitConflict { .. })), "{outcome:?}");
            assert_eq!((latest.number, now), (4, None));
        } else {
            assert_eq!((outcome.unwrap(), now), (5, Some(location)));
        }
    }
}

#[tokio::test]
async fn an_unchanged_object_is_not_written() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    add_namespace(&lakehouse, "a").await.unwrap();
    let past = lakehouse.latest().await.unwrap();
    let location = past.locate(Namespace, "a", "").await.unwrap().unwrap();
    let mut restoration = begin(&lakehouse, Isolation::Snapshot).await;
    restoration.depend_on_version(&past).await.unwrap();
    assert!(!restoration.put_back(Namespace, "a", "", &location).await.unwrap());
    assert!(!restoration.has_writes());
}

/// A restoration reads the boundary, because its handle may have cached a version that has expired.
#[tokio::test]
async fn a_restoration_from_an_expired_version_is_refused() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for name in ["a", "b", "c"] {
        add_namespace(&lakehouse, name).await.unwrap();
    }
    let past = lakehouse.version(1).await.unwrap();
    expire(&open(files, &environment).await, Some(2), false).await.unwrap();
    let mut restoration = begin(&lakehouse, Isolation::Snapshot).await;
    assert!(matches!(restoration.depend_on_version(&past).await, Err(Error::VersionExpired(_))));
    let mut restoration = begin(&lakehouse, Isolation::Snapshot).await;
    restoration.depend_on_version(&lakehouse.version(2).await.unwrap()).await.unwrap();
}

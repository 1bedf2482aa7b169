//! Bulk registrations concurrent to ordinary transactions.

use std::sync::Arc;

use arrow_array::StringArray;

use crate::bulk_registration::{Registered, register, register_parts};
use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::key::ObjectKind::{Namespace, Table, View};
use crate::lakehouse::Lakehouse;
use crate::node::mutable_node::Row;
use crate::tests::fixture::{
    Intruder, MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, contents, create, names,
    new_lakehouse, open, text,
};
use crate::transaction::Isolation;
use crate::tree::bulk_build::NodeWriter;
use crate::tree::distributed_bulk_build::LeafWriter;
use crate::version::Version;

/// Registers the namespace `r` with tables. The files at the locations are not read in these tests.
async fn register_tables(lakehouse: &Arc<Lakehouse>, tables: std::ops::Range<usize>) -> Result<Arc<Version>> {
    let sizes = lakehouse.known().config.names;
    let mut keys: Vec<String> = tables.map(|i| sizes.table_key("r", &format!("t{i:04}")).unwrap()).collect();
    if lakehouse.latest().await?.locate(Namespace, "r", "").await?.is_none() {
        keys.push(sizes.namespace_key("r").unwrap());
    }
    register_keys(lakehouse, &keys).await
}

async fn register_keys(lakehouse: &Arc<Lakehouse>, keys: &[String]) -> Result<Arc<Version>> {
    let locations = StringArray::from_iter_values(keys.iter().map(|key| format!("file of {key}")));
    register(lakehouse, StringArray::from_iter_values(keys), locations, false, "register", "me").await
}

#[tokio::test]
async fn commits_after_a_registration_find_its_objects() {
    for count in [0, 1, 3, 4, 5, 500] {
        let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
        add_namespace(&lakehouse, "before").await.unwrap();
        let version = register_tables(&lakehouse, 0..count).await.unwrap();
        assert_eq!(version.number, 2);
        assert_eq!(names(&version).await.len(), 2 + count);
        assert_whole(&version).await;
        for i in 0..20 {
            add_table(&lakehouse, "r", &format!("after{i:02}")).await.unwrap();
        }
        let latest = register_tables(&lakehouse, count..count + 10).await.unwrap();
        assert_eq!(names(&latest).await.len(), 2 + count + 20 + 10);
        assert_whole(&latest).await;
        let key = &latest.config.names.table_key("r", &format!("t{count:04}")).unwrap();
        assert_eq!(latest.get(key).await.unwrap().unwrap(), format!("file of {key}"));
    }
}

#[tokio::test]
async fn registrations_that_break_a_rule_are_refused() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    register_tables(&lakehouse, 0..10).await.unwrap();
    let before = contents(&lakehouse.latest().await.unwrap()).await;
    let sizes = lakehouse.known().config.names;
    let table = |namespace, name| sizes.table_key(namespace, name).unwrap();

    let taken = register_keys(&lakehouse, &[table("r", "t0003")]).await;
    assert!(matches!(&taken, Err(Error::ObjectAlreadyExists(message)) if message.contains("t0003")), "{taken:?}");
    let twice = register_keys(&lakehouse, &[table("r", "b"), table("r", "a"), table("r", "b")]).await;
    assert!(matches!(&twice, Err(Error::ObjectAlreadyExists(message)) if message.contains("twice")), "{twice:?}");
    let homeless = register_keys(&lakehouse, &[table("nowhere", "t")]).await;
    assert!(matches!(homeless, Err(Error::ObjectNotFound(_))), "{homeless:?}");
    let foreign = register_keys(&lakehouse, &["X===".into()]).await;
    assert!(matches!(foreign, Err(Error::InvalidName(_))), "{foreign:?}");
    let view = sizes.view_key("r", "t0003").unwrap();
    let same_name = register_keys(&lakehouse, &[view]).await;
    assert!(matches!(same_name, Err(Error::ObjectAlreadyExists(_))), "a view with the name of a table: {same_name:?}");
    assert_eq!(contents(&lakehouse.latest().await.unwrap()).await, before);
    register_keys(&lakehouse, &[sizes.view_key("r", "t").unwrap()]).await.unwrap();
}

#[tokio::test]
async fn existing_objects_are_replaced_on_request() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    register_tables(&lakehouse, 0..20).await.unwrap();
    let sizes = lakehouse.known().config.names;
    let keys = ["t0003", "t0019", "zz"].map(|name| sizes.table_key("r", name).unwrap());
    let newer = StringArray::from(vec!["newer"; keys.len()]);
    let version = register(&lakehouse, StringArray::from_iter_values(&keys), newer, true, "", "").await.unwrap();
    assert_eq!(names(&version).await.len(), 1 + 21);
    for key in &keys {
        assert_eq!(version.get(key).await.unwrap().unwrap(), "newer");
    }
    let kept = sizes.table_key("r", "t0004").unwrap();
    assert_eq!(version.get(&kept).await.unwrap().unwrap(), format!("file of {kept}"));
    assert_whole(&version).await;
}

#[tokio::test]
async fn a_transaction_conflicts_with_a_registration() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
        add_namespace(&lakehouse, "r").await.unwrap();
        add_namespace(&lakehouse, "other").await.unwrap();
        let mut same_table = begin(&lakehouse, isolation).await;
        same_table.create(Table, "r", "t0003", text("")).await.unwrap();
        let mut same_name = begin(&lakehouse, isolation).await;
        same_name.create(View, "r", "t0003", text("")).await.unwrap();
        let mut dropper = begin(&lakehouse, isolation).await;
        dropper.drop_object(Namespace, "r", "").await.unwrap();
        let mut bystander = begin(&lakehouse, isolation).await;
        bystander.create(Table, "other", "t", text("")).await.unwrap();

        register_tables(&lakehouse, 0..100).await.unwrap();
        for mut lost in [same_table, same_name, dropper] {
            let result = commit(&mut lost).await;
            assert!(matches!(result, Err(Error::CommitConflict { .. })), "{result:?}");
        }
        commit(&mut bystander).await.unwrap();
        let latest = lakehouse.latest().await.unwrap();
        assert_eq!(names(&latest).await.len(), 103);
        assert_whole(&latest).await;
    }
}

#[tokio::test]
async fn a_registration_conflicts_with_a_commit() {
    let (files, environment, rival) = new_lakehouse().await;
    let intruder = Intruder::new(&files);
    let lakehouse = open(intruder.clone(), &environment).await;
    intruder.add(move || async move {
        add_namespace(&rival, "rival").await.unwrap();
    });
    let error = register_tables(&lakehouse, 0..10).await.unwrap_err();
    assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
    assert_eq!(register_tables(&lakehouse, 0..10).await.unwrap().number, 2);
    assert_eq!(names(&lakehouse.known()).await.len(), 12);
}

/// Registers namespace `p` with tables, built by two workers on a version without objects.
async fn register_by_workers(lakehouse: &Lakehouse, base: &Version, tables: usize) -> Result<Arc<Version>> {
    let sizes = base.config.names;
    let mut keys = vec![sizes.namespace_key("p").unwrap()];
    keys.extend((0..tables).map(|i| sizes.table_key("p", &format!("t{i:04}")).unwrap()));
    let rows: Vec<Row> = keys.iter().map(|key| Row { key: key.as_str().into(), value: "file".into() }).collect();
    let environment = lakehouse.environment();
    let writer =
        NodeWriter { storage: lakehouse.storage().as_ref(), environment: environment.as_ref(), config: &base.config };
    let (mut leaves, mut loose) = (Vec::new(), Vec::new());
    for part in [0..rows.len() / 3, rows.len() / 3..rows.len()] {
        let mut worker = LeafWriter::new(rows.len(), base.config.order, part.start);
        leaves.extend(worker.push(&writer, rows[part].to_vec()).await.unwrap());
        loose.extend(worker.finish());
    }
    let registered = Registered { tables: 1, ..Registered::default() };
    register_parts(lakehouse, base, (rows.len(), leaves, loose), registered, "parts", "me").await
}

#[tokio::test]
async fn a_registration_by_workers_is_one_version() {
    for tables in [0, 1, 500] {
        let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
        let base = lakehouse.latest().await.unwrap();
        let version = register_by_workers(&lakehouse, &base, tables).await.unwrap();
        assert_eq!((version.number, names(&version).await.len()), (1, 1 + tables));
        assert_whole(&version).await;
        assert_eq!(version.changes(&base).await.unwrap().len(), 1 + tables);
        add_table(&lakehouse, "p", "after").await.unwrap();
        assert_whole(&lakehouse.latest().await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_registration_by_workers_on_an_older_version_conflicts() {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    let base = lakehouse.latest().await.unwrap();
    add_namespace(&lakehouse, "rival").await.unwrap();
    let error = register_by_workers(&lakehouse, &base, 100).await.unwrap_err();
    assert!(matches!(error, Error::CommitConflict { .. }), "{error}");
    assert_eq!(names(&lakehouse.latest().await.unwrap()).await.len(), 1);
}

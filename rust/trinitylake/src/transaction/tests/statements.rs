//! Statements see earlier statements of their transaction, and no other transaction sees them.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::key::{KeyRange, ObjectKind};
use crate::lakehouse::Lakehouse;
use crate::lakehouse_definition::{LakehouseDefinition, proto};
use crate::storage::CachingStorage;
use crate::storage::counting::CountingStorage;
use crate::tests::fixture::{
    MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, create, names, new_lakehouse, open, text,
};
use crate::transaction::{CommitLimits, Files, Isolation, Outcome, Proof, TransactionOptions};

use ObjectKind::{Namespace, Table, View};

async fn lake() -> Arc<Lakehouse> {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    add_namespace(&lakehouse, "a").await.unwrap();
    add_table(&lakehouse, "a", "t").await.unwrap();
    lakehouse
}

#[tokio::test]
async fn a_transaction_reads_its_own_writes_and_others_do_not() {
    let lakehouse = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "b", "", text("b")).await.unwrap();
    transaction.create(Table, "b", "t", text("first")).await.unwrap();
    transaction.replace(Table, "b", "t", text("second")).await.unwrap();
    transaction.drop_object(Table, "a", "t").await.unwrap();
    assert_eq!(transaction.read(Table, "b", "t").await.unwrap().unwrap(), "second");
    assert!(!transaction.exists(Table, "a", "t").await.unwrap());
    let listed: Vec<String> = transaction
        .list(&KeyRange::all(), None)
        .await
        .unwrap()
        .into_iter()
        .map(|(key, _)| lakehouse.known().config.names.decode(&key).unwrap().to_string())
        .collect();
    assert_eq!(listed, ["namespace a", "namespace b", "table b.t"]);
    assert_eq!(transaction.list(&KeyRange::all(), Some(2)).await.unwrap().len(), 2);

    assert_eq!(names(&lakehouse.latest().await.unwrap()).await, ["namespace a", "table a.t"]);
    commit(&mut transaction).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    assert_eq!(names(&latest).await, ["namespace a", "namespace b", "table b.t"]);
    let location = latest.locate(Table, "b", "t").await.unwrap().unwrap();
    assert_eq!(latest.read_definition(&location).await.unwrap(), "second");
}

/// A definition is read from its file once. Otherwise each statement on a local disk would open the same file four
/// times, once for each lookup of its table.
#[tokio::test]
async fn a_definition_is_read_from_its_file_once() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "a").await.unwrap();
    add_table(&lakehouse, "a", "t").await.unwrap();
    let counting = Arc::new(CountingStorage::new(files));
    let lakehouse = open(Arc::new(CachingStorage::new(counting.clone())), &environment).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let definition = transaction.read(Table, "a", "t").await.unwrap().unwrap();
    let before = counting.counters();
    assert_eq!(transaction.read(Table, "a", "t").await.unwrap().unwrap(), definition);
    assert_eq!(counting.counters().since(&before).requests(), 0);
    // A definition that was changed by this transaction, or by another one since, is a different file.
    transaction.replace(Table, "a", "t", text("mine")).await.unwrap();
    assert_eq!(transaction.read(Table, "a", "t").await.unwrap().unwrap(), "mine");
    commit(&mut transaction).await.unwrap();
    let mut next = begin(&lakehouse, Isolation::Snapshot).await;
    let before = counting.counters();
    assert_eq!(next.read(Table, "a", "t").await.unwrap().unwrap(), "mine");
    assert_eq!(counting.counters().since(&before).requests(), 0, "this handle has the definition in its cache");
    next.drop_object(Table, "a", "t").await.unwrap();
    assert_eq!(next.read(Table, "a", "t").await.unwrap(), None);
}

#[tokio::test]
async fn an_ended_transaction_refuses_statements() {
    let lakehouse = lake().await;
    let mut committed = begin(&lakehouse, Isolation::Snapshot).await;
    committed.create(Namespace, "b", "", text("b")).await.unwrap();
    commit(&mut committed).await.unwrap();
    assert_eq!(committed.committed_version(), Some(3));
    let mut aborted = begin(&lakehouse, Isolation::Snapshot).await;
    aborted.create(Namespace, "c", "", text("c")).await.unwrap();
    assert_eq!(aborted.rollback().await.unwrap(), Files::Unreachable(Proof::NothingSent));
    assert_eq!(commit(&mut committed).await.unwrap(), 3, "a second commit returns the same version");
    assert!(matches!(commit(&mut aborted).await, Err(Error::TransactionClosed(_))));
    for mut over in [committed, aborted] {
        assert!(matches!(over.exists(Table, "a", "t").await, Err(Error::TransactionClosed(_))));
        assert!(matches!(over.create(Namespace, "d", "", text("d")).await, Err(Error::TransactionClosed(_))));
    }
    assert_eq!(lakehouse.latest().await.unwrap().number, 3);
}

#[tokio::test]
async fn a_transaction_without_writes_creates_no_version() {
    let lakehouse = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Serializable).await;
    transaction.read(Table, "a", "t").await.unwrap();
    add_namespace(&lakehouse, "b").await.unwrap();
    assert_eq!(commit(&mut transaction).await.unwrap(), 2);
    assert_eq!(lakehouse.latest().await.unwrap().number, 3);
}

#[tokio::test]
async fn an_object_created_and_dropped_leaves_no_write() {
    let lakehouse = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, "b", "", text("b")).await.unwrap();
    transaction.create(View, "b", "v", text("v")).await.unwrap();
    transaction.drop_object(View, "b", "v").await.unwrap();
    transaction.drop_object(Namespace, "b", "").await.unwrap();
    assert!(!transaction.has_writes());
}

#[tokio::test]
async fn renaming_keeps_the_definition_file() {
    let lakehouse = lake().await;
    add_namespace(&lakehouse, "b").await.unwrap();
    let before = lakehouse.latest().await.unwrap().locate(Table, "a", "t").await.unwrap();
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.rename(Table, ("a", "t"), ("b", "renamed")).await.unwrap();
    transaction.rename(Table, ("b", "renamed"), ("b", "again")).await.unwrap();
    commit(&mut transaction).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    assert_eq!(latest.locate(Table, "b", "again").await.unwrap(), before);
    assert_eq!(names(&latest).await, ["namespace a", "namespace b", "table b.again"]);

    let mut there_and_back = begin(&lakehouse, Isolation::Snapshot).await;
    there_and_back.rename(Table, ("b", "again"), ("a", "t")).await.unwrap();
    there_and_back.rename(Table, ("a", "t"), ("b", "again")).await.unwrap();
    commit(&mut there_and_back).await.unwrap();
    assert_eq!(lakehouse.latest().await.unwrap().locate(Table, "b", "again").await.unwrap(), before);
}

#[tokio::test]
async fn a_renamed_table_that_was_changed_before_keeps_the_change() {
    let lakehouse = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.replace(Table, "a", "t", text("changed")).await.unwrap();
    transaction.rename(Table, ("a", "t"), ("a", "u")).await.unwrap();
    assert_eq!(transaction.read(Table, "a", "u").await.unwrap().unwrap(), "changed");
    commit(&mut transaction).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    let location = latest.locate(Table, "a", "u").await.unwrap().unwrap();
    assert_eq!(latest.read_definition(&location).await.unwrap(), "changed");
}

#[tokio::test]
async fn statements_that_break_a_rule_are_refused() {
    let lakehouse = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let taken = transaction.create(Table, "a", "t", text("")).await;
    assert!(matches!(taken, Err(Error::ObjectAlreadyExists(_))));
    let taken = transaction.create(View, "a", "t", text("")).await;
    assert!(matches!(taken, Err(Error::ObjectAlreadyExists(_))), "a view with the name of a table");
    let homeless = transaction.create(Table, "nowhere", "t", text("")).await;
    assert!(matches!(homeless, Err(Error::ObjectNotFound(_))));
    let missing = transaction.replace(Table, "a", "u", text("")).await;
    assert!(matches!(missing, Err(Error::ObjectNotFound(_))));
    let missing = transaction.drop_object(View, "a", "u").await;
    assert!(matches!(missing, Err(Error::ObjectNotFound(_))));
    let full = transaction.drop_object(Namespace, "a", "").await;
    assert!(matches!(full, Err(Error::NamespaceNotEmpty(message)) if message.contains("table a.t")));
    let misnamed = transaction.create(Table, "a", "a name ", text("")).await;
    assert!(matches!(misnamed, Err(Error::InvalidName(_))));
    let renamed = transaction.rename(Namespace, ("a", ""), ("b", "")).await;
    assert!(matches!(renamed, Err(Error::InvalidArgument(_))));
    let taken = transaction.rename(Table, ("a", "t"), ("a", "t")).await;
    assert!(matches!(taken, Err(Error::ObjectAlreadyExists(_))));
    assert!(!transaction.has_writes());

    transaction.drop_object(Table, "a", "t").await.unwrap();
    transaction.create(View, "a", "t", text("a view now")).await.unwrap();
    commit(&mut transaction).await.unwrap();
    assert_eq!(names(&lakehouse.latest().await.unwrap()).await, ["namespace a", "view a.t"]);
}

#[tokio::test]
async fn a_namespace_with_namespaces_below_is_not_empty() {
    let lakehouse = lake().await;
    add_namespace(&lakehouse, "p").await.unwrap();
    add_namespace(&lakehouse, "p.child").await.unwrap();
    add_namespace(&lakehouse, "p0").await.unwrap();
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let full = transaction.drop_object(Namespace, "p", "").await;
    assert!(matches!(full, Err(Error::NamespaceNotEmpty(_))));
    transaction.drop_object(Namespace, "p.child", "").await.unwrap();
    transaction.drop_object(Namespace, "p", "").await.unwrap();
    commit(&mut transaction).await.unwrap();
}

#[tokio::test]
async fn the_settings_that_the_tree_depends_on_are_fixed() {
    let lakehouse = lake().await;
    let current = lakehouse.known().definition.bytes().clone();
    let changed = |change: fn(&mut proto::LakehouseDef)| {
        let mut definition: proto::LakehouseDef = prost::Message::decode(current.clone()).unwrap();
        change(&mut definition);
        LakehouseDefinition::encode(definition).bytes().clone()
    };
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let fixed: [fn(&mut proto::LakehouseDef); 4] = [
        |definition| definition.order = 5,
        |definition| definition.namespace_name_max_size_bytes = 21,
        |definition| definition.table_name_max_size_bytes = 21,
        |definition| definition.view_name_max_size_bytes = 21,
    ];
    for change in fixed {
        let refused = transaction.set_lakehouse_definition(changed(change));
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    transaction.set_lakehouse_definition(changed(|definition| definition.name = "renamed".into())).unwrap();
    let mut rival = begin(&lakehouse, Isolation::Snapshot).await;
    rival.set_lakehouse_definition(changed(|definition| definition.name = "lost".into())).unwrap();
    let mut bystander = begin(&lakehouse, Isolation::Snapshot).await;
    bystander.create(Namespace, "b", "", text("b")).await.unwrap();

    commit(&mut transaction).await.unwrap();
    assert_eq!(lakehouse.latest().await.unwrap().definition.name(), "renamed");
    let error = commit(&mut rival).await.unwrap_err();
    assert!(matches!(&error, Error::CommitConflict { keys, .. } if keys == &["lakehouse definition"]), "{error}");
    commit(&mut bystander).await.unwrap();
    let reopened = open(lakehouse.storage().clone(), &TestEnvironment::seeded(5)).await;
    assert_eq!(reopened.known().definition.name(), "renamed");
    assert_whole(&reopened.known()).await;
}

#[tokio::test]
async fn message_author_and_properties_are_in_the_log() {
    let lakehouse = lake().await;
    let options = TransactionOptions {
        isolation: Isolation::Serializable,
        id: Some("job-7".into()),
        message: "nightly load".into(),
        author: "ann".into(),
        properties: [("ticket".to_string(), "42".to_string())].into(),
    };
    let mut transaction = lakehouse.begin(lakehouse.known(), options).unwrap();
    transaction.create(Namespace, "b", "", text("b")).await.unwrap();
    let outcome = transaction.commit(CommitLimits::default()).await.unwrap();
    assert_eq!(outcome, Outcome::Committed(3));
    let version = lakehouse.version(3).await.unwrap();
    let [committed] = version.metadata.committed.as_slice() else { panic!("one transaction") };
    assert_eq!((committed.id.as_str(), committed.message.as_str()), ("job-7", "nightly load"));
    assert_eq!((committed.author.as_str(), committed.isolation.as_str()), ("ann", "serializable"));
    assert_eq!((committed.began_at_version, committed.properties["ticket"].as_str()), (2, "42"));
}

#[tokio::test]
async fn reserved_properties_and_unsafe_ids_are_refused() {
    let lakehouse = lake().await;
    let properties = [("trinitylake.operation".to_string(), "rollback".to_string())].into();
    let reserved = TransactionOptions { properties, ..Default::default() };
    assert!(matches!(lakehouse.begin(lakehouse.known(), reserved), Err(Error::InvalidArgument(_))));
    let unsafe_id = TransactionOptions { id: Some("../x".into()), ..Default::default() };
    assert!(matches!(lakehouse.begin(lakehouse.known(), unsafe_id), Err(Error::InvalidName(_))));
    assert!(matches!(Isolation::parse("read committed"), Err(Error::InvalidArgument(_))));
    assert_eq!(Isolation::parse("SERIALIZABLE").unwrap(), Isolation::Serializable);
}

/// A refused statement adds no requirement. Otherwise, after a table was refused because a view has its name, the
/// transaction would conflict with a drop of the namespace; and after the refused drop of a namespace, with a new table
/// in it.
#[tokio::test]
async fn a_refused_statement_has_no_requirements() {
    let (_, _, lakehouse) = new_lakehouse().await;
    let mut start = begin(&lakehouse, Isolation::Snapshot).await;
    for namespace in ["a", "b"] {
        start.create(Namespace, namespace, "", text(namespace)).await.unwrap();
        start.create(View, namespace, "v", text("view")).await.unwrap();
    }
    commit(&mut start).await.unwrap();

    let mut refused = begin(&lakehouse, Isolation::Snapshot).await;
    assert!(matches!(refused.create(Table, "a", "v", text("t")).await, Err(Error::ObjectAlreadyExists(_))));
    assert!(matches!(refused.drop_object(Namespace, "b", "").await, Err(Error::NamespaceNotEmpty(_))));
    refused.create(Namespace, "c", "", text("c")).await.unwrap();

    let mut other = begin(&lakehouse, Isolation::Snapshot).await;
    other.drop_object(View, "a", "v").await.unwrap();
    other.drop_object(Namespace, "a", "").await.unwrap();
    other.create(Table, "b", "t", text("t")).await.unwrap();
    commit(&mut other).await.unwrap();
    commit(&mut refused).await.unwrap();
}

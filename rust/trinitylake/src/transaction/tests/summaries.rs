//! Summaries of transactions in the log.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::key::ObjectKind::{Namespace, Table, View};
use crate::lakehouse::Lakehouse;
use crate::tests::fixture::{
    MemoryFiles, add_namespace, add_table, begin, commit, in_queue, leave_intent, new_lakehouse, open, text,
};
use crate::transaction::{Isolation, Transaction, TransactionOptions};
use crate::version::summary_format::{Rows, TableChange};

async fn lake() -> (Arc<MemoryFiles>, Arc<Lakehouse>) {
    let (files, _, lakehouse) = new_lakehouse().await;
    add_namespace(&lakehouse, "a").await.unwrap();
    add_table(&lakehouse, "a", "t").await.unwrap();
    (files, lakehouse)
}

/// The summaries of the transactions in the newest version.
async fn summaries(lakehouse: &Arc<Lakehouse>) -> Vec<String> {
    let latest = lakehouse.latest().await.unwrap();
    latest.metadata.committed.iter().map(|one| one.summary.as_str().to_string()).collect()
}

#[tokio::test]
async fn summaries_describe_writes() {
    let (_, lakehouse) = lake().await;
    assert_eq!(summaries(&lakehouse).await, ["create table a.t"]);
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(View, "a", "v", text("v")).await.unwrap();
    transaction.replace(Namespace, "a", "", text("other")).await.unwrap();
    transaction.rename(Table, ("a", "t"), ("a", "u")).await.unwrap();
    transaction.rename(Table, ("a", "u"), ("a", "w")).await.unwrap();
    assert_eq!(transaction.summary().as_str(), "alter namespace a; rename table a.t to a.w; create view a.v");
    transaction.rename(Table, ("a", "w"), ("a", "t")).await.unwrap();
    assert_eq!(transaction.summary().as_str(), "alter namespace a; create view a.v", "the rename was undone");
    transaction.drop_object(Table, "a", "t").await.unwrap();
    transaction.drop_object(View, "a", "v").await.unwrap();
    commit(&mut transaction).await.unwrap();
    assert_eq!(summaries(&lakehouse).await, ["alter namespace a; drop table a.t"]);
    lakehouse.rollback(2, "", "").await.unwrap();
    assert_eq!(summaries(&lakehouse).await, ["roll back to version 2"]);
}

#[tokio::test]
async fn summaries_contain_the_descriptions_of_tables() {
    let (_, lakehouse) = lake().await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let rows = Rows { added: 3000, ..Rows::default() };
    let append = TableChange { verb: "append".into(), rows, tail: String::new() };
    transaction.describe("a", "t", vec![append.clone()]).unwrap();
    assert_eq!(transaction.summary().as_str(), "append +3,000 rows a.t", "as a companion that writes nothing");
    transaction.replace(Table, "a", "t", text("2")).await.unwrap();
    transaction.create(Table, "a", "new", text("3")).await.unwrap();
    transaction.describe("a", "new", vec![append.clone()]).unwrap();
    let odd = TableChange { verb: "\u{1b}[31m".into(), ..append };
    assert!(transaction.describe("a", "t", vec![odd]).is_err());
    commit(&mut transaction).await.unwrap();
    assert_eq!(summaries(&lakehouse).await, ["create table a.new +3,000 rows; append +3,000 rows a.t"]);
}

/// After a save, the summary still describes a rename, and not a dropped and a new table.
#[tokio::test]
async fn a_rename_is_summarised_after_a_save() {
    let (_, lakehouse) = lake().await;
    let options = TransactionOptions { id: Some("job".into()), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap();
    transaction.rename(Table, ("a", "t"), ("a", "u")).await.unwrap();
    transaction.replace(Table, "a", "u", text("changed")).await.unwrap();
    transaction.save().await.unwrap();
    let mut resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
    commit(&mut resumed).await.unwrap();
    assert_eq!(summaries(&lakehouse).await, ["rename table a.t to a.u"]);
}

/// A transaction that another process commits from the queue keeps its own summary.
#[tokio::test(start_paused = true)]
async fn a_queued_transaction_keeps_its_own_summary() {
    let (files, lakehouse) = lake().await;
    let mut waiting = begin(&lakehouse, Isolation::Snapshot).await;
    waiting.create(Namespace, "waiting", "", text("waiting")).await.unwrap();
    leave_intent(&lakehouse, &mut waiting, 10).await;
    let leader = open(files, &TestEnvironment::seeded(2)).await;
    // The first commit lists the queue, which is not empty; the second one leads.
    for namespace in ["first", "second"] {
        let mut leading = begin(&leader, Isolation::Snapshot).await;
        leading.create(Namespace, namespace, "", text(namespace)).await.unwrap();
        leading.commit(in_queue()).await.unwrap();
    }
    let latest = leader.latest().await.unwrap();
    let mut summaries = Vec::new();
    for version in leader.versions(3, latest.number, &latest).await.unwrap() {
        summaries.extend(version.metadata.committed.iter().map(|one| one.summary.as_str().to_string()));
    }
    summaries.sort();
    assert_eq!(summaries, ["create namespace first", "create namespace second", "create namespace waiting"]);
}

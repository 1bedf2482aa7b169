//! Restart of an id: at most one attempt commits, and a committed id stays committed.

use std::sync::Arc;

use crate::error::Error;
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::tests::fixture::{commit, new_lakehouse, open, text};
use crate::transaction::saved::list::saved;
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::saved::transaction_record::is_committed;
use crate::transaction::{Transaction, TransactionOptions};

fn job() -> TransactionOptions {
    TransactionOptions { id: Some("job".into()), ..TransactionOptions::default() }
}

/// Two independent handles, like those of two processes.
async fn lakes() -> (Arc<Lakehouse>, Arc<Lakehouse>) {
    let (files, environment, lakehouse) = new_lakehouse().await;
    (lakehouse, open(files, &environment).await)
}

async fn restarted(lakehouse: &Arc<Lakehouse>, namespace: &str) -> Transaction {
    let mut transaction = Transaction::restart(lakehouse, job()).await.unwrap();
    transaction.create(Namespace, namespace, "", text(namespace)).await.unwrap();
    transaction
}

async fn saved_attempt(lakehouse: &Arc<Lakehouse>, namespace: &str) -> Transaction {
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), job()).unwrap();
    transaction.create(Namespace, namespace, "", text(namespace)).await.unwrap();
    transaction.save().await.unwrap();
    transaction
}

async fn has(lakehouse: &Arc<Lakehouse>, namespace: &str) -> bool {
    lakehouse.latest().await.unwrap().locate(Namespace, namespace, "").await.unwrap().is_some()
}

fn assert_conflict<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::CommitConflict { .. })), "{result:?}");
}

/// An id can be used again after its transaction was rolled back, for instance because a step of a load failed.
#[tokio::test]
async fn an_id_that_was_rolled_back_commits_after_a_restart() {
    let (lakehouse, other) = lakes().await;
    let mut first = saved_attempt(&lakehouse, "old").await;
    let mut stale = Transaction::resume(&other, "job").await.unwrap();
    first.rollback().await.unwrap();
    assert!(!is_committed(&lakehouse, "job").await.unwrap());

    let mut second = restarted(&lakehouse, "new").await;
    assert_conflict(commit(&mut stale).await);
    let version = commit(&mut second).await.unwrap();
    assert!(has(&lakehouse, "new").await && !has(&lakehouse, "old").await);
    assert!(is_committed(&lakehouse, "job").await.unwrap());
    assert_eq!(outcome_of(&other, "job").await.unwrap(), TransactionOutcome::Committed(Some(version)));
    assert_eq!(Transaction::restart(&other, job()).await.unwrap().committed_version(), Some(version));
}

#[tokio::test]
async fn a_saved_attempt_that_was_restarted_neither_saves_nor_commits() {
    let (lakehouse, other) = lakes().await;
    saved_attempt(&lakehouse, "old").await;
    let mut saves = Transaction::resume(&other, "job").await.unwrap();
    let mut commits = Transaction::resume(&other, "job").await.unwrap();
    let mut second = restarted(&lakehouse, "new").await;
    saves.create(Namespace, "more", "", text("more")).await.unwrap();
    assert_conflict(saves.save().await);
    assert_conflict(commit(&mut commits).await);
    assert_conflict(commits.rollback().await);
    commit(&mut second).await.unwrap();
    assert!(has(&lakehouse, "new").await && !has(&lakehouse, "old").await);
}

#[tokio::test]
async fn a_restarted_attempt_can_be_saved_resumed_listed_and_rolled_back() {
    let (lakehouse, other) = lakes().await;
    saved_attempt(&lakehouse, "old").await.rollback().await.unwrap();
    assert!(saved(&other).await.unwrap().is_empty());
    let mut second = restarted(&lakehouse, "second").await;
    second.save().await.unwrap();
    let listed = saved(&other).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].properties.is_empty());
    let mut resumed = Transaction::resume(&other, "job").await.unwrap();
    assert!(resumed.properties().is_empty());
    let mut stale = Transaction::resume(&other, "job").await.unwrap();
    resumed.rollback().await.unwrap();
    assert_conflict(commit(&mut stale).await);
    assert!(matches!(Transaction::resume(&other, "job").await, Err(Error::ObjectNotFound(_))));

    restarted(&lakehouse, "third").await.save().await.unwrap();
    let mut fourth = restarted(&other, "fourth").await;
    fourth.save().await.unwrap();
    let version = commit(&mut Transaction::resume(&lakehouse, "job").await.unwrap()).await.unwrap();
    assert_eq!(outcome_of(&lakehouse, "job").await.unwrap(), TransactionOutcome::Committed(Some(version)));
    assert!(has(&lakehouse, "fourth").await);
    assert!(!has(&lakehouse, "second").await && !has(&lakehouse, "third").await);
}

#[tokio::test]
async fn one_of_two_concurrent_restarts_commits() {
    let (lakehouse, other) = lakes().await;
    saved_attempt(&lakehouse, "old").await.rollback().await.unwrap();
    let mut one = restarted(&lakehouse, "one").await;
    let mut two = restarted(&other, "two").await;
    let version = commit(&mut one).await.unwrap();
    assert_eq!(commit(&mut two).await.unwrap(), version, "an id commits once");
    assert!(has(&lakehouse, "one").await && !has(&lakehouse, "two").await);
}

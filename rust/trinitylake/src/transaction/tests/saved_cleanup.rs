//! Files of saved transactions that have ended: files that are still needed stay, all others are removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::definition_file::{decode_file, encode_file};
use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::expiry::expire;
use crate::file_names::{TRANSACTION_PREFIX, transaction_path};
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::counting::CountingStorage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger};
use crate::tests::fixture::{MemoryFiles, add_namespace, commit, create, open, text};
use crate::transaction::saved::cleanup::{abort_all, remove_states};
use crate::transaction::saved::list::{SavedWalk, saved};
use crate::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use crate::transaction::{Note, Transaction, TransactionOptions};

async fn lake() -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<Lakehouse>) {
    let environment = TestEnvironment::seeded(1);
    let files = MemoryFiles::dated(environment.clone());
    let lakehouse = create(files.clone(), &environment).await;
    add_namespace(&lakehouse, "first").await.unwrap();
    (files, environment, lakehouse)
}

async fn job(lakehouse: &Arc<Lakehouse>, id: &str) -> Transaction {
    let options = TransactionOptions { id: Some(id.into()), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap();
    transaction.create(Namespace, id, "", text(id)).await.unwrap();
    transaction
}

async fn files_of_transactions(files: &Arc<MemoryFiles>) -> BTreeSet<String> {
    files.list(TRANSACTION_PREFIX).await.unwrap().into_iter().map(|file| file.path).collect()
}

/// Expires all versions but the latest, twice: the second expiry removes what the first one has written.
async fn expire_all(lakehouse: &Arc<Lakehouse>) {
    for name in ["later", "still later"] {
        let name = format!("{name} {}", lakehouse.latest().await.unwrap().number);
        let latest = add_namespace(lakehouse, &name.replace(' ', "_")).await.unwrap();
        expire(lakehouse, Some(latest), false).await.unwrap();
    }
}

/// Of two concurrent expiries, only one aborts a transaction. Otherwise the second one would replace the record of the
/// first one, each would remove the file of the other, and the tree would reference a missing record.
#[tokio::test]
async fn concurrent_expiries_abort_a_transaction_once() {
    let (files, environment, lakehouse) = lake().await;
    let other = open(files.clone(), &environment).await;
    job(&lakehouse, "etl").await.save().await.unwrap();
    let seen_by_both = ["etl".to_string()];
    let first = abort_all(&lakehouse, &seen_by_both, &Note::default()).await.unwrap();
    let second = abort_all(&other, &seen_by_both, &Note::default()).await.unwrap();
    remove_states(&other, &second).await.unwrap();
    remove_states(&lakehouse, &first).await.unwrap();
    let latest = other.latest().await.unwrap();
    let key = latest.config.names.transaction_key("etl").unwrap();
    let record = latest.get(&key).await.unwrap().expect("a record");
    assert_eq!(files_of_transactions(&files).await, BTreeSet::from([record]));
    assert_eq!(
        outcome_of(&other, "etl").await.unwrap(),
        TransactionOutcome::RolledBack,
        "nothing has expired, so the log is complete"
    );
    assert_eq!((first.len(), second.len()), (1, 0));
}

/// Saved states are removed after the commit. Otherwise each job would leave one file for each step, and listing the
/// open transactions would take longer every month.
#[tokio::test]
async fn a_commit_removes_all_states_but_the_committed_one() {
    let (files, _, lakehouse) = lake().await;
    let mut transaction = job(&lakehouse, "job").await;
    transaction.save().await.unwrap();
    let mut stale = Transaction::resume(&lakehouse, "job").await.unwrap();
    transaction.create(Namespace, "more", "", text("more")).await.unwrap();
    transaction.save().await.unwrap();
    assert_eq!(files_of_transactions(&files).await.len(), 2);
    let version = commit(&mut transaction).await.unwrap();
    assert_eq!(files_of_transactions(&files).await, [transaction_path("job", 3)].into());
    // No process can continue from an earlier state.
    assert!(matches!(stale.save().await, Err(Error::CommitConflict { .. })));
    assert!(matches!(commit(&mut stale).await, Err(Error::CommitConflict { .. })));
    assert_eq!(files_of_transactions(&files).await.len(), 1);
    let resumed = Transaction::resume(&lakehouse, "job").await.unwrap();
    assert_eq!(resumed.committed_version(), Some(version));
}

#[tokio::test]
async fn a_rollback_keeps_its_record() {
    let (files, _, lakehouse) = lake().await;
    let mut transaction = job(&lakehouse, "job").await;
    transaction.save().await.unwrap();
    transaction.save().await.unwrap();
    transaction.rollback().await.unwrap();
    let left = files_of_transactions(&files).await;
    assert!(left.len() == 1 && !left.contains(&transaction_path("job", 2)), "{left:?}");
    assert_eq!(outcome_of(&lakehouse, "job").await.unwrap(), TransactionOutcome::RolledBack);
    let error = Transaction::resume(&lakehouse, "job").await.unwrap_err();
    assert!(matches!(&error, Error::ObjectNotFound(why) if why.contains("rolled back")), "{error}");
}

/// An id can be used and saved again after its first run has expired. Otherwise the states of the first run would
/// prevent the new run from being saved.
#[tokio::test]
async fn expiry_removes_ended_transactions_and_frees_their_ids() {
    let (files, _, lakehouse) = lake().await;
    let mut committed = job(&lakehouse, "committed").await;
    committed.save().await.unwrap();
    commit(&mut committed).await.unwrap();
    let mut rolled_back = job(&lakehouse, "rolled-back").await;
    rolled_back.save().await.unwrap();
    rolled_back.rollback().await.unwrap();
    commit(&mut job(&lakehouse, "chosen").await).await.unwrap();
    assert_eq!(files_of_transactions(&files).await.len(), 3);
    files.overwrite("_txn/notes.txt", "of a user");

    expire_all(&lakehouse).await;
    assert_eq!(files_of_transactions(&files).await, ["_txn/notes.txt".to_string()].into());
    let mut again = lakehouse
        .begin(lakehouse.known(), TransactionOptions { id: Some("committed".into()), ..Default::default() })
        .unwrap();
    again.create(Namespace, "again", "", text("again")).await.unwrap();
    for sequence in 1..4 {
        assert_eq!(again.save().await.unwrap(), sequence);
    }
    commit(&mut again).await.unwrap();
}

/// Old states are removed after their transactions were aborted. Otherwise the states of dead workers would stay
/// forever. Age does not prove that a worker is dead, so a worker that is still alive gets an error.
#[tokio::test]
async fn transactions_that_cannot_be_resumed_are_aborted_and_removed() {
    let (files, environment, lakehouse) = lake().await;
    let mut sleeper = job(&lakehouse, "sleeper").await;
    sleeper.save().await.unwrap();
    let mut young = job(&lakehouse, "young").await;
    environment.advance(Duration::from_millis(lakehouse.known().definition.transaction_ttl_millis() + 1));
    young.save().await.unwrap();
    let base = lakehouse.known().number;
    add_namespace(&lakehouse, "next").await.unwrap();
    // The younger transaction retains the base version of both, so the older one is not aborted before the younger one
    // has ended.
    assert_eq!(expire(&lakehouse, Some(base + 1), false).await.unwrap(), (0..base).collect::<Vec<_>>());
    assert_eq!(files_of_transactions(&files).await.len(), 2);
    young.rollback().await.unwrap();

    let latest = add_namespace(&lakehouse, "after").await.unwrap();
    expire(&lakehouse, Some(latest), false).await.unwrap();
    let left = files_of_transactions(&files).await;
    assert!(!left.contains(&transaction_path("sleeper", 1)), "{left:?}");
    assert_eq!(outcome_of(&lakehouse, "sleeper").await.unwrap(), TransactionOutcome::Unknown);
    let error = Transaction::resume(&lakehouse, "sleeper").await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    assert!(matches!(commit(&mut sleeper).await, Err(Error::CommitConflict { .. })));
    assert!(sleeper.save().await.is_err());
    expire_all(&lakehouse).await;
    assert_eq!(files_of_transactions(&files).await, BTreeSet::new());
}

/// An expiry completes one that was killed between removing the key of a record and removing its files. Otherwise the
/// files would stay forever, or a key would remain whose record cannot be read.
#[tokio::test]
async fn the_next_expiry_completes_one_killed_at_any_request() {
    let (files, environment, lakehouse) = lake().await;
    let mut committed = job(&lakehouse, "committed").await;
    committed.save().await.unwrap();
    commit(&mut committed).await.unwrap();
    let mut rolled_back = job(&lakehouse, "rolled-back").await;
    rolled_back.save().await.unwrap();
    rolled_back.rollback().await.unwrap();
    commit(&mut job(&lakehouse, "chosen").await).await.unwrap();
    let mut sleeper = job(&lakehouse, "sleeper").await;
    sleeper.save().await.unwrap();
    environment.advance(Duration::from_millis(lakehouse.known().definition.transaction_ttl_millis() + 1));
    let latest = add_namespace(&lakehouse, "later").await.unwrap();
    for action in [Action::DieBefore, Action::DieAfter] {
        let mut deaths = 0;
        loop {
            let copy = files.copy();
            let faulty = Arc::new(FaultyStorage::new(copy.clone(), []));
            let dying = open(faulty.clone(), &environment).await;
            faulty.add(Fault::new(Trigger::at(deaths), action));
            let done = expire(&dying, Some(latest), false).await;
            if faulty.fired().is_empty() {
                done.unwrap();
                break;
            }
            deaths += 1;
            let next = open(copy.clone(), &environment).await;
            for id in ["committed", "rolled-back", "chosen", "sleeper"] {
                let answer = outcome_of(&next, id).await.unwrap();
                let is_true = match id {
                    "rolled-back" => {
                        matches!(answer, TransactionOutcome::RolledBack | TransactionOutcome::Unknown)
                    }
                    // If the expiry aborted this transaction before it died, the outcome is unknown only if versions
                    // have expired.
                    "sleeper" => match next.oldest_version().await.unwrap() {
                        0 => {
                            matches!(answer, TransactionOutcome::NotCommitted | TransactionOutcome::RolledBack)
                        }
                        _ => matches!(answer, TransactionOutcome::NotCommitted | TransactionOutcome::Unknown),
                    },
                    _ => matches!(answer, TransactionOutcome::Committed(_) | TransactionOutcome::Unknown),
                };
                assert!(is_true, "{action:?} {deaths}: {id} is {answer:?}");
            }
            expire_all(&next).await;
            let left = files_of_transactions(&copy).await;
            assert_eq!(left, BTreeSet::new(), "{action:?} {deaths}");
        }
        assert!(deaths > 20, "{deaths}");
    }
}

/// Saved transactions are listed in pages. Otherwise a listing would read the files of all of them at once and hold
/// them in memory.
#[tokio::test]
async fn saved_transactions_are_listed_page_by_page() {
    let (files, environment, lakehouse) = lake().await;
    let mut transaction = job(&lakehouse, "template").await;
    transaction.save().await.unwrap();
    let template = transaction_path("template", 1);
    let state = decode_file(&template, &files.get(&template).await.unwrap()).unwrap();
    for i in 0..700 {
        // One transaction with many states in the middle, and others whose names sort next to it.
        let states = if i == 350 { 1500 } else { 1 + i % 2 };
        for sequence in 1..=states {
            let path = transaction_path(&format!("j{i:03}"), sequence);
            files.overwrite(&path, encode_file(&path, &state));
        }
    }
    for name in ["_txn/.hidden/00000000000000000001.txt", "_txn/j350-x y/00000000000000000001.binpb", "_txn/z"] {
        files.overwrite(name, state.clone());
    }
    let counting = Arc::new(CountingStorage::new(files.clone()));
    let counted = open(counting.clone(), &environment).await;
    let before = counting.counters();
    let mut walk = SavedWalk::begin(&counted, None).await.unwrap();
    let (mut pages, mut found) = (0, Vec::new());
    while let Some(page) = walk.next().await.unwrap() {
        assert!(page.len() <= 1000);
        pages += 1;
        found.extend(page.into_iter().map(|one| (one.transaction.id, one.transaction.sequence)));
    }
    let lists = counting.counters().list - before.list;
    assert!(pages == 2 && lists <= 2 * pages + 1, "{pages} pages, {lists} lists");
    let expected: BTreeSet<(String, u64)> = (0..700)
        .map(|i| (format!("j{i:03}"), if i == 350 { 1500 } else { 1 + i % 2 }))
        .chain([("template".to_string(), 1)])
        .collect();
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    let gets = counting.counters().get - before.get;
    assert!(gets < 701 + 20, "{gets} files were read");
    assert_eq!(saved(&counted).await.unwrap().len(), 701);
}

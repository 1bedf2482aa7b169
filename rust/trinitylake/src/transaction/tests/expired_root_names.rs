//! After a root has expired and was deleted, a suspended writer may create another root with its name. That root is
//! void: no process may use it as a version.

use std::sync::Arc;

use bytes::Bytes;

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::expiry::expire;
use crate::file_names::root_path;
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::storage::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::fixture::{Intruder, MemoryFiles, add_namespace, begin, commit, new_lakehouse, open, text};
use crate::transaction::Isolation;

/// Returns a root of version `number` from a writer that has not observed this version, and so created it on a copy of
/// the files.
async fn stale_root(files: &Arc<MemoryFiles>, number: u64) -> Bytes {
    let aside = files.copy();
    let lakehouse = open(aside.clone(), &TestEnvironment::seeded(7)).await;
    assert_eq!(add_namespace(&lakehouse, "stale").await.unwrap(), number);
    aside.get(&root_path(number)).await.unwrap()
}

/// Commits one more version, expires all versions below it, and creates the root `stale` with the name of the expired
/// root.
async fn overtake(files: &Arc<MemoryFiles>, rival: &Arc<Lakehouse>, stale: Bytes) {
    let latest = add_namespace(rival, "next").await.unwrap();
    expire(rival, Some(latest), false).await.unwrap();
    assert!(!files.has(&root_path(latest - 1)));
    files.overwrite(&root_path(latest - 1), stale);
}

/// The loser of a race does not commit, even if the winner's root has expired and a void root has its name. Otherwise
/// it would overwrite the winner's change of the same object.
#[tokio::test]
async fn no_update_is_lost_because_of_a_void_root() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let base = add_namespace(&lakehouse, "a").await.unwrap();
    let stale = stale_root(&files, base + 1).await;

    let intruder = Intruder::new(&files);
    let loser = open(intruder.clone(), &environment).await;
    let mut transaction = begin(&loser, Isolation::Snapshot).await;
    transaction.replace(Namespace, "a", "", text("of the loser")).await.unwrap();
    let rival = open(files.clone(), &environment).await;
    intruder.add({
        let (files, rival) = (files.clone(), rival.clone());
        move || async move {
            let mut winner = begin(&rival, Isolation::Snapshot).await;
            winner.replace(Namespace, "a", "", text("of the winner")).await.unwrap();
            assert_eq!(commit(&mut winner).await.unwrap(), base + 1);
            overtake(&files, &rival, stale).await;
        }
    });
    let error = commit(&mut transaction).await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    let mut look = begin(&rival, Isolation::Snapshot).await;
    assert_eq!(look.read(Namespace, "a", "").await.unwrap().unwrap(), "of the winner");
    // The handle has not cached the void root.
    assert!(matches!(loser.version(base + 1).await, Err(Error::VersionExpired(_))));
    let mut again = begin(&loser, Isolation::Snapshot).await;
    again.replace(Namespace, "a", "", text("again")).await.unwrap();
    assert_eq!(commit(&mut again).await.unwrap(), base + 3);
}

/// A commit without an answer has an unknown outcome if a void root has the name of its root. Otherwise the writer
/// would take the void root for a lost race, and commit a second time.
#[tokio::test]
async fn a_commit_in_doubt_is_not_repeated_because_of_a_void_root() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let base = add_namespace(&lakehouse, "a").await.unwrap();
    let stale = stale_root(&files, base + 1).await;

    let intruder = Intruder::new(&files);
    let late = Fault::new(Trigger::on(Verb::PutIfAbsent, 0).path(&root_path(base + 1)), Action::Late);
    let faulty = Arc::new(FaultyStorage::new(intruder.clone(), [late]));
    let writer = open(faulty.clone(), &environment).await;
    let mut transaction = begin(&writer, Isolation::Snapshot).await;
    transaction.replace(Namespace, "a", "", text("once")).await.unwrap();
    let id = transaction.id().to_string();
    let rival = open(files.clone(), &environment).await;
    intruder.add({
        let (files, rival, faulty) = (files.clone(), rival.clone(), faulty.clone());
        move || async move {
            faulty.deliver_late().await;
            overtake(&files, &rival, stale).await;
        }
    });
    let error = commit(&mut transaction).await.unwrap_err();
    assert!(matches!(error, Error::CommitStateUnknown(_)), "{error}");
    let latest = rival.latest().await.unwrap();
    assert_eq!(latest.number, base + 2);
    assert!(latest.metadata.committed.iter().all(|transaction| transaction.id != id), "committed twice");
    let mut look = begin(&rival, Isolation::Snapshot).await;
    assert_eq!(look.read(Namespace, "a", "").await.unwrap().unwrap(), "once");
}

/// A transaction is not validated against a void root between its base and the versions that its handle has observed.
/// Otherwise the change of the expired version would be overwritten.
#[tokio::test]
async fn no_transaction_is_validated_against_a_void_root() {
    let (files, environment, lakehouse) = new_lakehouse().await;
    let base = add_namespace(&lakehouse, "a").await.unwrap();
    let stale = stale_root(&files, base + 1).await;

    let loser = open(files.clone(), &environment).await;
    let mut transaction = begin(&loser, Isolation::Snapshot).await;
    transaction.replace(Namespace, "a", "", text("of the loser")).await.unwrap();
    let rival = open(files.clone(), &environment).await;
    let mut winner = begin(&rival, Isolation::Snapshot).await;
    winner.replace(Namespace, "a", "", text("of the winner")).await.unwrap();
    commit(&mut winner).await.unwrap();
    overtake(&files, &rival, stale).await;
    assert_eq!(loser.latest().await.unwrap().number, base + 2);
    let error = commit(&mut transaction).await.unwrap_err();
    assert!(matches!(error, Error::TransactionExpired(_)), "{error}");
    let mut look = begin(&rival, Isolation::Snapshot).await;
    assert_eq!(look.read(Namespace, "a", "").await.unwrap().unwrap(), "of the winner");
}

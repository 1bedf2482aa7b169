//! Lost roots at the end of the history: existing versions can be read, and writes are refused until a repair.

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::expiry::expire;
use crate::file_names::{LATEST_HINT_PATH, root_path};
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::tests::fixture::{Intruder, MemoryFiles, add_namespace, begin, names, new_lakehouse, open, text};
use crate::transaction::{Isolation, TransactionOptions};

/// A lakehouse with versions 0 to 3, with the namespaces a, b and c.
async fn lake() -> (Arc<MemoryFiles>, Arc<TestEnvironment>, Arc<Lakehouse>) {
    let (files, environment, lakehouse) = new_lakehouse().await;
    for name in ["a", "b", "c"] {
        add_namespace(&lakehouse, name).await.unwrap();
    }
    (files, environment, lakehouse)
}

fn names_the_lost_root<T: std::fmt::Debug>(refused: Result<T>, version: u64) {
    let is_named = matches!(&refused, Err(Error::CorruptFile { path, .. }) if *path == root_path(version));
    assert!(is_named, "{refused:?}");
}

/// Numbers of the versions in the history, newest first, and whether each can be read.
async fn versions_found(lakehouse: &Lakehouse) -> Vec<(u64, bool)> {
    let mut history = lakehouse.history(None).await.unwrap();
    let mut versions_found = Vec::new();
    loop {
        let page = history.page(1000).await.unwrap();
        if page.is_empty() {
            return versions_found;
        }
        versions_found.extend(page.iter().map(|past| (past.number, past.version.is_ok())));
    }
}

/// The number of a deleted newest root is not used again. Otherwise a process that knows version 3 from the hint, a
/// saved transaction or an export would find a different version 3.
#[tokio::test]
async fn mode_56_writes_are_refused_after_a_lost_root() {
    let (files, environment, _) = lake().await;
    let newest = files.get(&root_path(3)).await.unwrap();
    files.delete(&root_path(3)).await.unwrap();
    let opened = open(files.clone(), &environment).await;
    let latest = opened.latest().await.unwrap();
    assert_eq!((latest.number, names(&latest).await), (2, vec!["namespace a".into(), "namespace b".into()]));
    assert_eq!(versions_found(&opened).await, [(3, false), (2, true), (1, true), (0, true)]);
    let before = files.paths();

    let mut transaction = begin(&opened, Isolation::Snapshot).await;
    names_the_lost_root(transaction.check_writable(), 3);
    names_the_lost_root(transaction.create(ObjectKind::Namespace, "d", "", text("d")).await, 3);
    let mut chosen = opened
        .begin(latest, TransactionOptions { id: Some("chosen".into()), ..TransactionOptions::default() })
        .unwrap();
    names_the_lost_root(chosen.save().await, 3);
    names_the_lost_root(opened.rollback(1, "", "").await, 3);
    names_the_lost_root(expire(&opened, Some(2), false).await, 3);
    names_the_lost_root(opened.version(3).await, 3);
    assert!(matches!(opened.version(4).await, Err(Error::VersionNotFound(_))));
    let message = opened.check_intact().unwrap_err().to_string();
    for word in ["versions 3 to 3 from a copy", LATEST_HINT_PATH, "continues from version 2"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(files.paths(), before, "a file was written");

    files.overwrite(&root_path(3), newest);
    assert_eq!(opened.latest().await.unwrap().number, 3, "the file is back");
    assert_eq!(add_namespace(&opened, "d").await.unwrap(), 4);
}

/// If there is no copy of the lost root, deleting the hint is the repair: the newest existing root is then the latest
/// version.
#[tokio::test]
async fn without_the_hint_the_newest_existing_root_is_the_latest() {
    let (files, environment, _) = lake().await;
    files.delete(&root_path(3)).await.unwrap();
    let opened = open(files.clone(), &environment).await;
    names_the_lost_root(add_namespace(&opened, "d").await, 3);
    files.delete(LATEST_HINT_PATH).await.unwrap();
    assert_eq!(add_namespace(&opened, "d").await.unwrap(), 3);
    assert_eq!(open(files, &environment).await.latest().await.unwrap().number, 3);
}

/// An open handle does not use the number of a lost root. Otherwise a process that knows version 1 would find version 2
/// but not the deleted version 3, and commit another version 3.
#[tokio::test]
async fn an_open_handle_finds_a_lost_root() {
    let (files, environment, writer) = new_lakehouse().await;
    add_namespace(&writer, "a").await.unwrap();
    let reader = open(files.clone(), &environment).await;
    for name in ["b", "c"] {
        add_namespace(&writer, name).await.unwrap();
    }
    let newest = files.get(&root_path(3)).await.unwrap();
    files.delete(&root_path(3)).await.unwrap();
    assert_eq!(reader.latest().await.unwrap().number, 2);
    names_the_lost_root(add_namespace(&reader, "d").await, 3);
    files.overwrite(&root_path(3), newest);
    assert_eq!(add_namespace(&reader, "d").await.unwrap(), 4);
}

/// A hint above all roots means that roots were lost. This happens to a backup without its last files but with the
/// hint, and to a copy made during writes in which the hint was copied last.
#[tokio::test]
async fn mode_7_hint_ahead() {
    for expire_before in [None, Some(1), Some(3)] {
        for hint in [4, 999_999, u64::MAX] {
            let (files, environment, lakehouse) = lake().await;
            if expire_before.is_some() {
                expire(&lakehouse, expire_before, false).await.unwrap();
            }
            files.overwrite(LATEST_HINT_PATH, hint.to_string());
            let opened = open(files.clone(), &environment).await;
            assert_eq!(opened.latest().await.unwrap().number, 3, "hint {hint}");
            let oldest = expire_before.unwrap_or(0);
            let shown = std::iter::once((hint, false)).chain((oldest..=3).rev().map(|number| (number, true)));
            assert_eq!(versions_found(&opened).await, shown.collect::<Vec<_>>());
            names_the_lost_root(add_namespace(&opened, "d").await, hint);
            files.delete(LATEST_HINT_PATH).await.unwrap();
            assert_eq!(add_namespace(&opened, "d").await.unwrap(), 4);
        }
    }
}

/// A root below the boundary is never the latest version. Otherwise, if all roots from the boundary on are lost, a
/// tagged root below the boundary would become the latest version.
#[tokio::test]
async fn a_root_below_the_boundary_is_not_the_latest() {
    let (files, environment, lakehouse) = lake().await;
    expire(&lakehouse, Some(2), false).await.unwrap();
    let kept = files.get(&root_path(3)).await.unwrap();
    files.overwrite(&root_path(1), kept);
    for version in [2, 3] {
        files.delete(&root_path(version)).await.unwrap();
    }
    for hint in [Some("3"), None] {
        match hint {
            Some(hint) => files.overwrite(LATEST_HINT_PATH, hint),
            None => files.delete(LATEST_HINT_PATH).await.unwrap(),
        }
        let opened = Lakehouse::open(files.clone(), environment.clone(), None).await;
        assert!(matches!(opened, Err(Error::CorruptFile { .. })), "{opened:?}");
    }
}

/// One wrong read of the hint has no effect. While "19" becomes "20" on a local disk, a reader may see "29".
#[tokio::test]
async fn a_hint_is_read_twice_before_a_root_is_called_lost() {
    let (files, environment, _) = lake().await;
    let store = Intruder::at_hint(&files);
    for hint in ["29", "3"] {
        let files = files.clone();
        store.add(move || async move { files.overwrite(LATEST_HINT_PATH, hint) });
    }
    let opened = open(store.clone(), &environment).await;
    assert_eq!(store.waiting(), 0);
    assert_eq!(add_namespace(&opened, "d").await.unwrap(), 4);
}

/// A root that is committed between the reads of the next root and of the hint is not reported as lost.
#[tokio::test]
async fn a_commit_between_two_reads_is_not_a_lost_root() {
    let (files, environment, writer) = lake().await;
    let store = Intruder::at_hint(&files);
    let reader = open(store.clone(), &environment).await;
    store.add(move || async move {
        add_namespace(&writer, "d").await.unwrap();
    });
    assert_eq!(reader.latest().await.unwrap().number, 4);
    assert_eq!(store.waiting(), 0);
    assert_eq!(add_namespace(&reader, "e").await.unwrap(), 5);
}

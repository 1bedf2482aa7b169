use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use super::*;
use crate::faulty::{Action, Fault, FaultyStorage, Trigger, Verb};
use crate::tests::{FakeServer, local, memory, s3};
use crate::{CountingStorage, Durability, FileInfo};

/// Faults of a store's conditional write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    /// Overwrites the file and answers "created".
    Ignores,
    /// Overwrites the file, but answers "exists".
    OverwritesAnyway,
    /// Checks first and writes later: correct for one writer, wrong for several at the same time.
    ChecksThenWrites,
    /// Answers "exists" for every name.
    AlwaysExists,
}

#[derive(Debug)]
struct FlawedStorage {
    inner: Arc<dyn Storage>,
    flaw: Flaw,
}

#[async_trait]
impl Storage for FlawedStorage {
    fn root(&self) -> &str {
        self.inner.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.inner.get(path).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(path, range).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.inner.head(path).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        if self.flaw == Flaw::AlwaysExists {
            return Ok(PutOutcome::AlreadyExists);
        }
        let exists = self.inner.exists(path).await?;
        if self.flaw == Flaw::ChecksThenWrites {
            if exists {
                return Ok(PutOutcome::AlreadyExists);
            }
            tokio::task::yield_now().await;
        }
        self.inner.put_hint(path, bytes).await?;
        Ok(match self.flaw {
            Flaw::OverwritesAnyway if exists => PutOutcome::AlreadyExists,
            _ => PutOutcome::Created,
        })
    }

    async fn sync(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.inner.put_hint(path, bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.inner.list(prefix).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.inner.delete(path).await
    }
}

/// The creation of a lakehouse refuses a store that ignores the condition or does not check it atomically (failure mode
/// 5).
#[tokio::test]
async fn a_store_that_lets_two_writers_create_one_file_is_refused() {
    for (flaw, finding) in [
        (Flaw::Ignores, "ignores the condition"),
        (Flaw::OverwritesAnyway, "replaced a file"),
        (Flaw::ChecksThenWrites, "8 of 8 writers at once created the same file"),
        (Flaw::AlwaysExists, "exists already"),
    ] {
        let inner = memory();
        let error = probe(&FlawedStorage { inner: inner.clone(), flaw }, "name").await.unwrap_err();
        let Error::Storage { message, retryable: false } = error else { panic!("{flaw:?} {error:?}") };
        assert!(message.contains(finding), "{flaw:?}: {message}");
        assert!(message.contains("one of them would be lost"), "{message}");
        assert_eq!(inner.list("").await.unwrap(), [], "{flaw:?} left files");
    }
}

#[tokio::test]
async fn every_supported_store_is_accepted_and_left_empty() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::s3();
    let stores = [
        memory(),
        local(folder.path(), Durability::Fsync),
        local(&folder.path().join("other"), Durability::None),
        s3(&server, "s3://bucket/lake", &[]),
    ];
    for storage in stores {
        for name in ["one", "two", "one"] {
            probe(&*storage, name).await.unwrap();
        }
        assert_eq!(storage.list("").await.unwrap(), [], "{storage:?}");
    }
}

#[tokio::test]
async fn a_store_that_fails_keeps_its_own_error() {
    for nth in 0..10 {
        let storage = FaultyStorage::new(memory(), [Fault::new(Trigger::on(Verb::PutIfAbsent, nth), Action::Deny)]);
        let probed = probe(&storage, "name").await;
        // The failure of one racer does not hide the answers to the others.
        match nth {
            0 | 1 => assert!(matches!(probed, Err(Error::PermissionDenied(_))), "{nth} {probed:?}"),
            _ => probed.unwrap(),
        }
        assert_eq!(storage.unfired(), [], "{nth}");
    }
    let policy = |operation: &crate::faulty::Operation| operation.path.ends_with("-race").then_some(Action::FailBefore);
    let storage = FaultyStorage::with_policy(memory(), Box::new(policy));
    let error = probe(&storage, "name").await.unwrap_err();
    assert!(matches!(error, Error::Storage { retryable: true, .. }), "{error:?}");
}

#[tokio::test]
async fn a_probe_costs_fourteen_requests() {
    let storage = CountingStorage::new(memory());
    probe(&storage, "name").await.unwrap();
    let counters = storage.counters();
    assert_eq!((counters.put_if_absent, counters.get, counters.delete), (10, 2, 2));
}

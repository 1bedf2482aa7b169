//! Processes that die at a request, before it is sent or after it was executed.

use std::future::{Future, pending};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;
use trinitylake::error::Result;
use trinitylake::storage::{FileInfo, PutOutcome, Storage};

use crate::world::{Line, Process, World};

/// Number of requests that a process has left.
#[derive(Debug)]
pub struct Life {
    left: AtomicI64,
    /// Whether the last request is executed without an answer.
    is_last_carried_out: bool,
    died: Notify,
    deleted: AtomicU64,
}

impl Life {
    /// Creates the life of a process. Half of all processes die within `most` requests.
    pub fn new(world: &World, most: u64) -> Arc<Life> {
        let left = if world.chance(50) { 1 + world.below(most) as i64 } else { i64::MAX };
        Arc::new(Life {
            left: AtomicI64::new(left),
            is_last_carried_out: world.chance(50),
            died: Notify::new(),
            deleted: AtomicU64::new(0),
        })
    }

    /// Runs the work of the process; `None` if it died before the end. Its unfinished work is dropped.
    pub async fn live<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.died.notified() => None,
            done = work => Some(done),
        }
    }

    /// Returns the number of files that the requests of the process deleted.
    pub fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::SeqCst)
    }

    async fn send<T>(&self, request: impl Future<Output = T>) -> T {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            1 => {
                if self.is_last_carried_out {
                    request.await;
                }
                self.died.notify_one();
                pending().await
            }
            // A number below 1 means that the request was sent before the process died, and arrives late.
            _ => request.await,
        }
    }
}

/// Connection of a process that may die.
#[derive(Debug)]
pub struct MortalLine {
    world: Arc<World>,
    line: Arc<Line>,
    life: Arc<Life>,
}

impl MortalLine {
    pub fn new(world: &Arc<World>, process: &Arc<Process>, life: &Arc<Life>) -> Arc<MortalLine> {
        Arc::new(MortalLine { world: world.clone(), line: Line::of(process), life: life.clone() })
    }
}

#[async_trait]
impl Storage for MortalLine {
    fn root(&self) -> &str {
        self.line.root()
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.life.send(self.line.get(path)).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.life.send(self.line.get_range(path, range)).await
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.life.send(self.line.head(path)).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.life.send(self.line.put_if_absent(path, bytes)).await
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        self.line.sync(paths).await
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.life.send(self.line.put_hint(path, bytes)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.life.send(self.line.list(prefix)).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let was_there = self.world.content(path).is_some();
        let request = async {
            let answer = self.line.delete(path).await;
            let is_there = self.world.content(path).is_some();
            self.life.deleted.fetch_add(u64::from(was_there && !is_there), Ordering::SeqCst);
            answer
        };
        self.life.send(request).await
    }
}

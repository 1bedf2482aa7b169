//! Node files: reading through a bounded cache, writing in parallel.
//!
//! Files are immutable and their names unique, so a cached node is never stale. Inner nodes and leaves have separate
//! caches, so that a scan over leaves does not evict the few nodes that every search needs. Each process has its own
//! caches, because a lock of the parent may be held by a thread that a forked child does not have.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::MAX_HEIGHT;
use super::node_source::{Nodes, PARALLEL_REQUESTS, checked};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::{Encoded, decode};
use trinitylake_format::node::mutable_node::Text;
use trinitylake_format::path::root_version;
use trinitylake_storage::Storage;

/// Default size of the cache. It is sufficient for all inner nodes of 8 million keys.
pub const CACHE_SIZE_BYTES: u64 = 128 << 20;

#[derive(Clone, Debug)]
struct MemorySize;

impl Weighter<Text, Arc<Node>> for MemorySize {
    fn weight(&self, path: &Text, node: &Arc<Node>) -> u64 {
        (path.len() + node.memory_size_bytes()) as u64
    }
}

type NodeCache = Cache<Text, Arc<Node>, MemorySize>;

#[derive(Debug)]
pub struct NodeStore {
    storage: Arc<dyn Storage>,
    caches: PerProcess<Caches>,
}

struct Caches {
    inner: NodeCache,
    leaves: NodeCache,
}

impl Nodes for NodeStore {
    async fn load(&self, path: &str, height: Option<u32>) -> Result<Arc<Node>> {
        NodeStore::load(self, path, height).await
    }

    async fn load_many(&self, paths: &[&str], height: Option<u32>) -> Result<Vec<Arc<Node>>> {
        NodeStore::load_many(self, paths, height).await
    }
}

impl NodeStore {
    /// `cache_size_bytes` limits the size of the decoded nodes; a quarter of it is for inner nodes.
    pub fn new(storage: Arc<dyn Storage>, cache_size_bytes: u64) -> Self {
        let cache = |size: u64| Cache::with_weighter((size >> 15).max(16) as usize, size, MemorySize);
        let inner = cache_size_bytes / 4;
        let caches = move || Caches { inner: cache(inner), leaves: cache(cache_size_bytes - inner) };
        NodeStore { storage, caches: PerProcess::new(caches) }
    }

    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    pub fn cached(&self, path: &str) -> Option<Arc<Node>> {
        let caches = self.caches.get();
        caches.inner.get(path).or_else(|| caches.leaves.get(path))
    }

    /// Removes a deleted file from the cache.
    pub fn forget(&self, path: &str) {
        let caches = self.caches.get();
        caches.inner.remove(path);
        caches.leaves.remove(path);
    }

    /// The node at `path`. `height` is the height that its parent expects.
    pub async fn load(&self, path: &str, height: Option<u32>) -> Result<Arc<Node>> {
        let node = match self.cached(path) {
            Some(node) => node,
            None => {
                let bytes = match self.storage.get(path).await {
                    // A root may have expired; any other node exists as long as a tree references it.
                    Err(Error::FileNotFound { path }) if root_version(&path).is_none() => {
                        return Err(Error::corrupt(
                            path,
                            "the tree references this node file, which is missing",
                        ));
                    }
                    bytes => bytes?,
                };
                let node = Arc::new(decode(bytes, path, None)?);
                self.keep(path.into(), node.clone());
                node
            }
        };
        checked(node, path, height)
    }

    /// Loads children of one node in parallel, in order.
    pub async fn load_many(&self, paths: &[&str], height: Option<u32>) -> Result<Vec<Arc<Node>>> {
        // Usually the nodes are cached, and a stream would cost more than the lookups.
        let mut nodes = Vec::with_capacity(paths.len());
        for path in paths {
            match self.cached(path) {
                Some(_) => nodes.push(self.load(path, height).await?),
                None => break,
            }
        }
        let rest: Vec<Text> = paths[nodes.len()..].iter().map(|path| Text::from(*path)).collect();
        let loaded: Vec<Arc<Node>> = stream::iter(rest)
            .map(|path| async move { self.load(&path, height).await })
            .buffered(PARALLEL_REQUESTS)
            .try_collect()
            .await?;
        nodes.extend(loaded);
        Ok(nodes)
    }

    fn keep(&self, path: Text, node: Arc<Node>) {
        let caches = self.caches.get();
        if node.is_leaf() { caches.leaves.insert(path, node) } else { caches.inner.insert(path, node) }
    }

    /// Writes new nodes in parallel, and caches them.
    pub async fn write(&self, nodes: Vec<(Text, Encoded)>) -> Result<()> {
        let paths: Vec<String> = nodes.iter().map(|(path, _)| path.to_string()).collect();
        self.write_unsynced(nodes).await?;
        self.storage.sync(&paths).await
    }

    /// Like [`NodeStore::write`] without the sync, which is left to the creator of the next root.
    pub async fn write_unsynced(&self, nodes: Vec<(Text, Encoded)>) -> Result<()> {
        stream::iter(nodes)
            .map(|(path, encoded)| async move {
                self.storage.write_unsynced(&path, encoded.bytes).await?;
                self.keep(path, Arc::new(encoded.node));
                Ok(())
            })
            .buffer_unordered(PARALLEL_REQUESTS)
            .try_collect()
            .await
    }

    /// Height of a tree: recorded in its root, or counted on the way down.
    pub async fn height_of(&self, root: &Node) -> Result<u32> {
        if let Some(height) = root.height() {
            return Ok(height);
        }
        let mut node = self.load(root.child(0), None).await?;
        for height in 1..MAX_HEIGHT {
            if let Some(rest) = node.height() {
                return Ok(height + rest);
            }
            node = self.load(node.child(0), None).await?;
        }
        Err(Error::corrupt("(root)", format!("the tree is higher than {MAX_HEIGHT}: its nodes form a cycle")))
    }
}

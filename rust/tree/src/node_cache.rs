//! LRU cache of decoded nodes.
//!
//! Node files are immutable and their names unique, so a cached node is never stale. Inner nodes and leaves have
//! separate caches, so that a scan over leaves does not evict the few nodes that every search needs. A forked child
//! begins with empty caches, because another thread of the parent may have locked the parent's caches during the fork.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use trinitylake_base::per_process::PerProcess;
use trinitylake_format::node::Node;
use trinitylake_format::node::mutable_node::Text;

/// Default size of the cache. It is sufficient for all inner nodes of 8 million keys.
pub const CACHE_SIZE_BYTES: u64 = 128 << 20;

#[derive(Clone, Debug)]
struct MemorySize;

impl Weighter<Text, Arc<Node>> for MemorySize {
    fn weight(&self, path: &Text, node: &Arc<Node>) -> u64 {
        (path.len() + node.memory_size_bytes()) as u64
    }
}

type SizedCache = Cache<Text, Arc<Node>, MemorySize>;

#[derive(Debug)]
pub(crate) struct NodeCache(PerProcess<Shares>);

struct Shares {
    inner: SizedCache,
    leaves: SizedCache,
}

impl NodeCache {
    /// A quarter of the size is for inner nodes.
    pub fn new(size_bytes: u64) -> Self {
        let cache = |size: u64| Cache::with_weighter((size >> 15).max(16) as usize, size, MemorySize);
        let inner = size_bytes / 4;
        NodeCache(PerProcess::new(move || Shares { inner: cache(inner), leaves: cache(size_bytes - inner) }))
    }

    pub fn get(&self, path: &str) -> Option<Arc<Node>> {
        let shares = self.0.get();
        shares.inner.get(path).or_else(|| shares.leaves.get(path))
    }

    pub fn insert(&self, path: Text, node: Arc<Node>) {
        let shares = self.0.get();
        if node.is_leaf() { shares.leaves.insert(path, node) } else { shares.inner.insert(path, node) }
    }

    pub fn remove(&self, path: &str) {
        let shares = self.0.get();
        shares.inner.remove(path);
        shares.leaves.remove(path);
    }
}

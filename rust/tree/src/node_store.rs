//! Node files: reading through the cache of nodes, writing in parallel.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::MAX_HEIGHT;
use super::node_cache::NodeCache;
use super::node_source::{Nodes, PARALLEL_REQUESTS, checked};
use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::root_version;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::{Encoded, decode};
use trinitylake_format::node::mutable_node::Text;
use trinitylake_storage::Storage;

#[derive(Debug)]
pub struct NodeStore {
    storage: Arc<dyn Storage>,
    cache: NodeCache,
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
    /// `cache_size_bytes` is the maximum size of all decoded nodes in the cache.
    pub fn new(storage: Arc<dyn Storage>, cache_size_bytes: u64) -> Self {
        NodeStore { storage, cache: NodeCache::new(cache_size_bytes) }
    }

    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    pub fn cached(&self, path: &str) -> Option<Arc<Node>> {
        self.cache.get(path)
    }

    /// Removes the node of a deleted file from the cache.
    pub fn forget(&self, path: &str) {
        self.cache.remove(path);
    }

    /// Returns the node at `path`. `height` is the height that its parent expects.
    pub async fn load(&self, path: &str, height: Option<u32>) -> Result<Arc<Node>> {
        let node = match self.cached(path) {
            Some(node) => node,
            None => {
                let bytes = match self.storage.get(path).await {
                    // A missing root may have expired. Any other node exists as long as a tree references it.
                    Err(Error::FileNotFound { path }) if root_version(&path).is_none() => {
                        return Err(Error::corrupt(path, "the tree references this node file, which is missing"));
                    }
                    bytes => bytes?,
                };
                let node = Arc::new(decode(bytes, path, None)?);
                self.cache.insert(path.into(), node.clone());
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

    /// Writes new nodes in parallel, and caches them.
    pub async fn write(&self, nodes: Vec<(Text, Encoded)>) -> Result<()> {
        let paths: Vec<String> = nodes.iter().map(|(path, _)| path.to_string()).collect();
        self.write_unsynced(nodes).await?;
        self.storage.sync(&paths).await
    }

    /// Like [`NodeStore::write`], but without the sync, which the caller performs before it creates the next root.
    pub async fn write_unsynced(&self, nodes: Vec<(Text, Encoded)>) -> Result<()> {
        stream::iter(nodes)
            .map(|(path, encoded)| async move {
                self.storage.write_unsynced(&path, encoded.bytes).await?;
                self.cache.insert(path, Arc::new(encoded.node));
                Ok(())
            })
            .buffer_unordered(PARALLEL_REQUESTS)
            .try_collect()
            .await
    }

    /// Returns the height of a tree, as recorded in its root or counted on the way down.
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

//! The nodes that the page has fetched, and the paths of the nodes that it has to fetch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::decode;
use trinitylake_tree::node_source::{Nodes, checked};

/// Maximum number of stored nodes. It exceeds the number that one answer needs.
const NODES_MAX: usize = 600;

/// Nodes by path. The oldest nodes are evicted.
#[derive(Debug, Default)]
pub struct Fetched(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, (Arc<Node>, usize)>,
    by_age: VecDeque<String>,
    wanted: Vec<String>,
}

impl Fetched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes and stores a node.
    pub fn keep(&self, path: &str, bytes: Bytes) -> Result<()> {
        let size_bytes = bytes.len();
        let node = decode(bytes, path, None)?;
        let mut state = self.state();
        if state.nodes.insert(path.to_string(), (Arc::new(node), size_bytes)).is_none() {
            state.by_age.push_back(path.to_string());
        }
        if state.by_age.len() > NODES_MAX
            && let Some(oldest) = state.by_age.pop_front()
        {
            state.nodes.remove(&oldest);
        }
        Ok(())
    }

    /// Returns a node and the size of its file. A missing node is added to the nodes to fetch.
    pub fn with_size(&self, path: &str) -> Result<(Arc<Node>, usize)> {
        let mut state = self.state();
        if let Some(found) = state.nodes.get(path) {
            return Ok(found.clone());
        }
        state.wanted.push(path.to_string());
        Err(Error::FileNotFound { path: path.to_string() })
    }

    pub fn get(&self, path: &str) -> Result<Arc<Node>> {
        self.with_size(path).map(|(node, _)| node)
    }

    /// Returns the paths of the nodes to fetch, and empties the list.
    pub fn take_wanted(&self) -> Vec<String> {
        std::mem::take(&mut self.state().wanted)
    }
}

impl Nodes for Fetched {
    async fn load(&self, path: &str, height: Option<u32>) -> Result<Arc<Node>> {
        checked(self.get(path)?, path, height)
    }

    /// Adds all missing nodes to the nodes to fetch, so that the page fetches them in parallel.
    async fn load_many(&self, paths: &[&str], height: Option<u32>) -> Result<Vec<Arc<Node>>> {
        let found: Vec<Result<Arc<Node>>> = paths.iter().map(|path| self.get(path)).collect();
        let found: Vec<Arc<Node>> = found.into_iter().collect::<Result<_>>()?;
        found.into_iter().zip(paths).map(|(node, path)| checked(node, path, height)).collect()
    }
}

//! Nodes that the page has fetched, and those that it should.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::decode;
use trinitylake_tree::node_source::{Nodes, checked};

/// More than one answer needs.
const NODES_MAX: usize = 600;

/// Nodes by their paths, the oldest of which give way.
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

    /// Keeps the node that these bytes of a file hold.
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

    /// A node, and how many bytes its file has. What is not there is wanted from now on.
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

    /// Files requested since the last call.
    pub fn take_wanted(&self) -> Vec<String> {
        std::mem::take(&mut self.state().wanted)
    }
}

impl Nodes for Fetched {
    async fn load(&self, path: &str, height: Option<u32>) -> Result<Arc<Node>> {
        checked(self.get(path)?, path, height)
    }

    /// All that are missing are wanted at once, so that the page can fetch them at once.
    async fn load_many(&self, paths: &[&str], height: Option<u32>) -> Result<Vec<Arc<Node>>> {
        let found: Vec<Result<Arc<Node>>> = paths.iter().map(|path| self.get(path)).collect();
        let found: Vec<Arc<Node>> = found.into_iter().collect::<Result<_>>()?;
        found.into_iter().zip(paths).map(|(node, path)| checked(node, path, height)).collect()
    }
}

//! Source of nodes: files behind a cache, or in the WebAssembly build the files that the page has fetched.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use trinitylake_base::error::{Error, Result};
use trinitylake_format::node::Node;

/// Maximum number of concurrent requests of one operation.
pub const PARALLEL_REQUESTS: usize = 64;

/// A source that returns nodes by their paths.
pub trait Nodes: Debug + Send + Sync {
    /// Returns the node at `path`. `height` is the height that its parent expects ([`checked`]).
    fn load(&self, path: &str, height: Option<u32>) -> impl Future<Output = Result<Arc<Node>>> + Send;

    /// Returns children of one node in the order of `paths`.
    fn load_many(&self, paths: &[&str], height: Option<u32>) -> impl Future<Output = Result<Vec<Arc<Node>>>> + Send;
}

impl<N: Nodes> Nodes for Arc<N> {
    fn load(&self, path: &str, height: Option<u32>) -> impl Future<Output = Result<Arc<Node>>> + Send {
        N::load(self, path, height)
    }

    fn load_many(&self, paths: &[&str], height: Option<u32>) -> impl Future<Output = Result<Vec<Arc<Node>>>> + Send {
        N::load_many(self, paths, height)
    }
}

/// Returns the node if it has the height that its parent expects.
pub fn checked(node: Arc<Node>, path: &str, height: Option<u32>) -> Result<Arc<Node>> {
    match (height, node.height()) {
        (Some(expected), Some(actual)) if expected != actual => {
            Err(Error::corrupt(path, format!("height is {actual}, its parent expects {expected}")))
        }
        // Some writers do not record heights. Without this check, readers would follow a cycle of such nodes forever.
        (Some(0), None) => Err(Error::corrupt(path, "has children, its parent expects a leaf")),
        _ => Ok(node),
    }
}

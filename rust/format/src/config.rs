//! The settings of a lakehouse and the values derived from them.
//!
//! Users choose few settings: the order of the tree, sizes, some properties. All other values are derived here, each
//! with its reason, so that all sizes of the tree are in one place.

use crate::key::NameSizes;
use crate::lakehouse_definition::LakehouseDefinition;
use crate::node::codec::Compression;
use trinitylake_base::error::{Error, Result};

/// Property: compression of nodes, `zstd` (default), `lz4` or `none`.
pub const PROPERTY_NODE_COMPRESSION: &str = "node.compression";
/// Property: soft cap of the root's write buffer in bytes, before compression.
pub const PROPERTY_ROOT_BUFFER_SIZE_BYTES: &str = "root.buffer-size-bytes";
/// Property: soft cap of an inner node's write buffer in bytes, before compression.
pub const PROPERTY_INNER_BUFFER_SIZE_BYTES: &str = "inner.buffer-size-bytes";

/// Property: how writers in several processes coordinate, `none` (default) or `queue`.
pub const PROPERTY_COMMIT_COORDINATION: &str = "commit.coordination";

/// Default soft cap of the root's buffer. Every commit rewrites the root, so a larger buffer costs bytes in each
/// commit, and saves few node writes. The bytes per commit are smallest for a buffer of about 130 messages.
const ROOT_BUFFER_SIZE_BYTES: usize = 64 << 10;
/// After a large commit, the root's buffer has space for this number of commits of the same size.
const COMMITS_IN_ROOT_BUFFER: usize = 10;
const INNER_BUFFER_SIZE_BYTES: usize = 64 << 10;
/// Maximum number of children to which an inner node flushes messages in one commit, unless it is over its hard cap.
/// This limits the number of nodes that one commit writes.
pub const INNER_FLUSH_CHILDREN: usize = 2;
pub const ORDER_MIN: usize = 3;
pub const ORDER_MAX: usize = 65_536;

/// How writers in several processes coordinate their commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// Each writer tries to create the next root independently.
    #[default]
    None,
    /// Writers that have lost a race wait in a queue. One of these writers creates a root for all of their
    /// transactions.
    Queue,
}

impl Coordination {
    pub fn parse(name: &str) -> Result<Coordination> {
        match name {
            "none" => Ok(Coordination::None),
            "queue" => Ok(Coordination::Queue),
            _ => Err(Error::InvalidArgument(format!("coordination {name:?} is not one of \"none\", \"queue\""))),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeConfig {
    /// Maximum number of children of a node (N).
    pub order: usize,
    pub names: NameSizes,
    pub file_path_max_size_bytes: usize,
    pub node_max_size_bytes: usize,
    pub root_buffer_size_bytes: usize,
    /// Whether the user chose the cap of the root's buffer, so that it does not depend on the size of commits.
    pub root_buffer_is_fixed: bool,
    pub inner_buffer_size_bytes: usize,
    pub compression: Compression,
    pub coordination: Coordination,
}

impl Default for TreeConfig {
    fn default() -> Self {
        TreeConfig {
            order: 128,
            names: NameSizes::default(),
            file_path_max_size_bytes: 200,
            node_max_size_bytes: 1 << 20,
            root_buffer_size_bytes: ROOT_BUFFER_SIZE_BYTES,
            root_buffer_is_fixed: false,
            inner_buffer_size_bytes: INNER_BUFFER_SIZE_BYTES,
            compression: Compression::Zstd,
            coordination: Coordination::None,
        }
    }
}

impl TreeConfig {
    pub fn of(definition: &LakehouseDefinition) -> Result<TreeConfig> {
        let buffer_size = |property: &str, default: usize| -> Result<usize> {
            match definition.properties().get(property) {
                None => Ok(default),
                Some(text) => text.parse().map_err(|_| {
                    Error::InvalidArgument(format!("lakehouse property {property} is {text:?}, not a number of bytes"))
                }),
            }
        };
        let node_max_size_bytes = definition.node_file_max_size_bytes();
        let config = TreeConfig {
            order: definition.order(),
            names: definition.name_sizes(),
            file_path_max_size_bytes: definition.file_path_max_size_bytes(),
            node_max_size_bytes,
            root_buffer_size_bytes: buffer_size(PROPERTY_ROOT_BUFFER_SIZE_BYTES, ROOT_BUFFER_SIZE_BYTES)?
                .min(node_max_size_bytes),
            root_buffer_is_fixed: definition.properties().contains_key(PROPERTY_ROOT_BUFFER_SIZE_BYTES),
            inner_buffer_size_bytes: buffer_size(PROPERTY_INNER_BUFFER_SIZE_BYTES, INNER_BUFFER_SIZE_BYTES)?
                .min(node_max_size_bytes),
            compression: match definition.properties().get(PROPERTY_NODE_COMPRESSION) {
                Some(name) => Compression::parse(name)?,
                None => Compression::default(),
            },
            coordination: match definition.properties().get(PROPERTY_COMMIT_COORDINATION) {
                Some(name) => Coordination::parse(name)?,
                None => Coordination::default(),
            },
        };
        config.check()?;
        Ok(config)
    }

    /// Returns the soft cap of the root's buffer after a commit of this size. The cap grows with the size of the
    /// commit, up to the maximum size of a node. With a smaller cap, nearly every commit would have to flush the
    /// buffer.
    pub fn root_buffer_cap_bytes(&self, commit_size_bytes: usize) -> usize {
        if self.root_buffer_is_fixed {
            return self.root_buffer_size_bytes;
        }
        let grown = commit_size_bytes.saturating_mul(COMMITS_IN_ROOT_BUFFER).min(self.node_max_size_bytes);
        self.root_buffer_size_bytes.max(grown)
    }

    fn check(&self) -> Result<()> {
        let within = |what: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::InvalidArgument(format!("{what} is {value}, it must be from {least} to {most}")))
        };
        within("order", self.order, ORDER_MIN, ORDER_MAX)?;
        within("namespace_name_max_size_bytes", self.names.namespace, 1, 1024)?;
        within("table_name_max_size_bytes", self.names.table, 1, 1024)?;
        within("view_name_max_size_bytes", self.names.view, 1, 1024)?;
        // In the path of a definition, all parts except the names take up to 84 bytes.
        within("file_path_max_size_bytes", self.file_path_max_size_bytes, 100, 1024)?;
        within("node_file_max_size_bytes", self.node_max_size_bytes, 1024, 1 << 30)
    }
}

//! Applies many changes on top of a tree, for versions without a transaction: rollbacks, repairs, partial exports.

use std::sync::Arc;

use crate::config::TreeConfig;
use crate::environment::Environment;
use crate::error::Result;
use crate::node::Node;
use crate::node::codec::encode;
use crate::node::mutable_node::{Message, MutableNode};
use crate::tree::apply_changes::apply_changes;
use crate::tree::node_store::NodeStore;
use crate::version::publisher::Publisher;

/// Number of messages that are added to the root before a flush.
const MESSAGES_AT_ONCE: usize = 1000;

/// Applies messages to a tree and writes the new nodes, except the root, which is returned.
pub(crate) async fn apply_many_changes(
    nodes: &NodeStore,
    environment: &dyn Environment,
    publisher: &Publisher,
    config: &TreeConfig,
    mut root: Arc<Node>,
    messages: Vec<Message>,
) -> Result<MutableNode> {
    let mut draft = MutableNode::of(&root, nodes.height_of(&root).await?);
    for some in messages.chunks(MESSAGES_AT_ONCE) {
        let next = apply_changes(nodes, environment, config, &root, some.to_vec(), 0).await?;
        nodes.write(publisher.encode_nodes(config, next.nodes)?).await?;
        draft = next.root;
        root = Arc::new(encode(&[], &draft, config.order, config.compression)?.node);
    }
    Ok(draft)
}

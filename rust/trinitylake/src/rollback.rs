//! Rollback of the lakehouse: publishes the tree of an earlier version as a new version.

use std::sync::Arc;

use futures::future::try_join;

use crate::apply_many_changes::apply_many_changes;
use crate::error::Result;
use crate::lakehouse::Lakehouse;
use crate::node::mutable_node::{Message, MutableNode, Text};
use crate::transaction::saved::transaction_record::records;
use crate::version::Version;
use crate::version::root_metadata::{
    CommittedTransaction, LastRollback, OPERATION_PROPERTY, OPERATION_ROLLBACK, ROLLBACK_TARGET_PROPERTY,
};
use crate::version::summary_format::Summary;

impl Lakehouse {
    /// Publishes the tree of version `number` as a new version. `CommitConflict` if another transaction commits first.
    /// A chosen id that was committed after version `number` still cannot be used again.
    pub async fn rollback(&self, number: u64, message: &str, author: &str) -> Result<Arc<Version>> {
        let latest = self.latest().await?;
        // A cached version may have expired, and its files may have been deleted. If it expires after this check, a gc
        // fence is published before its files are deleted, so that this rollback loses the race.
        self.check_retained(number, &latest).await?;
        let target = self.version(number).await?;
        let properties = [
            (OPERATION_PROPERTY.to_string(), OPERATION_ROLLBACK.to_string()),
            (ROLLBACK_TARGET_PROPERTY.to_string(), number.to_string()),
        ];
        let transaction = CommittedTransaction {
            id: self.environment().uuid().to_string(),
            isolation: "serializable".into(),
            message: message.into(),
            author: author.into(),
            began_at_version: latest.number,
            properties: properties.into(),
            summary: Summary::plain(format!("roll back to version {number}")),
        };
        let draft = self.tree_with_records_of(&latest, &target, &transaction.id).await?;
        let mut metadata = self.publisher().next_metadata(&latest, vec![transaction]);
        metadata.rollback_from_root = Some(latest.root_path.clone());
        metadata.last_rollback = LastRollback::Version(metadata.version);
        metadata.inline_definitions.extend(target.unwritten_definitions());
        self.publisher().publish_alone(&latest, metadata, draft, "the rollback").await
    }

    /// Returns the root of `target`, with the records of transaction ids from `latest`.
    async fn tree_with_records_of(&self, latest: &Version, target: &Version, id: &str) -> Result<MutableNode> {
        let (kept, there) = try_join(records(latest), records(target)).await?;
        let txn: Text = id.into();
        let message = |key: &String, value: Option<&String>| {
            Message::new(key.as_str().into(), value.map(|location| location.as_str().into()), txn.clone())
        };
        let new = kept.iter().filter(|(key, location)| there.get(*key) != Some(*location));
        let gone = there.keys().filter(|key| !kept.contains_key(*key));
        let mut messages: Vec<Message> = new.map(|(key, location)| message(key, Some(location))).collect();
        messages.extend(gone.map(|key| message(key, None)));

        let (nodes, environment, root) = (self.nodes(), self.environment().as_ref(), target.root.clone());
        apply_many_changes(nodes, environment, self.publisher(), &latest.config, root, messages).await
    }
}

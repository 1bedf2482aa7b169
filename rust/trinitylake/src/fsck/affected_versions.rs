//! Finds the checked versions that a fault affects. A missing record of a transaction id is a fault only if the newest
//! version has its key.

use std::sync::Arc;

use super::Fsck;
use super::finding::Kind;
use super::node_place::{BadNode, leads_to};
use crate::error::Result;
use crate::key::ObjectKind;
use crate::node::Node;
use crate::tree::search::get;

impl Fsck {
    /// Finds the versions that unreadable nodes and definitions affect.
    pub(super) async fn find_affected(&mut self) -> Result<()> {
        let roots = self.loaded_roots().await;
        for BadNode { mut finding, place } in std::mem::take(&mut self.bad_nodes) {
            for (number, root) in &roots {
                if leads_to(&self.nodes, root, &place).await {
                    finding.versions.push(*number);
                }
            }
            finding.affected = vec![place.range(self.names)];
            self.findings.push(finding);
        }
        for suspect in std::mem::take(&mut self.suspects) {
            let mut finding = suspect.finding;
            for (number, root) in &roots {
                let found = get(&self.nodes, root, &suspect.key).await;
                if matches!(found, Ok(Some(location)) if location == finding.path) {
                    finding.versions.push(*number);
                }
            }
            // An expiry removes the key of a record from the newest tree, and then the file. Trees of older versions
            // still have the key.
            let newest = self.listing.intact.as_ref().map(|version| version.number);
            let is_expired = finding.kind == Kind::Missing
                && suspect.key.starts_with(ObjectKind::TransactionRecord.prefix())
                && !newest.is_some_and(|newest| finding.versions.contains(&newest));
            if !finding.versions.is_empty() && !is_expired {
                finding.affected = self.names.decode(&suspect.key).map(|name| name.to_string()).into_iter().collect();
                self.findings.push(finding);
            }
        }
        Ok(())
    }

    /// Reads the roots of the checked versions; none if there is no fault to look up in them.
    async fn loaded_roots(&self) -> Vec<(u64, Arc<Node>)> {
        let mut roots = Vec::new();
        if self.bad_nodes.is_empty() && self.suspects.is_empty() {
            return roots;
        }
        for number in &self.checked {
            if let Ok(root) = self.nodes.load(&self.listing.root_file(*number), None).await {
                roots.push((*number, root));
            }
        }
        roots
    }
}

//! Checks of roots: their metadata, the lakehouse definition, and the order of versions (format §§4, 7).

use std::sync::Arc;

use super::finding::{Finding, Kind};
use super::{Fsck, PreviousRoot};
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::file_names::{root_path, root_path_000};
use crate::lakehouse_definition::LakehouseDefinition;
use crate::node::Node;
use crate::node::codec::decode;
use crate::version::discovery;
use crate::version::root_metadata::{
    COPIED_DEFINITIONS, INLINE_DEFINITIONS, LAKEHOUSE_DEF_INLINE, LastRollback, RootMetadata,
    damaged_inline_definitions,
};

impl Fsck {
    /// Reads and checks a root; `None` if it cannot be read.
    pub(super) async fn check_root(&mut self, number: u64) -> Result<Option<Arc<Node>>> {
        let path = self.listing.root_file(number);
        let read = match discovery::root(self.storage.as_ref(), number).await {
            Ok(bytes) => decode(bytes, &path, None),
            Err(error @ (Error::FileNotFound { .. } | Error::CorruptFile { .. })) => Err(error),
            Err(error) => return Err(error),
        };
        let root = match read {
            Ok(root) => Arc::new(root),
            Err(error) => {
                self.findings.push(Finding::of(&error, &path).at(number));
                return Ok(None);
            }
        };
        let metadata = match RootMetadata::of(&root, number, &path) {
            Ok(metadata) => metadata,
            Err(error) => {
                let mut finding = Finding::of(&error, &path).at(number);
                let holds = root.system("version").and_then(|text| text.parse::<u64>().ok());
                if holds.is_some_and(|holds| holds != number) || root.system("lakehouse_def").is_none() {
                    finding.kind = Kind::Misplaced;
                }
                self.findings.push(finding);
                return Ok(None);
            }
        };
        for problem in contradictions(&root, &metadata, self.previous.as_ref()) {
            self.findings.push(Finding::new(Kind::Broken, &path, problem).at(number));
        }
        if self.order == 0 {
            self.order = root.order();
        }
        self.check_lakehouse_definition(&root, &metadata, number).await?;
        self.inline_definitions = metadata.inline_definitions.clone();
        self.previous = Some(PreviousRoot { number, metadata });
        Ok(Some(root))
    }

    async fn check_lakehouse_definition(&mut self, root: &Node, metadata: &RootMetadata, number: u64) -> Result<()> {
        let path = metadata.lakehouse_definition.clone();
        let is_known = self.previous.as_ref().is_some_and(|previous| {
            previous.metadata.lakehouse_definition == path
                && previous.metadata.inline_definition == metadata.inline_definition
        });
        if is_known || !self.lakehouse_definitions.insert(path.clone()) && metadata.inline_definition.is_none() {
            return Ok(());
        }
        let finding = match self.storage.get(&path).await {
            Ok(file) => {
                let repeated = metadata.inline_definition.as_ref().map(|inline| decode_file(&path, inline).ok());
                let has_row = root.system(LAKEHOUSE_DEF_INLINE).is_some();
                match decode_file(&path, &file) {
                    Err(error) => Some(Finding::of(&error, &path)),
                    Ok(definition) => {
                        if let Err(error) = LakehouseDefinition::decode(definition.clone(), &path) {
                            Some(Finding::of(&error, &path))
                        } else if has_row && repeated != Some(Some(definition)) {
                            let message = format!("it differs from the copy in the root of version {number}");
                            Some(Finding::new(Kind::Broken, &path, message))
                        } else {
                            None
                        }
                    }
                }
            }
            Err(error @ (Error::FileNotFound { .. } | Error::InvalidLocation(_))) => Some(Finding::of(&error, &path)),
            Err(error) => return Err(error),
        };
        self.findings.extend(finding.map(|finding| finding.at(number)));
        Ok(())
    }
}

/// Returns contradictions within a root, and between a root and the previous root.
fn contradictions(root: &Node, metadata: &RootMetadata, previous: Option<&PreviousRoot>) -> Vec<String> {
    let number = metadata.version;
    let mut problems = Vec::new();
    let names = |path: &Option<String>, number: u64| {
        path.as_deref().is_some_and(|path| path == root_path(number) || path == root_path_000(number))
    };
    match number.checked_sub(1) {
        None if metadata.previous_root.is_some() => problems.push("version 0 has no previous root".to_string()),
        Some(before) if metadata.previous_root.is_some() && !names(&metadata.previous_root, before) => {
            problems.push(format!("its previous_root is not the root of version {before}"));
        }
        _ => {}
    }
    if metadata.rollback_from_root.is_some() {
        let is_before = number.checked_sub(1).is_some_and(|before| names(&metadata.rollback_from_root, before));
        if !is_before {
            problems.push("its rollback_from_root is not the previous root".into());
        }
        if metadata.rollback_target().is_some_and(|target| target >= number) {
            problems.push("its rollback target is not an earlier version".into());
        }
        if matches!(metadata.last_rollback, LastRollback::Version(last) if last != number) {
            problems.push("it is a rollback, and its last_rollback is another version".into());
        }
    }
    if let Some(previous) = previous.filter(|previous| previous.number + 1 == number) {
        let before = &previous.metadata;
        if metadata.created_at_millis <= before.created_at_millis && metadata.created_at_millis > 0 {
            problems.push("its created_at_millis is not after that of the previous version".into());
        }
        let expected = before.last_rollback_for_next();
        let is_chained = metadata.rollback_from_root.is_some()
            || metadata.last_rollback == LastRollback::Unknown
            || expected == LastRollback::Unknown
            || metadata.last_rollback == expected;
        if !is_chained {
            problems.push("its last_rollback is not that of the previous version".into());
        }
    }
    if root.system(LAKEHOUSE_DEF_INLINE).is_some() && metadata.inline_definition.is_none() {
        problems.push(format!("its {LAKEHOUSE_DEF_INLINE} is not hexadecimal"));
    }
    for key in [INLINE_DEFINITIONS, COPIED_DEFINITIONS] {
        if root.system(key).is_some_and(|row| damaged_inline_definitions(row) > 0) {
            problems.push(format!("its row {key} has damaged definitions"));
        }
    }
    let mut ids: Vec<&str> = metadata.committed.iter().map(|transaction| transaction.id.as_str()).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        problems.push("it contains a transaction twice".into());
    }
    // The messages of the newest version must be the last ones.
    let is_new = |txn: &str| ids.binary_search(&txn).is_ok();
    let tail = root.messages().skip_while(|message| !is_new(message.txn));
    if tail.skip(1).any(|message| !is_new(message.txn)) {
        problems.push("its buffer has messages of older versions after its own".into());
    }
    problems
}

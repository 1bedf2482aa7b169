//! Search for files that no retained version references, and checks of saved transactions.

use prost::Message as _;

use super::finding::{Finding, Kind};
use super::{Fsck, fingerprint};
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::file_names::{
    INTENT_PREFIX, TRANSACTION_PREFIX, definition_id, intent_file, lakehouse_definition_id, node_id, transaction_file,
};
use crate::lakehouse_definition::proto::{DistributedTransactionDef, Footprint};
use crate::transaction::saved::list::is_alive;

/// Prefix of files in the root folder.
const ROOT_FOLDER: &str = "_";

/// Returns the folders to search; the last one is searched first. The search begins with saved transactions, because
/// the files that they reference must be known first. Intents, the hashed folders by their first four bits, and the
/// root folder follow.
pub(super) fn folders() -> Vec<String> {
    let hashed = (0..16).map(|bits| format!("{bits:04b}/"));
    [ROOT_FOLDER.to_string()]
        .into_iter()
        .chain(hashed)
        .chain([INTENT_PREFIX.to_string(), TRANSACTION_PREFIX.to_string()])
        .collect()
}

impl Fsck {
    pub(super) async fn find_unreferenced(&mut self, folder: &str) -> Result<()> {
        for file in self.storage.list(folder).await? {
            let path = file.path.as_str();
            if folder == TRANSACTION_PREFIX {
                self.check_saved(path).await?;
                continue;
            }
            let is_unreferenced = match folder {
                ROOT_FOLDER => lakehouse_definition_id(path).is_some() && !self.lakehouse_definitions.contains(path),
                INTENT_PREFIX => intent_file(path).is_none(),
                _ if node_id(path).is_some() => !self.seen.contains_key(&fingerprint(path)),
                _ if definition_id(path).is_some() => !self.locations.contains(&fingerprint(path)),
                _ => true,
            };
            if is_unreferenced {
                let message = "no retained version references it";
                self.findings.push(Finding::new(Kind::Unreferenced, path, message));
            }
        }
        Ok(())
    }

    /// Checks the files that only a saved state references. They may be missing if the state cannot be resumed, because
    /// garbage collection deletes them and an export does not copy them.
    async fn check_saved(&mut self, path: &str) -> Result<()> {
        let Some((id, _)) = transaction_file(path) else {
            self.findings.push(Finding::new(Kind::Unreferenced, path, "its name is not one of a saved transaction"));
            return Ok(());
        };
        let bytes = match self.storage.get(path).await {
            Err(Error::FileNotFound { .. }) => return Ok(()),
            bytes => bytes?,
        };
        let decoded = decode_file(path, &bytes).and_then(|state| {
            DistributedTransactionDef::decode(state).map_err(|error| Error::corrupt(path, error.to_string()))
        });
        let saved = match decoded {
            Ok(saved) if saved.id == id => saved,
            Ok(saved) => {
                let message = format!("it is the state of transaction {:?}, not of {id}", saved.id);
                self.findings.push(Finding::new(Kind::Misplaced, path, message));
                return Ok(());
            }
            Err(error) => {
                let message = format!("not the state of a transaction: {error}");
                self.findings.push(Finding::new(Kind::Damaged, path, message));
                return Ok(());
            }
        };
        let is_alive = self.is_saved_alive(&saved).await?;
        let footprint = Footprint::decode(saved.footprint.as_slice()).unwrap_or_default();
        let own = footprint.writes.into_iter().filter(|write| write.is_own_definition);
        for location in own.filter_map(|write| write.location).chain(footprint.lakehouse_definition) {
            if !self.locations.insert(fingerprint(&location)) {
                continue;
            }
            self.lakehouse_definitions.insert(location.clone());
            let problem = match self.storage.get(&location).await {
                Ok(file) => decode_file(&location, &file).err().map(|error| Finding::of(&error, &location)),
                Err(error @ Error::FileNotFound { .. }) => Some(Finding::of(&error, &location)),
                Err(error) => return Err(error),
            };
            if let Some(mut finding) = problem.filter(|_| is_alive) {
                finding.affected = vec![format!("saved transaction {id}")];
                self.findings.push(finding);
            }
        }
        self.check_running_root(&saved.running_root, id, is_alive).await
    }

    /// Whether a saved transaction can be resumed. It cannot if a version was created after its lifetime.
    async fn is_saved_alive(&self, saved: &DistributedTransactionDef) -> Result<bool> {
        let Some(newest) = &self.listing.intact else { return Ok(true) };
        let key = newest.config.names.transaction_key(&saved.id)?;
        let has_record = match newest.get(&key).await {
            Ok(record) => record.is_some(),
            // The damaged node is reported separately.
            Err(Error::FileNotFound { .. } | Error::CorruptFile { .. }) => false,
            Err(error) => return Err(error),
        };
        let is_too_old = newest.metadata.created_at_millis > saved.expire_at_millis;
        Ok(is_alive(saved, has_record, is_too_old, self.listing.boundary))
    }

    /// Checks the nodes that only the root of a saved transaction references.
    async fn check_running_root(&mut self, path: &str, id: &str, is_alive: bool) -> Result<()> {
        let mut waiting = vec![path.to_string()];
        while let Some(path) = waiting.pop() {
            if path.is_empty() || self.seen.contains_key(&fingerprint(&path)) && node_id(&path).is_some() {
                continue;
            }
            self.mark_referenced(&path);
            let node = match self.nodes.load(&path, None).await {
                Ok(node) => node,
                Err(Error::FileNotFound { .. } | Error::CorruptFile { .. }) if !is_alive => continue,
                Err(error @ (Error::FileNotFound { .. } | Error::CorruptFile { .. })) => {
                    let mut finding = Finding::of(&error, &path);
                    finding.affected = vec![format!("saved transaction {id}")];
                    self.findings.push(finding);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !node.is_leaf() {
                let children = (0..=node.n_keys()).map(|i| node.child(i).to_string());
                waiting.extend(children.filter(|child| !self.seen.contains_key(&fingerprint(child))));
            }
        }
        Ok(())
    }
}

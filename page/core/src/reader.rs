//! Answers questions of the page from the nodes that the page has fetched.

use std::sync::Arc;

use arrow_array::StringArray;
use bytes::Bytes;
use futures::FutureExt;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::{root_path, root_version};
use trinitylake_format::key::{KeyRange, NameSizes, ObjectKind};
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_format::node::{MessageRef, Node};
use trinitylake_tree::scan::Scan;
use trinitylake_tree::search::get_many;
use trinitylake_version::root_metadata::{OPERATION_PROPERTY, RootMetadata, held_definition};
use trinitylake_version::time_travel::AtMoment;

use crate::definitions;
use crate::fetched::Fetched;
use crate::newest::next_step;
use crate::question::{
    Answer, Change, Lakehouse, MomentStep, Name, NodeShown, Question, Reply, Root, Transaction, kind_of,
};

/// Reader of one lakehouse.
#[derive(Debug, Default)]
pub struct Reader {
    nodes: Arc<Fetched>,
    /// Name sizes in the lakehouse definition; they never change.
    names: NameSizes,
}

impl Reader {
    /// Returns the JSON reply to a JSON question. `file` are the bytes that accompany the question, if any.
    pub fn reply(&mut self, question: &[u8], file: Bytes) -> Vec<u8> {
        let answer = serde_json::from_slice(question)
            .map_err(|error| Error::InvalidArgument(format!("that is no question: {error}")))
            .and_then(|question| self.answer(question, file));
        let wanted = self.nodes.take_wanted();
        let reply = match answer {
            _ if !wanted.is_empty() => Reply::Wanted(wanted),
            Ok(answer) => Reply::Answer(answer),
            Err(error) => Reply::Problem { code: code_of(&error), message: error.to_string() },
        };
        serde_json::to_vec(&reply).unwrap_or_default()
    }

    fn answer(&mut self, question: Question, file: Bytes) -> Result<Answer> {
        Ok(match question {
            Question::Keep { path } => {
                self.nodes.keep(&path, file)?;
                Answer::Nothing
            }
            Question::Newest { known, heard } => Answer::Step(next_step(known, &heard)?),
            Question::VersionAt { moment, newest, heard } => {
                let mut search = AtMoment::up_to(newest, moment);
                let mut heard = heard.into_iter();
                loop {
                    match (search.probe(), heard.next()) {
                        (None, _) => break Answer::MomentStep(MomentStep::Version(search.found()?)),
                        (Some(probe), None) => break Answer::MomentStep(MomentStep::Created(probe)),
                        (Some(probe), Some(answer)) => search.learn(answer.map(|created| (probe, created))),
                    }
                }
            }
            Question::RootPath { version } => Answer::Path(root_path(version)),
            Question::Root { root, named } => Answer::Root(Box::new(self.root(&root, named)?)),
            Question::Lakehouse { path } => Answer::Lakehouse(self.lakehouse(&path, &file)?),
            Question::Definition { kind, path } => Answer::Definition(definitions::of(known(&kind)?, &path, &file)?),
            Question::Held { root, kind, path } => match held_definition(self.nodes.get(&root)?.as_ref(), &path) {
                Some(file) => Answer::Definition(definitions::of(known(&kind)?, &path, &file)?),
                None => Answer::Nothing,
            },
            Question::Locate { root, objects } => Answer::Locations(self.locate(&root, &objects)?),
            Question::Objects { root, kind, namespace, start, limit } => {
                let range = self.names.objects_in(known(&kind)?, Some(&namespace.join(".")))?;
                let (found, next) = self.scan(&root, range, start, limit)?;
                Answer::Names { items: found.into_iter().map(|one| one.name).collect(), next }
            }
            Question::Namespaces { root, parent, start, limit } => self.namespaces(&root, &parent, start, limit)?,
            Question::All { root, start, limit } => {
                let objects = KeyRange {
                    start: ObjectKind::Namespace.prefix().to_string(),
                    end: KeyRange::prefix(ObjectKind::View.prefix()).end,
                };
                let (items, next) = self.scan(&root, objects, start, limit)?;
                Answer::Objects { items, next }
            }
            Question::Node { path, children, keys, messages } => {
                Answer::Node(Box::new(self.node(&path, children, keys, messages)?))
            }
            Question::Changes { root } => Answer::Changes(self.changes(&root)?),
        })
    }

    fn metadata(&self, path: &str) -> Result<(Arc<Node>, RootMetadata)> {
        let version = root_version(path).ok_or_else(|| Error::corrupt(path, "not the name of a root"))?;
        let root = self.nodes.get(path)?;
        let metadata = RootMetadata::of(&root, version, path)?;
        Ok((root, metadata))
    }

    fn root(&mut self, path: &str, named: usize) -> Result<Root> {
        let (root, metadata) = self.metadata(path)?;
        let definition = match &metadata.inline_definition {
            Some(file) => Some(self.lakehouse(&metadata.lakehouse_definition, file)?),
            None => None,
        };
        let mut changes: Vec<Vec<Change>> = metadata.committed.iter().map(|_| Vec::new()).collect();
        let mut counts = vec![0; changes.len()];
        for (message, transaction) in metadata.own_messages(&root) {
            let Some(change) = self.change(message) else { continue };
            counts[transaction] += 1;
            if counts[transaction] <= named {
                changes[transaction].push(change);
            }
        }
        let is_told = metadata.messages_tell_changes();
        let rollback_to = metadata.rollback_target();
        let transactions = metadata.committed.into_iter().zip(changes).zip(counts);
        let transactions = transactions.map(|((one, changes), n_changes)| Transaction {
            operation: one.properties.get(OPERATION_PROPERTY).cloned().unwrap_or_default(),
            id: one.id,
            isolation: one.isolation,
            message: one.message,
            summary: one.summary.as_str().to_string(),
            author: one.author,
            began_at_version: one.began_at_version,
            properties: one.properties,
            changes: is_told.then_some(changes),
            n_changes: is_told.then_some(n_changes),
        });
        Ok(Root {
            created_at_millis: metadata.created_at_millis,
            definition_path: metadata.lakehouse_definition,
            definition,
            rollback_from: metadata.rollback_from_root.as_deref().and_then(root_version),
            rollback_to,
            transactions: transactions.collect(),
        })
    }

    fn lakehouse(&mut self, path: &str, file: &Bytes) -> Result<Lakehouse> {
        let definition = LakehouseDefinition::decode_file(file, path)?;
        self.names = definition.name_sizes();
        Ok(Lakehouse::of(&definition))
    }

    fn changes(&self, path: &str) -> Result<Option<Vec<Name>>> {
        let (root, metadata) = self.metadata(path)?;
        let changes = metadata.own_messages(&root).filter_map(|(message, _)| self.change(message));
        Ok(metadata.messages_tell_changes().then(|| changes.map(|change| change.object).collect()))
    }

    /// Returns the change of an object; `None` for records of transactions.
    fn change(&self, message: MessageRef<'_>) -> Option<Change> {
        let object = self.names.decode(message.key).filter(|one| one.kind != ObjectKind::TransactionRecord)?;
        Some(Change { object: object.into(), removes: message.value.is_none() })
    }

    fn locate(&self, root: &str, objects: &[Name]) -> Result<Vec<Option<String>>> {
        let key = |object: &Name| {
            let (kind, namespace, name) = object.parts()?;
            // An object whose name has no key does not exist.
            self.names.key(kind, &namespace, name).ok()
        };
        let keys: StringArray = objects.iter().map(key).collect();
        let found = now(get_many(self.nodes.as_ref(), &self.nodes.get(root)?, &keys))?;
        Ok(found.into_iter().map(|one| one.map(|location| location.as_str().to_string())).collect())
    }

    /// Returns objects from `start` on, and the start of the next page.
    fn scan(
        &self,
        root: &str,
        range: KeyRange,
        start: Option<String>,
        limit: usize,
    ) -> Result<(Vec<Name>, Option<String>)> {
        let keys = self.keys(root, KeyRange { start: start.unwrap_or(range.start), ..range }, limit)?;
        let next = keys.last().filter(|_| keys.len() == limit).map(|last| behind(last));
        let names = keys.iter().filter_map(|key| self.names.decode(key)).map(Name::from).collect();
        Ok((names, next))
    }

    fn keys(&self, root: &str, range: KeyRange, limit: usize) -> Result<Vec<String>> {
        let mut scan = Scan::new(self.nodes.clone(), self.nodes.get(root)?, range, Some(limit), false);
        let mut keys = Vec::new();
        while let Some(batch) = now(scan.next_batch())? {
            keys.extend(batch.keys.iter().flatten().map(str::to_string));
        }
        Ok(keys)
    }

    /// Returns the child namespaces from `start` on. Looks for one after the other, because each may contain any number
    /// of nested namespaces.
    fn namespaces(&self, root: &str, parent: &[String], start: Option<String>, limit: usize) -> Result<Answer> {
        let below = |levels: &[String]| self.names.namespaces_below(Some(levels.join(".").as_str()));
        let all = if parent.is_empty() { self.names.namespaces_below(None)? } else { below(parent)? };
        let mut range = KeyRange { start: start.unwrap_or(all.start), end: all.end };
        let mut items: Vec<Vec<String>> = Vec::new();
        while items.len() < limit {
            let Some(key) = self.keys(root, range.clone(), 1)?.pop() else {
                return Ok(Answer::Names { items, next: None });
            };
            let Some(found) = self.names.decode(&key).map(Name::from) else {
                return Err(Error::corrupt(root, format!("{key:?} is no key of a namespace")));
            };
            let child = Name { kind: found.kind, name: found.name[..parent.len() + 1].to_vec() };
            let is_own = found.name.len() == child.name.len();
            // A namespace sorts before the namespaces that are nested in it, but others may sort between them: `a`,
            // `a-b`, `a.c`.
            let is_listed = !is_own && self.locate(root, std::slice::from_ref(&child))?[0].is_some();
            let nested = below(&child.name)?;
            range.start = nested.end.filter(|_| !is_own).unwrap_or_else(|| behind(&key));
            if !is_listed {
                items.push(child.name);
            }
        }
        Ok(Answer::Names { items, next: Some(range.start) })
    }

    fn node(&self, path: &str, children: usize, keys: usize, messages: usize) -> Result<NodeShown> {
        let (node, size_bytes) = self.nodes.with_size(path)?;
        let n_children = if node.is_leaf() { 0 } else { node.n_keys() + 1 };
        let name = |key: &str| match self.names.decode(key) {
            Some(object) => Name::from(object),
            None => Name { kind: "unknown".to_string(), name: vec![key.to_string()] },
        };
        let first = node.n_messages().saturating_sub(messages);
        let newest = node.messages().skip(first);
        Ok(NodeShown {
            height: node.height().unwrap_or_default(),
            size_bytes,
            n_keys: node.n_keys(),
            n_children,
            n_messages: node.n_messages(),
            children: (0..n_children.min(children)).map(|i| node.child(i).to_string()).collect(),
            keys: (0..node.n_keys().min(keys)).map(|i| name(node.key(i))).collect(),
            messages: newest.map(|one| Change { object: name(one.key), removes: one.value.is_none() }).collect(),
        })
    }
}

fn known(kind: &str) -> Result<ObjectKind> {
    kind_of(kind).ok_or_else(|| Error::InvalidArgument(format!("no kind is {kind}")))
}

/// Returns the smallest string after this key.
fn behind(key: &str) -> String {
    format!("{key}\0")
}

/// Returns the result of a future that never waits, because a missing node is an error.
fn now<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    future.now_or_never().unwrap_or_else(|| Err(Error::InvalidArgument("a question cannot wait".to_string())))
}

/// Returns the HTTP status with which the server would report the error.
fn code_of(error: &Error) -> u16 {
    match error {
        Error::InvalidName(_) | Error::FileNotFound { .. } | Error::NotALakehouse(_) | Error::VersionNotFound(_) => 404,
        Error::VersionExpired(_) => 410,
        Error::InvalidArgument(_) => 400,
        Error::UnsupportedVersion(_) => 501,
        _ => 500,
    }
}

#[cfg(test)]
mod tests;

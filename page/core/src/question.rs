//! Questions of the page and their answers, both as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trinitylake_format::key::{ObjectKind, ObjectName};

/// Paths are those of nodes, `root` that of a version's root. A range of keys begins at `start`, where a list goes on
/// which ended before: the `next` of its last answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Keeps a node; its bytes come with the question.
    Keep { path: String },
    /// The newest version, or what to look for first. `known` is the one that was found last; `heard` is what was found
    /// of the steps that this search had so far, in their order.
    Newest { known: Option<u64>, heard: Vec<Heard> },
    /// The newest version that was created at a moment or before, in milliseconds since 1970, among those up to the newest,
    /// or which to look at first. `heard` says when those were created that this search asked for, in their order; null for
    /// what is not there.
    VersionAt { moment: i64, newest: u64, heard: Vec<Option<u64>> },
    /// Path of the root of a version.
    RootPath { version: u64 },
    /// Metadata of a root, with at most this many changes of each transaction.
    Root { root: String, named: usize },
    /// What the definition of a lakehouse says; its bytes come with the question. It counts from then on.
    Lakehouse { path: String },
    /// Content of the definition of an object; the bytes of its file come with the question.
    Definition { kind: String, path: String },
    /// The same of the definition with this path, whose file may not be there, if a root holds it (format §4); else null.
    Held { root: String, kind: String, path: String },
    /// The locations of definitions, null for what is not there.
    Locate { root: String, objects: Vec<Name> },
    /// Tables or views of a namespace.
    Objects { root: String, kind: String, namespace: Vec<String>, start: Option<String>, limit: usize },
    /// The namespaces that are directly below another one, or below none.
    Namespaces { root: String, parent: Vec<String>, start: Option<String>, limit: usize },
    /// Namespaces, tables and views in the order of their keys.
    All { root: String, start: Option<String>, limit: usize },
    /// One node of a tree, as it is drawn, with at most so many children, keys and messages.
    Node { path: String, children: usize, keys: usize, messages: usize },
    /// All objects that a version changed; null where only a comparison of trees can tell.
    Changes { root: String },
}

/// Answers of the page to a [`Step`].
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heard {
    /// The content of the hint, or its beginning; null if it is not there.
    Hint(Option<String>),
    /// Whether each of the files is there.
    Exist(Vec<bool>),
}

/// Next step of the search for the newest version.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Fetch this file, as it is now.
    Hint(String),
    /// Ask whether these files are there, all at once.
    Exist(Vec<String>),
    /// Nothing more: this is the newest version.
    Newest(u64),
}

/// Next step of the search for the version at a moment.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MomentStep {
    /// Ask when this version was created.
    Created(u64),
    /// Nothing more: this is the version.
    Version(u64),
}

/// A kind of object by its word, and its name, level by level.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Name {
    pub kind: String,
    pub name: Vec<String>,
}

impl From<ObjectName> for Name {
    fn from(object: ObjectName) -> Name {
        let levels = object.namespace.split('.').filter(|level| !level.is_empty()).map(str::to_string);
        let own = Some(object.name).filter(|name| !name.is_empty());
        Name { kind: object.kind.word().to_string(), name: levels.chain(own).collect() }
    }
}

impl Name {
    /// Kind, namespace and name, as keys are made of them.
    pub fn parts(&self) -> Option<(ObjectKind, String, &str)> {
        let kind = kind_of(&self.kind)?;
        if kind == ObjectKind::Namespace {
            return Some((kind, self.name.join("."), ""));
        }
        let (name, namespace) = self.name.split_last()?;
        Some((kind, namespace.join("."), name))
    }
}

/// The inverse of [`ObjectKind::word`].
pub fn kind_of(word: &str) -> Option<ObjectKind> {
    ObjectKind::ALL.into_iter().find(|kind| kind.word() == word)
}

/// The answer, the nodes that the page has to fetch first, or an error.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    Answer(Answer),
    Wanted(Vec<String>),
    Problem { code: u16, message: String },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    Nothing,
    Path(String),
    Step(Step),
    MomentStep(MomentStep),
    Root(Box<Root>),
    Lakehouse(Lakehouse),
    Definition(serde_json::Value),
    Locations(Vec<Option<String>>),
    Names { items: Vec<Vec<String>>, next: Option<String> },
    Objects { items: Vec<Name>, next: Option<String> },
    Node(Box<NodeShown>),
    Changes(Option<Vec<Name>>),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Root {
    pub created_at_millis: u64,
    /// The path of the definition, and the definition if the root has it in it.
    pub definition_path: String,
    pub definition: Option<Lakehouse>,
    pub rollback_from: Option<u64>,
    pub rollback_to: Option<u64>,
    pub transactions: Vec<Transaction>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Transaction {
    pub id: String,
    pub isolation: String,
    pub message: String,
    pub summary: String,
    pub author: String,
    pub operation: String,
    pub began_at_version: u64,
    pub properties: BTreeMap<String, String>,
    /// The first changes, and how many there are; null where only a comparison of trees can tell.
    pub changes: Option<Vec<Change>>,
    pub n_changes: Option<usize>,
}

/// Whether a name that was set had been there before, a message does not say.
#[derive(Debug, Serialize)]
pub struct Change {
    #[serde(flatten)]
    pub object: Name,
    pub removes: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Lakehouse {
    pub name: String,
    pub properties: BTreeMap<String, String>,
    /// Versions by the names of their snapshots.
    pub snapshots: serde_json::Map<String, serde_json::Value>,
    /// Where it lies and lay, as locations in Iceberg's metadata begin; the longest that fits counts.
    pub roots: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeShown {
    pub height: u32,
    pub size_bytes: usize,
    pub n_keys: usize,
    pub n_children: usize,
    pub n_messages: usize,
    pub children: Vec<String>,
    pub keys: Vec<Name>,
    /// The newest.
    pub messages: Vec<Change>,
}

//! Questions of the page and their answers, both as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trinitylake_format::key::{ObjectKind, ObjectName};

/// A question of the page. `path` is the path of a node, `root` the path of a version's root. A list continues at
/// `start`, which is the `next` of its last answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Stores a node. The bytes of its file accompany the question.
    Keep { path: String },
    /// Asks for the newest version. The answer is the version, or the next request of the search. `known` is the result
    /// of the last search; `heard` contains the answers to the requests of this search, in order.
    Newest { known: Option<u64>, heard: Vec<Heard> },
    /// Asks for the newest version up to `newest` that was created at `moment` (milliseconds since 1970) or before. The
    /// answer is the version, or the next request of the search. `heard` contains the creation times that this search
    /// requested, in order; null for a missing version.
    VersionAt { moment: i64, newest: u64, heard: Vec<Option<u64>> },
    /// Path of the root of a version.
    RootPath { version: u64 },
    /// Metadata of a root, with at most this many changes of each transaction.
    Root { root: String, named: usize },
    /// Content of a lakehouse definition, whose bytes accompany the question. Later answers use this definition.
    Lakehouse { path: String },
    /// Content of the definition of an object. The bytes of its file accompany the question.
    Definition { kind: String, path: String },
    /// Content of the definition with this path if the root contains it (format §4); otherwise null. The file of the
    /// definition need not exist.
    Held { root: String, kind: String, path: String },
    /// The locations of definitions; null for objects that do not exist.
    Locate { root: String, objects: Vec<Name> },
    /// Tables or views of a namespace.
    Objects { root: String, kind: String, namespace: Vec<String>, start: Option<String>, limit: usize },
    /// The namespaces directly below another namespace, or at the top level.
    Namespaces { root: String, parent: Vec<String>, start: Option<String>, limit: usize },
    /// Namespaces, tables and views in the order of their keys.
    All { root: String, start: Option<String>, limit: usize },
    /// One node of a tree for the drawing, with at most this number of children, keys and messages.
    Node { path: String, children: usize, keys: usize, messages: usize },
    /// All objects that a version changed; null if only a comparison of trees shows them.
    Changes { root: String },
}

/// Answers of the page to a [`Step`].
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heard {
    /// The content of the hint, or its beginning; null if the file does not exist.
    Hint(Option<String>),
    /// For each file, whether it exists.
    Exist(Vec<bool>),
}

/// Next step of the search for the newest version.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Fetch this file without a cache.
    Hint(String),
    /// Check in parallel whether these files exist.
    Exist(Vec<String>),
    /// The search is finished: this is the newest version.
    Newest(u64),
}

/// Next step of the search for the version at a moment.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MomentStep {
    /// Request the creation time of this version.
    Created(u64),
    /// The search is finished: this is the version.
    Version(u64),
}

/// The kind and the name of an object. The name is a list of its levels: the parts of the namespace, then the name in
/// it.
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
    /// Returns the parts of the object's key: kind, namespace and name.
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
    /// The path of the lakehouse definition, and its content if the root contains it.
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
    /// The first changes and the number of all changes; null if only a comparison of trees shows them.
    pub changes: Option<Vec<Change>>,
    pub n_changes: Option<usize>,
}

/// A change of an object by a version. It does not show whether the object existed before, because the message in the
/// root does not.
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
    /// The tagged versions, by the names of their tags.
    pub snapshots: serde_json::Map<String, serde_json::Value>,
    /// Recorded and former root URIs, as prefixes of locations in Iceberg's metadata, longest first. The first one that
    /// matches applies.
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
    /// The newest messages.
    pub messages: Vec<Change>,
}

//! Answers of the reader, compared with expected lists for random trees.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use prost::Message as _;
use serde_json::{Value, json};
use trinitylake_format::definition_file::encode_file;
use trinitylake_format::file_names::definition_path;
use trinitylake_format::lakehouse_definition::proto::{LakehouseDef, NamespaceDef};
use trinitylake_format::node::codec::{Compression, encode};
use trinitylake_format::node::mutable_node::{Message, MutableNode, Row};

use super::*;

const ORDER: usize = 4;
const ROOT: &str = "_00000000000000000000000000000000.arrow";

/// The files of one version, and a reader that gets them as the page would fetch them.
#[derive(Default)]
struct Files {
    files: BTreeMap<String, Bytes>,
    reader: Reader,
    rounds: usize,
}

impl Files {
    fn put(&mut self, path: &str, system: &[(&str, String)], draft: &MutableNode) {
        let bytes = encode(system, draft, ORDER, Compression::Zstd).unwrap().bytes;
        self.files.insert(path.to_string(), bytes);
    }

    /// Asks a question like the page: fetches the files that the reply lists, and asks again.
    fn ask(&mut self, question: &Value) -> Result<Value, String> {
        for _ in 0..1000 {
            let reply = self.reply_to(question, Bytes::new());
            let Some(wanted) = reply.get("wanted") else {
                return match reply.get("problem") {
                    Some(problem) => Err(problem["message"].to_string()),
                    None => Ok(reply["answer"].clone()),
                };
            };
            self.rounds += 1;
            for path in wanted.as_array().unwrap() {
                let path = path.as_str().unwrap();
                let reply = self.reply_to(&json!({ "keep": { "path": path } }), self.files[path].clone());
                if let Some(problem) = reply.get("problem") {
                    return Err(problem["message"].to_string());
                }
            }
        }
        panic!("it wants more and more");
    }

    fn reply_to(&mut self, question: &Value, file: Bytes) -> Value {
        let question = serde_json::to_vec(question).unwrap();
        serde_json::from_slice(&self.reader.reply(&question, file)).unwrap()
    }
}

/// A tree of two levels with namespaces. The root has messages that are not flushed yet: `dropped` are deleted, `late`
/// are created.
fn lakehouse(namespaces: &BTreeSet<String>, dropped: &BTreeSet<String>, late: &BTreeSet<String>) -> Files {
    let names = NameSizes::default();
    let key = |name: &String| names.namespace_key(name).unwrap();
    let rows: Vec<Row> =
        namespaces.iter().map(|name| Row { key: key(name).as_str().into(), value: "n.binpb".into() }).collect();
    let mut files = Files::default();
    let (mut separators, mut children) = (Vec::new(), Vec::new());
    let mut rest = rows.into_iter().peekable();
    while children.is_empty() || rest.peek().is_some() {
        let rows: Vec<Row> = rest.by_ref().take(ORDER - 1).collect();
        let path = format!("leaf-{}.arrow", children.len());
        files.put(&path, &[], &MutableNode { rows, ..MutableNode::default() });
        children.push(path.as_str().into());
        if children.len() == ORDER {
            break;
        }
        match rest.next() {
            Some(separator) => separators.push(separator),
            None => break,
        }
    }
    children.truncate(separators.len() + 1);
    if children.len() == separators.len() {
        files.put("leaf-last.arrow", &[], &MutableNode::default());
        children.push("leaf-last.arrow".into());
    }
    let message = |name: &String, value: Option<&str>| {
        Message::new(key(name).as_str().into(), value.map(Into::into), "txn".into())
    };
    let buffer =
        late.iter().map(|name| message(name, Some("late.binpb"))).chain(dropped.iter().map(|name| message(name, None)));
    let definition = LakehouseDefinition::encode(LakehouseDef { order: ORDER as u32, ..LakehouseDef::default() });
    let hexadecimal: String = definition.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let committed = json!([{ "id": "txn", "message": "all of it" }]).to_string();
    let system = [
        ("lakehouse_def", "d.binpb".to_string()),
        ("lakehouse_def_inline", hexadecimal),
        ("created_at_millis", "17".to_string()),
        ("commit_id", "c".to_string()),
        ("committed_txns", committed),
    ];
    files.put(ROOT, &system, &MutableNode { height: 1, rows: separators, children, buffer: buffer.collect() });
    files
}

fn all_children(files: &mut Files, parent: &[&str], limit: usize) -> Vec<Vec<String>> {
    let (mut found, mut start) = (Vec::new(), Value::Null);
    loop {
        let question = json!({ "namespaces": { "root": ROOT, "parent": parent, "start": start, "limit": limit } });
        let mut page = files.ask(&question).unwrap();
        found.extend(serde_json::from_value::<Vec<Vec<String>>>(page["items"].take()).unwrap());
        start = page["next"].take();
        if start.is_null() {
            return found;
        }
    }
}

proptest! {
    /// The pages of a list of namespaces contain every namespace once, also if other names sort between a namespace and
    /// its nested namespaces, such as `a-b` between `a` and `a.c`.
    #[test]
    fn namespaces_are_those_of_a_plain_set(
        first in prop::collection::btree_set("[ab](-[ab])?(\\.[ab](-[ab])?){0,2}", 0..11),
        dropped in prop::collection::btree_set("[ab](-[ab])?(\\.[ab])?", 0..4),
        late in prop::collection::btree_set("[ab](\\.[ab]){0,2}", 0..4),
        limit in 1..4usize,
    ) {
        let late: BTreeSet<String> = late.difference(&dropped).cloned().collect();
        let there: BTreeSet<String> = first.iter().filter(|name| !dropped.contains(*name)).chain(&late).cloned().collect();
        let mut files = lakehouse(&first, &dropped, &late);
        for parent in [&[][..], &["a"], &["a", "b"]] {
            let expected: BTreeSet<Vec<String>> = there
                .iter()
                .map(|name| name.split('.').map(str::to_string).collect::<Vec<String>>())
                .filter(|levels| levels.len() > parent.len() && levels.iter().zip(parent).all(|(a, b)| a == b))
                .map(|levels| levels[..=parent.len()].to_vec())
                .collect();
            let found = all_children(&mut files, parent, limit);
            prop_assert_eq!(found.len(), expected.len(), "{:?} of {:?}", found, expected);
            prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
        }
        let objects: Vec<Value> = there.iter().chain(&dropped).map(|name| json!({
            "kind": "namespace", "name": name.split('.').collect::<Vec<_>>(),
        })).collect();
        let located = files.ask(&json!({ "locate": { "root": ROOT, "objects": objects } })).unwrap();
        let is_there: Vec<bool> = located.as_array().unwrap().iter().map(|one| !one.is_null()).collect();
        prop_assert_eq!(is_there, there.iter().chain(&dropped).map(|name| there.contains(name)).collect::<Vec<_>>());
    }

    /// Any question and any bytes of a file get a reply. Other people wrote the files, so they may contain anything.
    #[test]
    fn any_bytes_end_in_a_reply(question in ".{0,40}", file in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut files = Files::default();
        for question in [Value::from(question.clone()), json!({ "definition": { "kind": "table", "path": "a" } }), json!({ "definition": { "kind": "view", "path": "a" } }), json!({ "lakehouse": { "path": "a" } }), json!({ "keep": { "path": question } })] {
            let reply = files.reply_to(&question, file.clone().into());
            prop_assert!(reply.get("problem").is_some() || reply.get("answer").is_some());
        }
    }
}

#[test]
fn a_root_says_what_its_version_did() {
    let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<String>>();
    let mut files = lakehouse(&set(&["a", "b"]), &set(&["a"]), &set(&["c"]));
    let root = files.ask(&json!({ "root": { "root": ROOT, "named": 1 } })).unwrap();
    assert_eq!(root["created-at-millis"], 17);
    assert_eq!(root["definition"]["name"], "");
    let transaction = &root["transactions"][0];
    assert_eq!((transaction["message"].as_str(), transaction["n-changes"].as_u64()), (Some("all of it"), Some(2)));
    assert_eq!(transaction["changes"], json!([{ "kind": "namespace", "name": ["c"], "removes": false }]));
    let changes = files.ask(&json!({ "changes": { "root": ROOT } })).unwrap();
    assert_eq!(changes.as_array().unwrap().len(), 2);
    // The reader needed only the root.
    assert_eq!(files.rounds, 1);
}

/// A definition is read from the root if the root contains it. Otherwise, if a writer died before it wrote the file,
/// the page would report a missing definition.
#[test]
fn a_definition_is_read_from_the_root_that_holds_it() {
    let definition = NamespaceDef { properties: [("owner".into(), "me".into())].into(), ..NamespaceDef::default() };
    let path = |number| definition_path(ObjectKind::Namespace, "shop", "", uuid::Uuid::from_u128(number), 200);
    let (held, exchanged) = (path(7), path(8));
    let file = encode_file(&held, &definition.encode_to_vec());
    let hexadecimal: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines = [&held, &exchanged].map(|path| format!("{path}\t{hexadecimal}\n"));
    let mut files = Files::default();
    let system = [("lakehouse_def", "d.binpb".to_string()), ("definitions_inline", lines.concat())];
    files.put(ROOT, &system, &MutableNode::default());
    let mut reply_to =
        |kind: &str, path: &str| files.ask(&json!({ "held": { "root": ROOT, "kind": kind, "path": path } }));
    assert_eq!(reply_to("namespace", &held), Ok(json!({ "properties": { "owner": "me" } })));
    // A definition of another path, a definition that the root does not contain, and kinds without definitions.
    assert_eq!(reply_to("namespace", &exchanged), Ok(Value::Null));
    assert_eq!(reply_to("namespace", "n.binpb"), Ok(Value::Null));
    for kind in ["transaction", "castle"] {
        assert!(reply_to(kind, &held).is_err(), "{kind}");
    }
}

/// An empty, damaged or exchanged file is an error. Otherwise the page would show an empty file as a namespace without
/// properties, or as a table without columns.
#[test]
fn empty_damaged_and_exchanged_files_are_no_definitions() {
    let path = "0000/0000/0000/00000000-n.binpb";
    let file = encode_file(path, &NamespaceDef::default().encode_to_vec());
    let mut damaged = file.to_vec();
    damaged[3] ^= 1;
    for kind in ["namespace", "table", "view"] {
        for (path, file) in [(path, Bytes::new()), (path, damaged.clone().into()), ("other.binpb", file.clone())] {
            let reply = Files::default().reply_to(&json!({ "definition": { "kind": kind, "path": path } }), file);
            assert_eq!(reply["problem"]["code"], 500, "{kind}: {reply}");
        }
    }
    let whole = Files::default().reply_to(&json!({ "definition": { "kind": "namespace", "path": path } }), file);
    assert_eq!(whole["answer"], json!({ "properties": {} }));
}

/// A node that is its own child ends in an error. Otherwise the reader would follow it forever.
#[test]
fn a_cycle_ends() {
    let mut files = lakehouse(&BTreeSet::new(), &BTreeSet::new(), &BTreeSet::new());
    let children = vec!["leaf-0.arrow".into()];
    files.put("leaf-0.arrow", &[], &MutableNode { height: 1, children, ..MutableNode::default() });
    let error = files.ask(&json!({ "all": { "root": ROOT, "start": null, "limit": 9 } })).unwrap_err();
    assert!(error.contains("height"), "{error}");
}

/// The search for the version at a time ends after a few requests with the same result as in the library.
#[test]
fn the_version_of_a_moment_is_asked_for_step_by_step() {
    let mut reader = Reader::default();
    let mut search = |moment: i64, created: &dyn Fn(u64) -> Option<u64>| {
        let mut heard: Vec<Option<u64>> = Vec::new();
        loop {
            assert!(heard.len() < 12, "{heard:?}");
            let question = json!({ "version-at": { "moment": moment, "newest": 300, "heard": heard } });
            let reply: Value =
                serde_json::from_slice(&reader.reply(&serde_json::to_vec(&question).unwrap(), Bytes::new())).unwrap();
            match reply["answer"]["created"].as_u64() {
                Some(version) => heard.push(created(version)),
                None => return reply,
            }
        }
    };
    let all = |version| Some(10 * version);
    for moment in (0..3100).step_by(7) {
        let expected = 300.min(moment / 10);
        assert_eq!(search(moment, &all), json!({ "answer": { "version": expected } }));
    }
    assert_eq!(search(-1, &all)["problem"]["code"], 404);
    let kept = |version| (version >= 40).then_some(10 * version);
    assert_eq!(search(400, &kept), json!({ "answer": { "version": 40 } }));
    let problem = &search(399, &kept)["problem"];
    assert_eq!(problem["code"], 410);
    assert!(problem["message"].as_str().unwrap().contains("the oldest kept is 40"), "{problem}");
}

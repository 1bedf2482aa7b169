//! Trees whose files are intact but do not fit together. Every reader ends with an error that names a file, and a walk
//! through the whole tree reports a problem.

use std::sync::Arc;

use arrow_array::StringArray;

use super::model::config;
use crate::MAX_HEIGHT;
use crate::apply_changes::apply_changes;
use crate::diff::diff;
use crate::invariant::walk;
use crate::node_cache::CACHE_SIZE_BYTES;
use crate::node_store::NodeStore;
use crate::scan::Scan;
use crate::search::{get, get_many};
use trinitylake_base::environment::testing::TestEnvironment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::key::KeyRange;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::{decode_batch, encode, encode_batch};
use trinitylake_format::node::mutable_node::{Message, MutableNode, Row};
use trinitylake_storage::memory_files::MemoryFiles;

const ORDER: usize = 4;

struct Tree {
    files: Arc<MemoryFiles>,
    root: Arc<Node>,
}

fn row(key: &str) -> Row {
    Row { key: key.into(), value: "v".into() }
}

fn leaf(keys: &[&str]) -> MutableNode {
    MutableNode { rows: keys.iter().map(|key| row(key)).collect(), ..MutableNode::default() }
}

fn inner(height: u32, keys: &[&str], children: &[&str]) -> MutableNode {
    let children = children.iter().map(|child| (*child).into()).collect();
    MutableNode { height, children, ..leaf(keys) }
}

/// Whether a writer records the height of its nodes, which the format does not require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heights {
    Recorded,
    Absent,
}

fn file(draft: &MutableNode, order: usize, heights: Heights) -> bytes::Bytes {
    let encoded = encode(&[], draft, order, Default::default()).unwrap();
    if heights == Heights::Recorded {
        return encoded.bytes;
    }
    let batch = decode_batch(encoded.bytes, "p").unwrap();
    // `n_keys` and `height` are the first two rows; the second is removed.
    let rest = batch.slice(2, batch.num_rows() - 2);
    let kept = [batch.slice(0, 1), rest];
    let columns = (0..4).map(|i| {
        let parts = kept.each_ref().map(|part| part.column(i).as_ref());
        arrow_select::concat::concat(&parts).unwrap()
    });
    let batch = arrow_array::RecordBatch::try_new(batch.schema(), columns.collect()).unwrap();
    encode_batch(&batch, Default::default()).unwrap()
}

impl Tree {
    fn new(root: MutableNode, nodes: &[(&str, MutableNode)], heights: Heights) -> Tree {
        let files = MemoryFiles::shared();
        for (path, draft) in nodes {
            files.overwrite(path, file(draft, ORDER, heights));
        }
        let root = trinitylake_format::node::codec::decode(file(&root, ORDER, heights), "root", None).unwrap();
        Tree { files, root: Arc::new(root) }
    }

    fn nodes(&self) -> Arc<NodeStore> {
        Arc::new(NodeStore::new(self.files.clone(), CACHE_SIZE_BYTES))
    }

    async fn problems(&self) -> Result<Vec<String>> {
        Ok(walk(&self.nodes(), &self.root, "root").await?.problems)
    }

    /// Runs all operations on a tree and returns their results: lookups of the key, a scan, a diff, a commit.
    async fn use_it(&self, key: &str) -> [Result<()>; 5] {
        let keys = StringArray::from(vec![key, "a", "zz"]);
        let empty = encode(&[], &MutableNode::default(), ORDER, Default::default()).unwrap().node;
        let scan = async {
            let mut scan = Scan::new(self.nodes(), self.root.clone(), KeyRange::all(), None, true);
            while scan.next_batch().await?.is_some() {}
            Ok(())
        };
        let commit = async {
            // The buffer of the root is full: its messages are flushed into every child.
            let environment = TestEnvironment::seeded(1);
            let change = Message::new(key.into(), None, "t".into());
            let config = config(ORDER, 0, 0, 1024);
            apply_changes(&self.nodes(), environment.as_ref(), &config, &self.root, vec![change], 0).await.map(drop)
        };
        [
            get(&self.nodes(), &self.root, key).await.map(drop),
            get_many(&self.nodes(), &self.root, &keys).await.map(drop),
            scan.await,
            diff(&self.nodes(), &Arc::new(empty), &self.root).await.map(drop),
            commit.await,
        ]
    }
}

#[track_caller]
fn assert_corrupt(results: [Result<()>; 5]) {
    for (i, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::CorruptFile { .. })), "use {i}: {result:?}");
    }
}

fn message(key: &str) -> Message {
    Message::new(key.into(), Some("w".into()), "old".into())
}

#[tokio::test]
async fn an_intact_tree_has_no_problems() {
    for heights in [Heights::Recorded, Heights::Absent] {
        let nodes = [
            ("n/x", inner(1, &["c"], &["l/1", "l/2"])),
            ("n/y", inner(1, &[], &["l/3"])),
            ("l/1", leaf(&["a"])),
            ("l/2", leaf(&["d", "e"])),
            ("l/3", leaf(&["n"])),
        ];
        let mut root = inner(2, &["m"], &["n/x", "n/y"]);
        root.buffer = vec![message("b"), message("p")];
        let tree = Tree::new(root, &nodes, heights);
        assert!(tree.problems().await.unwrap().is_empty(), "{heights:?}");
        assert!(tree.use_it("d").await.iter().all(Result::is_ok), "{heights:?}");
    }
}

/// Readers end with an error on a node that is its own child, and on two nodes that are children of each other.
#[tokio::test]
async fn mode_35_cycles_end_in_an_error() {
    for heights in [Heights::Recorded, Heights::Absent] {
        let mut root = inner(2, &[], &["n/x"]);
        root.buffer = vec![message("b")];
        let own_child = Tree::new(root.clone(), &[("n/x", inner(1, &["c"], &["n/x", "n/x"]))], heights);
        let each_other = [("n/x", inner(1, &[], &["n/y"])), ("n/y", inner(1, &[], &["n/x"]))];
        let each_other = Tree::new(root, &each_other, heights);
        for tree in [own_child, each_other] {
            assert_corrupt(tree.use_it("d").await);
            let problems = tree.problems().await;
            assert!(problems.is_err() || problems.is_ok_and(|problems| !problems.is_empty()));
        }
    }
}

/// Readers also end with an error if the cycle is not on the leftmost path, from which readers determine the height of
/// the tree.
#[tokio::test]
async fn mode_35_a_cycle_next_to_an_intact_branch_ends_in_an_error() {
    for heights in [Heights::Recorded, Heights::Absent] {
        let mut root = inner(2, &["m"], &["n/x", "n/y"]);
        root.buffer = vec![message("b"), message("p"), message("q"), message("r")];
        let nodes =
            [("n/x", inner(1, &[], &["l/1"])), ("l/1", leaf(&["a"])), ("n/y", inner(1, &["o"], &["n/y", "n/y"]))];
        let tree = Tree::new(root, &nodes, heights);
        assert_corrupt(tree.use_it("s").await);
        assert!(tree.problems().await.is_err(), "{heights:?}");
    }
}

#[tokio::test]
async fn mode_35_a_wrong_height_is_an_error() {
    let deep = inner(2, &["m"], &["n/x", "n/y"]);
    let mut root = deep.clone();
    root.buffer = vec![message("b"), message("p"), message("q")];
    // A leaf, and a node of height 3, in the place of a node of height 1.
    for wrong in [leaf(&["p"]), inner(3, &[], &["l/1"])] {
        let nodes = [("n/x", inner(1, &[], &["l/1"])), ("l/1", leaf(&["a"])), ("n/y", wrong)];
        let tree = Tree::new(root.clone(), &nodes, Heights::Recorded);
        assert_corrupt(tree.use_it("s").await);
        assert!(matches!(tree.problems().await, Err(Error::CorruptFile { path, .. }) if path == "n/y"));
    }
}

#[tokio::test]
async fn mode_35_a_shared_child_is_a_problem() {
    for heights in [Heights::Recorded, Heights::Absent] {
        let tree = Tree::new(inner(1, &["m"], &["l/1", "l/1"]), &[("l/1", leaf(&["a"]))], heights);
        let problems = tree.problems().await.unwrap();
        assert!(problems.iter().any(|problem| problem == "l/1: has two parents"), "{problems:?}");
    }
}

/// Nodes that are shared on every level are read only once. In this tree every node has the same child four times, so a
/// walk along every path would visit the leaf 4^38 times.
#[tokio::test]
async fn mode_35_children_shared_on_every_level_are_read_once() {
    let height = MAX_HEIGHT - 1;
    let names: Vec<String> = (0..height).map(|i| format!("n/{i}")).collect();
    let mut nodes = vec![(names[0].as_str(), leaf(&["c"]))];
    for level in 1..height {
        let below = names[level as usize - 1].as_str();
        nodes.push((&names[level as usize], inner(level, &["a", "b", "d"], &[below; 4])));
    }
    let top = names[height as usize - 1].as_str();
    let tree = Tree::new(inner(height, &["a"], &[top, top]), &nodes, Heights::Recorded);
    let empty = encode(&[], &MutableNode::default(), ORDER, Default::default()).unwrap().node;
    diff(&tree.nodes(), &Arc::new(empty), &tree.root).await.unwrap();
    let problems = tree.problems().await.unwrap();
    assert!(problems.iter().any(|problem| problem.contains("two parents")));
}

#[tokio::test]
async fn keys_and_messages_outside_of_their_range_are_problems() {
    let root = inner(1, &["m"], &["l/1", "l/2"]);
    let sound = [("l/1", leaf(&["a"])), ("l/2", leaf(&["n"]))];
    for (path, draft) in [
        ("l/1", leaf(&["a", "z"])),
        ("l/1", leaf(&["m"])),
        ("l/2", leaf(&["b"])),
        ("l/2", MutableNode { buffer: vec![message("c")], ..leaf(&["n"]) }),
    ] {
        let mut nodes = sound.to_vec();
        nodes.push((path, draft));
        let problems = Tree::new(root.clone(), &nodes, Heights::Recorded).problems().await.unwrap();
        assert!(problems.iter().any(|problem| problem.contains("outside of the node's range")), "{problems:?}");
    }
}

/// Readers accept a node of another order, and a walk through the tree reports it.
#[tokio::test]
async fn mode_36_a_node_of_another_order_is_a_problem() {
    let tree = Tree::new(inner(1, &["m"], &["l/1", "l/2"]), &[("l/1", leaf(&["a"]))], Heights::Recorded);
    tree.files.overwrite("l/2", file(&leaf(&["n"]), ORDER + 2, Heights::Recorded));
    assert_eq!(get(&tree.nodes(), &tree.root, "n").await.unwrap().as_deref(), Some("v"));
    let problems = tree.problems().await.unwrap();
    assert_eq!(problems, ["l/2: its key table has 6 rows, the root's 4"]);
}

#[tokio::test]
async fn a_missing_or_damaged_node_is_an_error_that_names_it() {
    let tree = Tree::new(inner(1, &["m"], &["l/1", "l/2"]), &[("l/1", leaf(&["a"]))], Heights::Recorded);
    assert!(matches!(get(&tree.nodes(), &tree.root, "n").await, Err(Error::CorruptFile { path, .. }) if path == "l/2"));
    tree.files.overwrite("l/2", "ARROW1 but no more");
    assert!(matches!(get(&tree.nodes(), &tree.root, "n").await, Err(Error::CorruptFile { path, .. }) if path == "l/2"));
    assert_eq!(get(&tree.nodes(), &tree.root, "a").await.unwrap().as_deref(), Some("v"));
}

//! A tree that several workers build equals the tree of one worker, however the rows are distributed.

use std::sync::Arc;

use arrow_array::StringArray;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::model::{Changes, Dictionary, Model, config};
use crate::bulk_build::{Level, NodeWriter, build};
use crate::distributed_bulk_build::{LEAVES_CHECKED, Leaf, LeafWriter, LooseRow, assemble};
use trinitylake_base::error::Error;
use trinitylake_format::node::Node;
use trinitylake_format::node::codec::encode;
use trinitylake_format::node::mutable_node::{MutableNode, Row};

fn dictionary(count: usize) -> Dictionary {
    (0..count).map(|i| (format!("k{i:06}"), format!("v{i}"))).collect()
}

fn empty(order: usize, seed: u64) -> Model {
    Model::empty(config(order, 200, 200, 2000), seed)
}

fn writer(model: &Model) -> NodeWriter<'_> {
    NodeWriter { storage: model.files.as_ref(), environment: model.environment.as_ref(), config: &model.config }
}

fn rows(dictionary: &Dictionary) -> Vec<Row> {
    dictionary.iter().map(|(key, value)| Row { key: key.as_str().into(), value: value.as_str().into() }).collect()
}

/// Returns the leaves and loose rows of several workers in random order. The rows of the workers end at `cuts`, and
/// each worker gets them in batches of random sizes.
async fn parts(model: &Model, rows: &[Row], cuts: &[usize], random: &mut StdRng) -> (Vec<Leaf>, Vec<LooseRow>) {
    let (mut leaves, mut loose) = (Vec::new(), Vec::new());
    let mut first = 0;
    for end in cuts.iter().copied().chain([rows.len()]) {
        let mut worker = LeafWriter::new(rows.len(), model.config.order, first);
        while first < end {
            let until = random.random_range(first + 1..=end);
            leaves.extend(worker.push(&writer(model), rows[first..until].to_vec()).await.unwrap());
            first = until;
        }
        loose.extend(worker.finish());
    }
    leaves.shuffle(random);
    loose.shuffle(random);
    (leaves, loose)
}

async fn assembled(model: &Model, rows: usize, parts: (Vec<Leaf>, Vec<LooseRow>)) -> Result<MutableNode, Error> {
    assemble(&model.nodes, &writer(model), rows, parts.0, parts.1).await
}

/// Content of a node and of its children, without their paths.
#[derive(Debug, PartialEq)]
struct Content {
    height: Option<u32>,
    rows: Vec<(String, String)>,
    children: Vec<Content>,
}

async fn content(model: &Model, root: &MutableNode) -> Content {
    let order = model.config.order;
    let root = Arc::new(encode(&[], root, order, model.config.compression).unwrap().node);
    Box::pin(content_of(model, root)).await
}

async fn content_of(model: &Model, node: Arc<Node>) -> Content {
    let mut children = Vec::new();
    for i in 0..if node.is_leaf() { 0 } else { node.n_keys() + 1 } {
        let child = model.nodes.load(node.child(i), None).await.unwrap();
        children.push(Box::pin(content_of(model, child)).await);
    }
    let rows = (0..node.n_keys()).map(|i| (node.key(i).to_string(), node.value(i).to_string())).collect();
    Content { height: node.height(), rows, children }
}

#[tokio::test]
async fn the_tree_of_many_workers_equals_that_of_one() {
    let mut random = StdRng::seed_from_u64(7);
    for order in 3..=8 {
        let around = |size: usize| size.saturating_sub(1)..=size + 1;
        let counts = (0..2 * order).chain(around(order * order)).chain(around(order.pow(3))).chain([700]);
        for count in counts {
            let dictionary = dictionary(count);
            let all = rows(&dictionary);
            let model = empty(order, count as u64);
            let keys = StringArray::from_iter_values(dictionary.keys());
            let locations = StringArray::from_iter_values(dictionary.values());
            let one = build(&writer(&model), &keys, &locations).await.unwrap();
            for workers in [1, 2, 3, 17] {
                // Some workers have no rows, some fewer than a leaf.
                let mut cuts: Vec<usize> = (1..workers).map(|_| random.random_range(0..=count)).collect();
                cuts.sort_unstable();
                println!("order {order}, {count} keys, cut at {cuts:?}");
                let parts = parts(&model, &all, &cuts, &mut random).await;
                let many = assembled(&model, count, parts).await.unwrap();
                assert_eq!(content(&model, &many).await, content(&model, &one).await);
            }
        }
    }
}

#[tokio::test]
async fn commits_continue_from_a_tree_of_many_workers() {
    let mut random = StdRng::seed_from_u64(9);
    let (count, dictionary) = (900, dictionary(900));
    let model = empty(5, 1);
    let parts = parts(&model, &rows(&dictionary), &[100, 450, 451], &mut random).await;
    let root = assembled(&model, count, parts).await.unwrap();
    let mut model = Model::of(model.config, dictionary, root, model);
    model.check_shape().await;
    model.check_filled().await;
    for step in 0..10 {
        let numbers = (0..10).map(|_| random.random_range(0..count + 50));
        let mut changes: Changes = numbers.map(|i| (format!("k{i:06}"), Some(format!("w{step}")))).collect();
        changes.sort();
        changes.dedup();
        model.commit(changes).await;
    }
    model.check_scans(&mut random).await;
}

#[tokio::test]
async fn parts_that_do_not_fit_together_are_refused() {
    let mut random = StdRng::seed_from_u64(11);
    let all = rows(&dictionary(100));
    let model = empty(4, 1);
    let (leaves, loose) = parts(&model, &all, &[30, 61], &mut random).await;
    let refused = async |leaves: &[Leaf], loose: &[LooseRow], what: &str| {
        let result = assembled(&model, 100, (leaves.to_vec(), loose.to_vec())).await;
        assert!(
            matches!(&result, Err(Error::InvalidArgument(message)) if message.contains(what)),
            "{what}: {result:?}"
        );
    };
    assert!(!loose.is_empty());
    refused(&leaves[1..], &loose, "is missing").await;
    refused(&leaves, &loose[1..], "is missing").await;
    refused(&[&leaves[..], &leaves[..1]].concat(), &loose, "occurs twice").await;
    refused(&leaves, &[&loose[..], &loose[..1]].concat(), "occurs twice").await;
    let mut swapped = leaves.clone();
    let (one, other) = (swapped[0].number, swapped[1].number);
    (swapped[0].number, swapped[1].number) = (other, one);
    refused(&swapped, &loose, "ascend").await;
    let mut open_end = leaves.clone();
    open_end[3].separator = None;
    refused(&open_end, &loose, "wrong neighbours").await;
    let mut descending = loose.clone();
    let key = descending[0].1.key.clone();
    descending.iter_mut().for_each(|(_, row)| row.key = key.clone());
    refused(&leaves, &descending, "ascend").await;
    assembled(&model, 100, (leaves, loose)).await.unwrap();
}

#[tokio::test]
async fn missing_leaves_and_leaves_with_other_keys_are_corrupt() {
    let mut random = StdRng::seed_from_u64(13);
    let all = rows(&dictionary(100));
    let (model, elsewhere) = (empty(4, 1), empty(4, 2));
    let (leaves, loose) = parts(&elsewhere, &all, &[50], &mut random).await;
    let missing = assembled(&model, 100, (leaves, loose.clone())).await;
    assert!(
        matches!(&missing, Err(Error::CorruptFile { message, .. }) if message.contains("do all workers")),
        "{missing:?}"
    );
    let (mut leaves, loose) = parts(&model, &all, &[50], &mut random).await;
    assert!(leaves.len() < LEAVES_CHECKED);
    let other = leaves[1].path.clone();
    leaves[0].path = other.clone();
    let mixed_up = assembled(&model, 100, (leaves, loose)).await;
    assert!(matches!(&mixed_up, Err(Error::CorruptFile { path, .. }) if *path == *other), "{mixed_up:?}");
}

#[tokio::test]
async fn a_worker_refuses_descending_rows_and_more_rows_than_counted() {
    let model = empty(4, 1);
    let all = rows(&dictionary(20));
    let mut worker = LeafWriter::new(20, 4, 0);
    worker.push(&writer(&model), all[..10].to_vec()).await.unwrap();
    let again = worker.push(&writer(&model), all[9..].to_vec()).await;
    assert!(matches!(again, Err(Error::InvalidArgument(_))), "{again:?}");
    let more = LeafWriter::new(19, 4, 0).push(&writer(&model), all).await;
    assert!(matches!(&more, Err(Error::InvalidArgument(message)) if message.contains("19")), "{more:?}");
}

#[test]
fn every_row_is_in_one_leaf_or_between_two() {
    for order in 3..=9 {
        for rows in 0..400 {
            let level = Level::new(rows, order);
            let mut next = 0;
            for node in 0..level.nodes {
                assert_eq!(level.rows_of(node).start, next);
                assert_eq!(level.node_from(next), node);
                assert_eq!(level.node_from(next + 1), node + 1);
                next = level.separator(node) + 1;
            }
            assert_eq!(next, rows + 1, "order {order}, {rows} rows");
        }
    }
}

//! Building a whole tree at once from sorted keys, bottom up.
//!
//! The number of keys is known, so the nodes of a level get equal shares and none is underfull. What one
//! machine builds is, for the same keys, what any number of workers build.

use std::sync::Arc;

use arrow_array::{Array, StringArray};
use futures::{StreamExt, TryStreamExt, stream};

use super::node_store::{NodeStore, PARALLEL_REQUESTS, write_new_file};
use crate::config::TreeConfig;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::node::CREATED_AT_MILLIS;
use crate::node::codec::encode;
use crate::node::draft::{Draft, Row, Text, min_keys};
use crate::path;

/// Seven eighths: room for a few inserts before a leaf splits, and few leaves to read for a listing.
fn fill(order: usize) -> usize {
    ((order - 1) * 7 / 8).max(1)
}

/// Builds a tree over `keys`, which ascend strictly, and writes every node but the root, which it returns.
pub async fn build(
    nodes: &NodeStore,
    environment: &dyn Environment,
    config: &TreeConfig,
    keys: &StringArray,
    locations: &StringArray,
) -> Result<Draft> {
    if keys.len() != locations.len() || keys.null_count() + locations.null_count() > 0 {
        return Err(Error::InvalidArgument(
            "a bulk build takes one location for each key and no nulls".into(),
        ));
    }
    if let Some(i) = (1..keys.len()).find(|i| keys.value(i - 1) >= keys.value(*i)) {
        return Err(Error::InvalidArgument(format!(
            "the keys of a bulk build ascend strictly; {:?} does not follow on the one before",
            keys.value(i).trim_end()
        )));
    }
    let now = environment.now_millis();
    // Rows of the current level, as positions in the input, and the children between them.
    let mut rows: Vec<usize> = (0..keys.len()).collect();
    let mut children: Vec<Text> = Vec::new();
    let mut height = 0;
    loop {
        let sizes = level_sizes(rows.len(), config.order);
        let mut next_rows = Vec::with_capacity(sizes.len());
        let mut pieces = Vec::with_capacity(sizes.len());
        let mut start = 0;
        for size in sizes {
            pieces.push((start, size));
            start += size;
            next_rows.extend(rows.get(start));
            start += 1;
        }
        let draft = |(start, size): (usize, usize)| Draft {
            height,
            rows: rows[start..start + size]
                .iter()
                .map(|i| Row { key: keys.value(*i).into(), value: locations.value(*i).into() })
                .collect(),
            children: if height == 0 { Vec::new() } else { children[start..=start + size].to_vec() },
            buffer: Vec::new(),
        };
        if pieces.len() == 1 {
            return Ok(draft(pieces[0]));
        }
        let written: Vec<Text> = stream::iter(pieces.into_iter().map(|piece| {
            let path: Text = path::node_path(environment.uuid()).into();
            let encoded = encode(
                &[(CREATED_AT_MILLIS, now.to_string())],
                &draft(piece),
                config.order,
                config.compression,
            );
            async move {
                write_new_file(nodes.storage().as_ref(), &path, encoded?.bytes).await?;
                Ok::<Text, Error>(path)
            }
        }))
        .buffered(PARALLEL_REQUESTS)
        .try_collect()
        .await?;
        children = written;
        rows = next_rows;
        height += 1;
    }
}

/// Rows of each node of a level; one row goes up between two nodes.
fn level_sizes(rows: usize, order: usize) -> Vec<usize> {
    // At small orders the share of the last nodes could fall below the least.
    let most = (rows + 1) / (min_keys(order) + 1);
    let nodes = if rows < order { 1 } else { (rows + 1).div_ceil(fill(order) + 1).clamp(2, most) };
    let keys = rows - (nodes - 1);
    (0..nodes).map(|node| keys / nodes + usize::from(node < keys % nodes)).collect()
}

/// Merges two runs of sorted keys; a key in both is an error of the caller's choosing.
pub fn merge_runs(
    left: (&StringArray, &StringArray),
    right: (&StringArray, &StringArray),
    on_duplicate: impl Fn(&str) -> Error,
) -> Result<(Arc<StringArray>, Arc<StringArray>)> {
    let (mut i, mut j) = (0, 0);
    let mut keys = Vec::with_capacity(left.0.len() + right.0.len());
    let mut locations = Vec::with_capacity(keys.capacity());
    while i < left.0.len() || j < right.0.len() {
        let take_left = match (i < left.0.len(), j < right.0.len()) {
            (true, true) => match left.0.value(i).cmp(right.0.value(j)) {
                std::cmp::Ordering::Equal => return Err(on_duplicate(left.0.value(i))),
                order => order.is_lt(),
            },
            (from_left, _) => from_left,
        };
        let (run, position) = if take_left { (left, &mut i) } else { (right, &mut j) };
        keys.push(run.0.value(*position));
        locations.push(run.1.value(*position));
        *position += 1;
    }
    Ok((Arc::new(StringArray::from_iter_values(keys)), Arc::new(StringArray::from_iter_values(locations))))
}

//! Leaves of a tree that several workers build together.
//!
//! Each worker knows the total number of rows and the number of its first row. From these numbers it computes the rows
//! of each leaf. It writes the leaves that are completely within its rows, and returns its other rows as loose rows.
//! [`assemble`] writes the few leaves that consist of loose rows, and the levels above. No root references the leaves
//! before that, so a worker that fails or runs twice leaves only unreferenced files with unique names.

use super::bulk_build::{Level, NodeWriter, build_above, does_not_ascend, leaf};
use super::node_store::NodeStore;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::node::mutable_node::{MutableNode, Row, Text};

/// Number of leaves, evenly distributed, that are read again before the levels above are built.
pub const LEAVES_CHECKED: usize = 256;

/// A leaf that a worker wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub number: usize,
    pub path: Text,
    /// The row between this leaf and the next one; the last leaf has none.
    pub separator: Option<Row>,
}

/// The number and content of a row whose leaf contains rows of several workers.
pub type LooseRow = (usize, Row);

/// Writer of the leaves of consecutive rows. It holds less than one leaf and the rows of one call in memory.
#[derive(Debug)]
pub struct LeafWriter {
    level: Level,
    next_leaf: usize,
    /// The number of the first row of `pending`.
    first_row: usize,
    pending: Vec<Row>,
    last_key: Option<Text>,
    loose: Vec<LooseRow>,
}

impl LeafWriter {
    /// `rows` is the number of rows of all workers, and `first_row` the number of the first row of this worker.
    pub fn new(rows: usize, order: usize, first_row: usize) -> LeafWriter {
        let level = Level::new(rows, order);
        // If the tree is a single leaf, this leaf is the root, which no worker writes.
        let next_leaf = if level.nodes == 1 { 1 } else { level.node_from(first_row) };
        LeafWriter { level, next_leaf, first_row, pending: Vec::new(), last_key: None, loose: Vec::new() }
    }

    /// Adds the next rows. Writes and returns the leaves that are complete with these rows.
    pub async fn push(&mut self, writer: &NodeWriter<'_>, rows: Vec<Row>) -> Result<Vec<Leaf>> {
        check_ascent(&mut self.last_key, rows.iter())?;
        self.pending.extend(rows);
        let end = self.first_row + self.pending.len();
        if end > self.level.rows {
            return Err(Error::InvalidArgument(format!(
                "there are more rows than the {} that were counted",
                self.level.rows
            )));
        }
        let start = self.level.start(self.next_leaf).min(end);
        self.set_loose(start);
        let mut until = self.next_leaf;
        // A leaf is complete when its separator has arrived; the last leaf has none.
        while until < self.level.nodes && self.level.start(until + 1).min(self.level.rows) <= end {
            until += 1;
        }
        let numbers = self.next_leaf..until;
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let (level, first, pending) = (self.level, self.first_row, &self.pending);
        let row = |i: usize| pending[i - first].clone();
        let paths = writer.write(numbers.clone().map(|node| leaf(level.rows_of(node).map(row)))).await?;
        let separator = |node: usize| (node + 1 < level.nodes).then(|| row(level.separator(node)));
        let leaves: Vec<Leaf> =
            numbers.zip(paths).map(|(number, path)| Leaf { number, path, separator: separator(number) }).collect();
        let written = level.start(until).min(level.rows) - first;
        self.pending.drain(..written);
        self.first_row += written;
        self.next_leaf = until;
        Ok(leaves)
    }

    /// Ends the writer. Returns the rows of leaves that this writer did not complete.
    pub fn finish(mut self) -> Vec<LooseRow> {
        self.set_loose(self.first_row + self.pending.len());
        self.loose
    }

    /// Moves the rows before `end` to the loose rows.
    fn set_loose(&mut self, end: usize) {
        let numbers = self.first_row..end;
        self.loose.extend(numbers.clone().zip(self.pending.drain(..numbers.len())));
        self.first_row = end;
    }
}

/// Builds the tree from the results of all workers, in any order. Writes all missing nodes except the root, and returns
/// the root. `InvalidArgument` unless the parts contain each row once, with keys that ascend from leaf to leaf. Reads
/// some of the leaves again; `CorruptFile` if one of them has other content.
///
/// If a leaf is not read again, its inner keys and the existence of its file are not checked.
pub async fn assemble(
    nodes: &NodeStore,
    writer: &NodeWriter<'_>,
    rows: usize,
    mut leaves: Vec<Leaf>,
    mut loose: Vec<LooseRow>,
) -> Result<MutableNode> {
    let level = Level::new(rows, writer.config.order);
    leaves.sort_by_key(|leaf| leaf.number);
    loose.sort_by_key(|(number, _)| *number);
    if let Some(pair) = leaves.windows(2).find(|pair| pair[0].number == pair[1].number) {
        return Err(unfit(&format!("leaf {} occurs twice", pair[0].number)));
    }
    if let Some(pair) = loose.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(unfit(&format!("row {} occurs twice", pair[0].0)));
    }
    let (mut written, mut loose) = (leaves.into_iter().peekable(), loose.into_iter().peekable());
    let mut take = |number: usize| {
        let row = loose.next_if(|(found, _)| *found == number).map(|(_, row)| row);
        row.ok_or_else(|| unfit(&format!("row {number} is missing")))
    };
    let mut missing: Vec<(usize, MutableNode)> = Vec::new();
    let mut paths: Vec<Option<Text>> = Vec::with_capacity(level.nodes);
    let mut separators: Vec<Row> = Vec::with_capacity(level.nodes - 1);
    let mut last_key: Option<Text> = None;
    for number in 0..level.nodes {
        let is_last = number + 1 == level.nodes;
        let separator = match written.next_if(|leaf| leaf.number == number) {
            Some(leaf) => {
                paths.push(Some(leaf.path));
                leaf.separator
            }
            None => {
                let own: Vec<Row> = level.rows_of(number).map(&mut take).collect::<Result<_>>()?;
                check_ascent(&mut last_key, own.iter())?;
                missing.push((number, leaf(own.into_iter())));
                paths.push(None);
                if is_last { None } else { Some(take(level.separator(number))?) }
            }
        };
        if separator.is_none() != is_last {
            return Err(unfit(&format!("leaf {number} of {} has the wrong neighbours", level.nodes)));
        }
        check_ascent(&mut last_key, separator.iter())?;
        separators.extend(separator);
    }
    if let Some(leaf) = written.next() {
        return Err(unfit(&format!("there is no leaf {} in the plan", leaf.number)));
    }
    if let Some((number, _)) = loose.next() {
        return Err(unfit(&format!("row {number} is already in a leaf, or is not in the plan")));
    }
    if level.nodes == 1 {
        return Ok(missing.pop().map(|(_, leaf)| leaf).unwrap_or_default());
    }
    let (numbers, drafts): (Vec<usize>, Vec<MutableNode>) = missing.into_iter().unzip();
    for (number, path) in numbers.into_iter().zip(writer.write(drafts.into_iter()).await?) {
        paths[number] = Some(path);
    }
    let paths: Vec<Text> = paths.into_iter().flatten().collect();
    read_back(nodes, writer, &level, &paths, &separators).await?;
    build_above(writer, paths, separators).await
}

/// Checks that the keys ascend and begin above `last_key`. Sets `last_key` to the key of the last row.
fn check_ascent<'a>(last_key: &mut Option<Text>, rows: impl Iterator<Item = &'a Row>) -> Result<()> {
    for row in rows {
        if last_key.as_ref().is_some_and(|last| *last >= row.key) {
            return Err(does_not_ascend(&row.key));
        }
        *last_key = Some(row.key.clone());
    }
    Ok(())
}

/// Reads some of the leaves again, and checks that they contain the expected keys.
async fn read_back(
    nodes: &NodeStore,
    writer: &NodeWriter<'_>,
    level: &Level,
    paths: &[Text],
    separators: &[Row],
) -> Result<()> {
    let count = LEAVES_CHECKED.min(level.nodes);
    let chosen: Vec<usize> = (0..count).map(|i| i * (level.nodes - 1) / (count - 1).max(1)).collect();
    let chosen_paths: Vec<&str> = chosen.iter().map(|number| &*paths[*number]).collect();
    let leaves = nodes.load_many(&chosen_paths, Some(0)).await.map_err(|error| match error {
        Error::CorruptFile { path, message } => Error::CorruptFile {
            path,
            message: format!("{message}; do all workers write to the storage that is read here?"),
        },
        other => other,
    })?;
    for (number, leaf) in chosen.into_iter().zip(leaves) {
        let above = number.checked_sub(1).is_none_or(|i| *separators[i].key < *leaf.key(0));
        let below = separators.get(number).is_none_or(|row| leaf.key(leaf.n_keys() - 1) < &*row.key);
        let size = level.rows_of(number).len();
        if leaf.n_keys() != size || leaf.order() != writer.config.order || !above || !below {
            return Err(Error::corrupt(
                &*paths[number],
                format!("it is not the leaf with the {size} keys of place {number} in the plan"),
            ));
        }
    }
    Ok(())
}

fn unfit(what: &str) -> Error {
    Error::InvalidArgument(format!("the parts of the tree do not fit together: {what}"))
}

//! Splits and merges of nodes, as pure functions. Rules 5 and 14 of the tree (`docs/architecture.md`).

use trinitylake_format::node::mutable_node::{Message, MutableNode, Row};

/// Minimum number of keys of a node that a split or a bulk build creates.
pub fn min_keys(order: usize) -> usize {
    order.div_ceil(2) - 1
}

/// Returns the number of rows of each piece when a table with `rows` rows is split. The row between two pieces is
/// promoted.
///
/// The pieces have equal sizes, unless `ascending`: if new keys are added at the right end, all pieces except the last
/// are filled to nine tenths, because they get no more rows. No piece has fewer than [`min_keys`] or more than `order -
/// 1` rows.
pub fn piece_sizes(rows: usize, order: usize, ascending: bool) -> Vec<usize> {
    if rows < order {
        return vec![rows];
    }
    let least = min_keys(order);
    if ascending {
        let full = (order * 9 / 10).clamp(least.max(1), order - 1);
        let (mut sizes, mut rest) = (Vec::new(), rows);
        while rest >= order {
            let size = full.min(rest - 1 - least);
            sizes.push(size);
            rest -= size + 1;
        }
        sizes.push(rest);
        return sizes;
    }
    let pieces = (rows + 1).div_ceil(order);
    let keys = rows - (pieces - 1);
    (0..pieces).map(|piece| keys / pieces + usize::from(piece < keys % pieces)).collect()
}

/// Whether a node has so few keys that it should be merged with a neighbour if they [`fit_into_one`].
pub fn is_underfull(draft: &MutableNode, order: usize) -> bool {
    draft.rows.len() < (order / 4).max(1)
}

/// Whether two neighbours and their separator fit into one node with space to grow.
pub fn fit_into_one(left: &MutableNode, right: &MutableNode, order: usize) -> bool {
    left.rows.len() + 1 + right.rows.len() <= order * 3 / 4
}

/// The pieces of a node with too many rows, and the rows between them, which are promoted.
pub struct Split {
    pub first: MutableNode,
    pub rest: Vec<(Row, MutableNode)>,
    /// Rule 5: deletes of promoted rows, to be added to the front of the parent's buffer.
    pub promoted_deletes: Vec<Message>,
}

/// Splits a node after [`MutableNode::absorb`]. Each message moves with its key range, except deletes of promoted rows.
pub fn split(mut draft: MutableNode, order: usize, ascending: bool) -> Split {
    let sizes = piece_sizes(draft.rows.len(), order, ascending);
    let height = draft.height;
    let mut rows = std::mem::take(&mut draft.rows).into_iter();
    let mut children = std::mem::take(&mut draft.children).into_iter();
    let mut pieces: Vec<(Option<Row>, MutableNode)> = Vec::with_capacity(sizes.len());
    for (i, size) in sizes.iter().enumerate() {
        let separator = if i == 0 { None } else { rows.next() };
        let piece = MutableNode {
            height,
            rows: rows.by_ref().take(*size).collect(),
            children: children.by_ref().take(if height > 0 { size + 1 } else { 0 }).collect(),
            buffer: Vec::new(),
        };
        pieces.push((separator, piece));
    }
    let mut promoted_deletes = Vec::new();
    for message in draft.buffer {
        // The key belongs to the last piece whose separator is not greater than the key.
        let i =
            pieces.partition_point(|(separator, _)| separator.as_ref().is_none_or(|row| row.key <= message.key)) - 1;
        if pieces[i].0.as_ref().is_some_and(|row| row.key == message.key) {
            promoted_deletes.push(message);
        } else {
            pieces[i].1.buffer.push(message);
        }
    }
    let mut pieces = pieces.into_iter();
    let first = pieces.next().map(|(_, piece)| piece).unwrap_or_default();
    let rest = pieces.filter_map(|(separator, piece)| separator.map(|row| (row, piece))).collect();
    Split { first, rest, promoted_deletes }
}

/// Rule 14: merges two neighbours and their separator. `separator` is `None` if a delete was parked for it.
pub fn merge(left: MutableNode, separator: Option<Row>, right: MutableNode) -> MutableNode {
    let mut merged = left;
    merged.rows.extend(separator);
    merged.rows.extend(right.rows);
    merged.children.extend(right.children);
    merged.buffer.extend(right.buffer);
    merged
}

#[cfg(test)]
mod tests;

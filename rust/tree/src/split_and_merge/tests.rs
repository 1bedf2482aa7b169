//! Splits and merges keep all rows. The rules are numbered as in docs/architecture.md.

use proptest::prelude::*;

use trinitylake_format::node::mutable_node::Text;

use super::*;

fn row(key: &str, value: &str) -> Row {
    Row { key: key.into(), value: value.into() }
}

fn set(key: &str, value: &str) -> Message {
    Message::new(key.into(), Some(value.into()), "t".into())
}

fn delete(key: &str) -> Message {
    Message::new(key.into(), None, "t".into())
}

fn inner(keys: &[&str], buffer: Vec<Message>) -> MutableNode {
    MutableNode {
        height: 1,
        rows: keys.iter().map(|key| row(key, "old")).collect(),
        children: (0..=keys.len()).map(|i| format!("child {i}").as_str().into()).collect(),
        buffer,
    }
}

fn keys(draft: &MutableNode) -> Vec<&str> {
    draft.rows.iter().map(|row| &*row.key).collect()
}

#[test]
fn rule_5_a_delete_of_the_median_is_promoted_with_it() {
    let mut draft = inner(&["b", "d", "f"], vec![set("a", "1"), delete("d"), set("e", "1"), delete("f")]);
    draft.absorb();
    let Split { first, rest, promoted_deletes } = split(draft, 3, false);
    let [(separator, second)] = rest.as_slice() else { panic!("two pieces: {}", rest.len() + 1) };
    assert_eq!((keys(&first), &*separator.key, keys(second)), (vec!["b"], "d", vec!["f"]));
    assert_eq!(promoted_deletes, [delete("d")]);
    assert_eq!(first.buffer, [set("a", "1")]);
    assert_eq!(second.buffer, [set("e", "1"), delete("f")], "a parked delete of another row stays");
    assert_eq!((first.children.len(), second.children.len()), (2, 2));
}

#[test]
fn rule_14_a_merged_node_is_left_separator_right() {
    let left = inner(&["b"], vec![set("a", "1")]);
    let right = inner(&["f"], vec![set("g", "1")]);
    let merged = merge(left.clone(), Some(row("d", "s")), right.clone());
    assert_eq!(keys(&merged), ["b", "d", "f"]);
    assert_eq!(merged.children.len(), 4);
    assert_eq!(merged.buffer, [set("a", "1"), set("g", "1")]);
}

#[test]
fn the_minimum_of_keys_is_half_of_the_order_minus_one() {
    let least = [3, 4, 5, 6, 7, 8, 128].map(min_keys);
    assert_eq!(least, [1, 1, 2, 2, 3, 3, 63]);
}

proptest! {
    #[test]
    fn pieces_have_all_rows_and_allowed_sizes(
        order in 3usize..140,
        times in 0.0f64..6.0,
        ascending in any::<bool>(),
    ) {
        let rows = (order as f64 * times) as usize;
        let sizes = piece_sizes(rows, order, ascending);
        prop_assert_eq!(sizes.iter().sum::<usize>() + sizes.len() - 1, rows);
        prop_assert!(sizes.iter().all(|size| *size < order), "{sizes:?}");
        if rows >= order {
            prop_assert!(sizes.len() > 1);
            prop_assert!(sizes.iter().all(|size| *size >= min_keys(order)), "{sizes:?}");
        }
        if !ascending {
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn a_split_keeps_all_rows_and_ranges(
        order in 3usize..9,
        count in 3usize..40,
        messages in prop::collection::vec((0u32..100, any::<bool>()), 0..40),
        ascending in any::<bool>(),
    ) {
        let names: Vec<String> = (0..count).map(|i| format!("{:03}", i * 2)).collect();
        let messages = messages.into_iter().map(|(key, is_set)| {
            let key = format!("{key:03}");
            if is_set { set(&key, "new") } else { delete(&key) }
        });
        let mut draft = inner(&names.iter().map(String::as_str).collect::<Vec<_>>(), messages.collect());
        draft.absorb();
        let Split { first, rest, promoted_deletes } = split(draft.clone(), order, ascending);

        let mut whole = MutableNode { height: 1, ..MutableNode::default() };
        let mut above: Option<Text> = None;
        let separators: Vec<Option<Text>> = rest.iter().map(|(row, _)| Some(row.key.clone())).chain([None]).collect();
        let pieces = std::iter::once((None, first)).chain(rest.into_iter().map(|(row, piece)| (Some(row), piece)));
        for ((separator, piece), below) in pieces.zip(separators) {
            for key in piece.rows.iter().map(|row| &row.key).chain(piece.buffer.iter().map(|message| &message.key)) {
                prop_assert!(above.as_ref().is_none_or(|above| key > above));
                prop_assert!(below.as_ref().is_none_or(|below| key < below));
            }
            prop_assert_eq!(piece.children.len(), piece.rows.len() + 1);
            whole = if whole.children.is_empty() { piece } else { merge(whole, separator, piece) };
            above = below;
        }
        prop_assert_eq!(&whole.rows, &draft.rows);
        prop_assert_eq!(&whole.children, &draft.children);
        let sorted = |messages: Vec<Message>| {
            let mut messages = messages;
            messages.sort_by(|a, b| a.key.cmp(&b.key));
            messages
        };
        prop_assert!(promoted_deletes.iter().all(|message| message.value.is_none()));
        prop_assert_eq!(sorted([whole.buffer, promoted_deletes].concat()), sorted(draft.buffer));
    }
}

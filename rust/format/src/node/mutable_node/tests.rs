//! Changes of one node; the numbers of rules refer to docs/architecture.md.

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

#[test]
fn rule_2_a_set_of_an_own_key_becomes_its_value() {
    let mut draft = inner(&["b", "d"], vec![set("b", "first"), set("a", "x"), set("b", "last")]);
    draft.absorb();
    assert_eq!(draft.rows[0], row("b", "last"));
    assert_eq!(draft.buffer, [set("a", "x")]);
}

#[test]
fn rule_3_a_delete_of_an_own_key_is_parked_until_it_is_set_again() {
    let mut draft = inner(&["b", "d"], vec![set("b", "new"), delete("b"), delete("c")]);
    draft.absorb();
    assert_eq!(draft.buffer, [delete("b"), delete("c")]);
    assert!(draft.is_parked(&draft.buffer[0]) && !draft.is_parked(&draft.buffer[1]));
    assert_eq!(draft.parked_rows(), [0]);
    assert_eq!(draft.heaviest_child(), Some(1), "a parked delete does not count");

    draft.buffer.push(set("b", "back"));
    draft.absorb();
    assert_eq!(draft.rows[0], row("b", "back"));
    assert_eq!(draft.buffer, [delete("c")]);
    assert_eq!(draft.take_parked(0), None);
}

#[test]
fn rule_7_the_last_message_of_each_key_stays_in_its_place() {
    let messages = vec![set("a", "1"), set("b", "1"), delete("a"), set("c", "1"), set("b", "2")];
    assert_eq!(coalesce(messages), [delete("a"), set("c", "1"), set("b", "2")]);
}

#[test]
fn the_messages_of_a_child_are_taken_in_their_order() {
    let mut draft = inner(&["b", "d"], vec![set("c", "1"), delete("a"), delete("b"), set("c", "2"), set("e", "1")]);
    assert_eq!(draft.take_messages_of(1), [set("c", "1"), set("c", "2")]);
    assert_eq!(draft.buffer, [delete("a"), delete("b"), set("e", "1")]);
    assert!(draft.take_messages_of(1).is_empty());
}

#[test]
fn without_messages_no_child_is_the_heaviest() {
    assert_eq!(inner(&["b"], vec![]).heaviest_child(), None);
    assert_eq!(inner(&["b"], vec![delete("b")]).heaviest_child(), None);
    assert_eq!(inner(&["b"], vec![set("a", "1"), set("c", "1")]).heaviest_child(), Some(0), "the first of equals");
}

#[test]
fn a_leaf_applies_messages_on_arrival_after_its_own() {
    let mut leaf = MutableNode { rows: ["b", "d"].map(|key| row(key, "old")).to_vec(), ..MutableNode::default() };
    leaf.buffer = vec![set("a", "own"), set("c", "own")];
    leaf.apply_to_leaf(vec![delete("d"), set("c", "new"), delete("nothing"), set("e", "new")]);
    assert_eq!(leaf.rows, [row("a", "own"), row("b", "old"), row("c", "new"), row("e", "new")]);
    assert!(leaf.buffer.is_empty());
}

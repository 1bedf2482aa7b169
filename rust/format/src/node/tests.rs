//! Searching one node.

use proptest::prelude::*;

use super::codec::{Compression, decode, encode};
use super::mutable_node::{Message, MutableNode, Row};
use super::*;

fn node(draft: &MutableNode) -> Node {
    encode(&[("name", "value".to_string())], draft, 40, Compression::None).unwrap().node
}

fn row(key: &str) -> Row {
    Row { key: key.into(), value: format!("row {key}").as_str().into() }
}

fn message(key: &str, value: Option<&str>) -> Message {
    Message::new(key.into(), value.map(Into::into), "t".into())
}

#[test]
fn messages_come_before_rows_and_rows_before_children() {
    let draft = MutableNode {
        height: 1,
        rows: ["d", "h"].map(row).to_vec(),
        children: ["0", "1", "2"].map(Into::into).to_vec(),
        buffer: vec![message("a", Some("old")), message("a", Some("new")), message("d", None), message("z", None)],
    };
    let node = node(&draft);
    assert_eq!(node.search("a"), Found::Message(Some("new")));
    assert_eq!(node.search("d"), Found::Message(None), "a parked delete hides the row");
    assert_eq!(node.search("h"), Found::Row("row h"));
    assert_eq!(node.search("b"), Found::Child(0));
    assert_eq!(node.search("e"), Found::Child(1));
    assert_eq!(node.search("i"), Found::Child(2));
    assert_eq!(node.search("z"), Found::Message(None));
    assert_eq!(node.system("name"), Some("value"));
    assert_eq!(node.system("other"), None);
}

#[test]
fn a_key_that_a_leaf_lacks_is_absent() {
    let leaf = node(&MutableNode { rows: vec![row("b")], ..MutableNode::default() });
    assert_eq!(leaf.search("a"), Found::Absent);
    assert_eq!(leaf.search("b"), Found::Row("row b"));
    assert_eq!(leaf.search("c"), Found::Absent);
    assert_eq!(node(&MutableNode::default()).search("a"), Found::Absent);
}

/// A node takes at most the memory that it reports. Otherwise the cache, which adds up the reported sizes, would exceed
/// its limit.
#[test]
fn a_node_takes_at_most_its_reported_memory() {
    let few = MutableNode { rows: vec![row("b")], buffer: vec![message("c", None)], ..MutableNode::default() };
    let many = MutableNode {
        height: 1,
        rows: (0..39).map(|i| row(&format!("{i:0100}"))).collect(),
        children: (0..40).map(|i| format!("{i:075}").as_str().into()).collect(),
        buffer: (0..500).map(|i| message(&format!("{i:0200}"), Some(&"v".repeat(80)))).collect(),
    };
    for draft in [MutableNode::default(), few, many] {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let written = encode(&[("name", "value".to_string())], &draft, 40, compression).unwrap();
            let read = decode(written.bytes.clone(), "node", None).unwrap();
            for node in [written.node, read] {
                let columns = [&node.keys, &node.values, &node.children, &node.txns];
                let buffers = columns.iter().flat_map(|column| {
                    let validity = column.nulls().map(|nulls| nulls.buffer());
                    [column.offsets().inner().inner(), column.values()].into_iter().chain(validity)
                });
                // Uncompressed columns are slices of the file.
                let file = written.bytes.as_ptr_range();
                let (in_file, own): (Vec<_>, Vec<_>) = buffers.partition(|buffer| file.contains(&buffer.as_ptr()));
                let own: usize = own.iter().map(|buffer| buffer.capacity()).sum();
                let taken = own.max(if in_file.is_empty() { 0 } else { written.bytes.len() });
                let said = node.memory_size_bytes();
                assert!(taken <= said, "{compression:?}: {taken} bytes are used, {said} are reported");
                assert!(said <= taken * 5 / 4 + 3000, "{compression:?}: {taken} bytes are used, {said} are reported");
            }
        }
    }
}

/// Garbage collection ignores a row that a message of the same node replaces or deletes. Otherwise the files of a
/// dropped object would be retained as long as its row is a separator.
#[test]
fn a_row_with_a_message_has_no_reference() {
    let node = node(&MutableNode {
        rows: ["a", "b", "c"].map(row).to_vec(),
        buffer: vec![message("a", None), message("b", Some("4")), message("d", Some("5")), message("d", Some("6"))],
        ..MutableNode::default()
    });
    let named: Vec<(&str, &str)> = node.named_locations().collect();
    assert_eq!(named, [("c", "row c"), ("b", "4"), ("d", "6")]);
}

proptest! {
    #[test]
    fn the_last_message_of_a_key_is_found(
        buffer in prop::collection::vec((0u8..12, prop::option::of(0u8..9)), 0..40),
    ) {
        let buffer: Vec<Message> = buffer
            .into_iter()
            .map(|(key, value)| message(&format!("{key:02}"), value.map(|value| value.to_string()).as_deref()))
            .collect();
        let node = node(&MutableNode { buffer: buffer.clone(), ..MutableNode::default() });
        for key in 0..12 {
            let key = format!("{key:02}");
            let last = buffer.iter().enumerate().rev().find(|(_, message)| *message.key == *key);
            let expected = last.map(|(i, message)| (i as u32, message.value.is_some()));
            prop_assert_eq!(node.find_message(&key), expected);
        }
        let newest: Vec<MessageRef<'_>> = node.newest_messages().collect();
        prop_assert!(newest.windows(2).all(|pair| pair[0].key < pair[1].key));
        let mut kept = mutable_node::coalesce(buffer);
        kept.sort_by(|a, b| a.key.cmp(&b.key));
        prop_assert_eq!(newest.into_iter().map(Message::from).collect::<Vec<_>>(), kept);
    }
}

//! Round trips of node files, and damaged or malicious files.

use std::sync::Arc;

use arrow_array::{Array, DictionaryArray, Int64Array, StringArray, types::Int32Type};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;

use super::*;
use crate::file_names::node_path;
use crate::node::mutable_node::{Message, Row};
use crate::node::{CREATED_AT_MILLIS, NODE_ID};

const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];
const ORDER: usize = 6;

/// The complete content of a node.
type Dump = (Vec<(String, String)>, usize, u32, MutableNode);

fn dump(node: &Node) -> Dump {
    let system = node.system_rows().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let height = node.height().unwrap_or(u32::MAX);
    (system, node.order(), height, MutableNode::of(node, height))
}

fn row(key: &str) -> Row {
    Row { key: key.into(), value: format!("table-{key}.binpb").as_str().into() }
}

fn message(key: &str, value: Option<&str>) -> Message {
    Message::new(key.into(), value.map(Into::into), "txn".into())
}

fn leaf() -> MutableNode {
    MutableNode { rows: ["b", "d", "größer"].map(row).to_vec(), ..MutableNode::default() }
}

fn inner() -> MutableNode {
    MutableNode {
        height: 2,
        rows: ["f", "m"].map(row).to_vec(),
        children: ["0/left", "1/middle", "1/right"].map(Into::into).to_vec(),
        buffer: vec![message("a", Some("first")), message("f", None), message("a", Some("second"))],
    }
}

fn system() -> Vec<(&'static str, String)> {
    vec![(CREATED_AT_MILLIS, "1700000000000".to_string()), ("somebody else's", "row".to_string())]
}

fn file(draft: &MutableNode, compression: Compression) -> Bytes {
    encode(&system(), draft, ORDER, compression).unwrap().bytes
}

/// A file from another Arrow writer, without a checksum.
fn foreign(batches: &[RecordBatch], compression: Compression) -> Bytes {
    let kind = match compression {
        Compression::None => None,
        Compression::Lz4 => Some(CompressionType::LZ4_FRAME),
        Compression::Zstd => Some(CompressionType::ZSTD),
    };
    let options = IpcWriteOptions::default().try_with_compression(kind).unwrap();
    let schema = batches.first().map_or_else(node_schema, RecordBatch::schema);
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.into_inner().unwrap().into()
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(result: Result<T>, message_part: &str) {
    match result {
        Err(Error::CorruptFile { path, message }) => {
            assert_eq!(path, "p");
            assert!(message.contains(message_part), "{message:?} does not say {message_part:?}");
        }
        other => panic!("not a corrupt file: {other:?}"),
    }
}

#[test]
fn nodes_round_trip() {
    for compression in COMPRESSIONS {
        for draft in [MutableNode::default(), leaf(), inner()] {
            let encoded = encode(&system(), &draft, ORDER, compression).unwrap();
            let decoded = decode(encoded.bytes, "p", Some(ORDER)).unwrap();
            assert_eq!(dump(&decoded), dump(&encoded.node));
            assert_eq!(MutableNode::of(&decoded, draft.height), draft);
            assert_eq!(decoded.system("somebody else's"), Some("row"));
            assert_eq!(decoded.height(), Some(draft.height));
        }
    }
}

#[test]
fn compression_is_known_by_name() {
    assert_eq!(Compression::parse("none").unwrap(), Compression::None);
    assert_eq!(Compression::parse("lz4").unwrap(), Compression::Lz4);
    assert_eq!(Compression::parse("zstd").unwrap(), Compression::default());
    assert!(matches!(Compression::parse("gzip"), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_file_of_another_writer_without_checksum_is_readable() {
    for compression in COMPRESSIONS {
        let encoded = encode(&system(), &inner(), ORDER, compression).unwrap();
        let batch = decode_batch(encoded.bytes, "p").unwrap();
        let decoded = decode(foreign(&[batch], compression), "p", Some(ORDER)).unwrap();
        assert_eq!(dump(&decoded), dump(&encoded.node));
    }
}

#[test]
fn an_unknown_checksum_algorithm_is_readable() {
    let batch = decode_batch(file(&leaf(), Compression::None), "p").unwrap();
    let mut writer = FileWriter::try_new(Vec::new(), batch.schema_ref()).unwrap();
    writer.write(&batch).unwrap();
    writer.write_metadata(CHECKSUM, "sha512:00");
    decode(writer.into_inner().unwrap().into(), "p", Some(ORDER)).unwrap();
}

/// A truncated file is reported as damaged (failure mode 33).
#[test]
fn a_file_cut_at_any_length_is_corrupt() {
    for compression in COMPRESSIONS {
        let bytes = file(&inner(), compression);
        for length in 0..bytes.len() {
            assert_corrupt(decode(bytes.slice(..length), "p", Some(ORDER)), "");
        }
    }
}

/// Flips one bit after the other, from a given byte on, and checks that the reader reports damage or reads the same
/// content.
fn flip_bits(bytes: &Bytes, from: usize, order: usize) {
    let original = dump(&decode(bytes.clone(), "p", Some(order)).unwrap());
    let mut unnoticed = 0;
    for bit in from * 8..bytes.len() * 8 {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match decode(damaged.into(), "p", Some(order)) {
            Ok(node) => {
                unnoticed += 1;
                assert_eq!(dump(&node), original, "bit {bit}");
            }
            Err(error) => assert!(matches!(error, Error::CorruptFile { .. }), "bit {bit}: {error}"),
        }
    }
    let all = (bytes.len() - from) * 8;
    assert!(unnoticed < all / 2, "{unnoticed} of {all} flipped bits were not detected");
}

/// A flipped bit is detected, or does not change what the reader returns (failure mode 33). The checksum does not cover
/// the footer.
#[test]
fn a_flipped_bit_is_detected_or_harmless() {
    for compression in COMPRESSIONS {
        for draft in [leaf(), inner()] {
            flip_bits(&file(&draft, compression), 0, ORDER);
        }
    }
}

/// A footer with a slightly wrong position of the record batch is refused (failure mode 33). In a node of similar rows,
/// the bytes at the wrong position would be valid rows as well.
#[test]
fn a_footer_with_a_wrong_position_of_the_batch_is_refused() {
    let rows: Vec<Row> = (0..127).map(|i| row(&format!("{i:04}"))).collect();
    let draft = MutableNode { rows, ..MutableNode::default() };
    for compression in COMPRESSIONS {
        let bytes = encode(&system(), &draft, 128, compression).unwrap().bytes;
        let trailer = bytes.len() - TRAILER_SIZE_BYTES;
        let footer_size = read_footer_length(bytes[trailer..].try_into().unwrap()).unwrap();
        flip_bits(&bytes, trailer - footer_size, 128);
    }
}

/// A damaged file without a checksum does not make the reader panic. The reader cannot detect all damage in such a
/// file.
#[test]
fn a_byte_changed_in_a_file_without_checksum_never_panics() {
    for compression in COMPRESSIONS {
        let batch = decode_batch(file(&inner(), compression), "p").unwrap();
        let bytes = foreign(&[batch], compression);
        for offset in 0..bytes.len() {
            for change in [0x01, 0x10, 0x80, 0xFF] {
                let mut damaged = bytes.to_vec();
                damaged[offset] ^= change;
                match decode(damaged.into(), "p", Some(ORDER)) {
                    Ok(node) => drop(dump(&node)),
                    Err(error) => {
                        assert!(matches!(error, Error::CorruptFile { .. }), "byte {offset}: {error}")
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_corrupt(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        assert_corrupt(decode(bytes.clone().into(), "p", None), "");
        // Also with the magic bytes of an Arrow file around them.
        let framed = [b"ARROW1\0\0".as_slice(), &bytes, b"ARROW1"].concat();
        assert_corrupt(decode(framed.into(), "p", None), "");
    }

    #[test]
    fn any_draft_round_trips(
        keys in prop::collection::btree_set(".{0,12}", 0..5usize),
        messages in prop::collection::vec((".{0,12}", prop::option::of(".{0,20}")), 0..6),
        is_inner in any::<bool>(),
        compression in prop::sample::select(COMPRESSIONS.to_vec()),
    ) {
        let rows: Vec<Row> = keys.iter().map(|key| row(key)).collect();
        let children = if is_inner { (0..=rows.len()).map(|i| format!("{i}").as_str().into()).collect() } else { vec![] };
        let buffer = messages.iter().map(|(key, value)| message(key, value.as_deref())).collect();
        let draft = MutableNode { height: is_inner.into(), rows, children, buffer };
        let decoded = decode(file(&draft, compression), "p", Some(ORDER)).unwrap();
        prop_assert_eq!(MutableNode::of(&decoded, draft.height), draft);
    }
}

/// Offsets of the record batch's buffers in the file.
fn buffer_offsets(bytes: &[u8]) -> Vec<usize> {
    let frame = Frame::check(bytes).unwrap();
    let body = frame.body_offset;
    let buffers = frame.batch.buffers().unwrap();
    buffers.iter().filter(|buffer| buffer.length() >= 8).map(|buffer| body + buffer.offset() as usize).collect()
}

/// A buffer that states a huge or negative decompressed size is refused (failure mode 34).
#[test]
fn a_buffer_that_states_exabytes_is_refused() {
    let batch = decode_batch(file(&inner(), Compression::Zstd), "p").unwrap();
    for compression in [Compression::Lz4, Compression::Zstd] {
        let bytes = foreign(std::slice::from_ref(&batch), compression);
        for offset in buffer_offsets(&bytes) {
            for (size, message) in
                [(1i64 << 62, "refused"), (i64::MAX, "refused"), (5 << 20, "refused"), (-2, "no uncompressed size")]
            {
                let mut bomb = bytes.to_vec();
                bomb[offset..offset + 8].copy_from_slice(&size.to_le_bytes());
                assert_corrupt(decode(bomb.into(), "p", Some(ORDER)), message);
            }
        }
    }
}

/// A buffer whose content is longer than stated is refused. Otherwise a buffer that states 64 bytes and contains 64 MiB
/// would take 64 MiB of memory.
#[test]
fn a_buffer_larger_than_stated_is_refused() {
    let long = "a".repeat(1 << 20);
    let cells = [n_keys("0"), NULL_ROW, NULL_ROW, NULL_ROW, NULL_ROW];
    let mut columns: Vec<Vec<Option<&str>>> = (0..4).map(|i| cells.iter().map(|row| row[i]).collect()).collect();
    columns[1][0] = Some(&long);
    let columns = columns.into_iter().map(|column| Arc::new(StringArray::from(column)) as ArrayRef).collect();
    let batch = RecordBatch::try_new(node_schema(), columns).unwrap();
    for (compression, message) in [(Compression::Lz4, "more or fewer"), (Compression::Zstd, "cannot be decompressed")] {
        let bytes = foreign(std::slice::from_ref(&batch), compression);
        let mut damaged = 0;
        for offset in buffer_offsets(&bytes) {
            let stated = i64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap());
            if stated > 1 << 19 {
                let mut bomb = bytes.to_vec();
                bomb[offset..offset + 8].copy_from_slice(&64i64.to_le_bytes());
                assert_corrupt(decode_batch(bomb.into(), "p"), message);
                damaged += 1;
            }
        }
        assert_eq!(damaged, 1);
    }
}

/// A batch that compresses better than readers accept is stored uncompressed. Otherwise a version that drops 300,000
/// tables with long names would be unreadable.
#[test]
fn a_batch_that_compresses_too_well_is_stored_uncompressed() {
    let key = format!("C==={}", " ".repeat(1000));
    let rows = 70_000;
    let messages = MutableNode { buffer: (0..rows).map(|_| message(&key, None)).collect(), ..MutableNode::default() };
    let bytes = file(&messages, Compression::Zstd);
    assert!(bytes.len() > rows * key.len(), "{}", bytes.len());
    assert_eq!(decode(bytes, "p", Some(ORDER)).unwrap().n_messages(), rows);
    // Smaller nodes are still compressed.
    let few = MutableNode { buffer: messages.buffer[..50].to_vec(), ..MutableNode::default() };
    assert!(file(&few, Compression::Zstd).len() < 10_000);
}

#[test]
fn a_file_has_exactly_one_record_batch() {
    let batch = decode_batch(file(&leaf(), Compression::None), "p").unwrap();
    assert_corrupt(decode(foreign(&[], Compression::None), "p", Some(ORDER)), "has 0");
    assert_corrupt(decode(foreign(&[batch.clone(), batch], Compression::None), "p", Some(ORDER)), "has 2");
}

fn with_columns(columns: Vec<(&str, ArrayRef)>) -> Bytes {
    let field = |(name, column): &(&str, ArrayRef)| Field::new(*name, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    foreign(&[RecordBatch::try_new(schema, columns).unwrap()], Compression::None)
}

#[test]
fn columns_of_another_name_number_or_type_are_refused() {
    let texts = || Arc::new(StringArray::from(vec![Some("n_keys"), None, None])) as ArrayRef;
    let numbers = || Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef;
    let right = [("key", texts()), ("value", texts()), ("pnode", texts()), ("txn", texts())];

    let mut renamed = right.to_vec();
    renamed[2].0 = "child";
    assert_corrupt(decode(with_columns(renamed), "p", None), "the columns are");
    let mut swapped = right.to_vec();
    swapped.swap(0, 1);
    assert_corrupt(decode(with_columns(swapped), "p", None), "the columns are");
    assert_corrupt(decode(with_columns(right[..3].to_vec()), "p", None), "the columns are");
    let mut typed = right.to_vec();
    typed[1].1 = numbers();
    assert_corrupt(decode(with_columns(typed), "p", None), "column value is Int,");
}

#[test]
fn a_dictionary_is_refused() {
    let dictionary: DictionaryArray<Int32Type> = [Some("n_keys"), None].into_iter().collect();
    assert!(matches!(dictionary.data_type(), DataType::Dictionary(..)));
    let column = Arc::new(dictionary) as ArrayRef;
    let columns = ["key", "value", "pnode", "txn"].map(|name| (name, column.clone()));
    assert_corrupt(decode(with_columns(columns.to_vec()), "p", None), "no dictionaries");
}

/// Decodes a node file with the reader of arrow-ipc; `None` if that reader reports damage or panics. The tests compare
/// its rows with those of our own decoder.
fn by_arrow(bytes: &[u8]) -> Option<RecordBatch> {
    let reader = std::panic::catch_unwind(|| arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(bytes), None));
    let mut reader = reader.ok()?.ok()?;
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reader.next())).ok()??.ok()
}

/// Columns of random texts and nulls.
fn any_columns() -> impl Strategy<Value = RecordBatch> {
    prop::collection::vec(prop::array::uniform4(prop::option::of(".{0,9}")), 0..70).prop_map(|rows| {
        let column = |i: usize| Arc::new(StringArray::from_iter(rows.iter().map(|row| row[i].as_deref()))) as ArrayRef;
        RecordBatch::try_new(node_schema(), (0..4).map(column).collect()).unwrap()
    })
}

proptest! {
    #[test]
    fn arrows_own_decoder_finds_the_same_rows(
        batch in any_columns(),
        compression in prop::sample::select(COMPRESSIONS.to_vec()),
    ) {
        let bytes = foreign(std::slice::from_ref(&batch), compression);
        prop_assert_eq!(by_arrow(&bytes).unwrap(), batch.clone());
        prop_assert_eq!(decode_batch(bytes, "p").unwrap(), batch);
    }

    /// Arrow's own reader returns the rows that our writer wrote, also if the rows are a slice of longer columns. Our
    /// writer reserves space for the header and fills it in later, so it could write a wrong header.
    #[test]
    fn arrows_own_reader_finds_the_same_rows_in_our_files(
        batch in any_columns(),
        compression in prop::sample::select(COMPRESSIONS.to_vec()),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let (from, to) = (from.index(batch.num_rows() + 1), to.index(batch.num_rows() + 1));
        let part = batch.slice(from.min(to), from.abs_diff(to));
        let bytes = encode_batch(&part, compression).unwrap();
        prop_assert_eq!(by_arrow(&bytes).unwrap(), part.clone());
        prop_assert_eq!(decode_batch(bytes, "p").unwrap(), part);
    }

    #[test]
    fn both_decoders_agree_on_damaged_files_or_one_refuses_them(
        batch in any_columns(),
        compression in prop::sample::select(COMPRESSIONS.to_vec()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
    ) {
        let mut bytes = foreign(&[batch], compression).to_vec();
        for (at, change) in damage {
            let at = at.index(bytes.len());
            bytes[at] ^= change;
        }
        let ours = decode_batch(bytes.clone().into(), "p");
        if let Ok(ours) = ours {
            // Only rows that both decoders return are compared, because Arrow's decoder refuses more files than ours.
            if let Some(theirs) = by_arrow(&bytes) {
                prop_assert_eq!(ours.columns(), theirs.columns());
            }
        }
    }
}

type Cells = [Option<&'static str>; 4];
const NULL_ROW: Cells = [None; 4];

/// Rows in the layout of another writer.
fn rows(rows: &[Cells]) -> RecordBatch {
    let column = |i: usize| Arc::new(StringArray::from_iter(rows.iter().map(|row| row[i]))) as ArrayRef;
    RecordBatch::try_new(node_schema(), (0..4).map(column).collect()).unwrap()
}

fn n_keys(n: &'static str) -> Cells {
    [Some("n_keys"), Some(n), None, None]
}

fn key_row(key: &'static str) -> Cells {
    [Some(key), Some("v"), None, None]
}

#[track_caller]
fn assert_refused(cells: &[Cells], message: &str) {
    assert_corrupt(decode(encode_batch(&rows(cells), Compression::None).unwrap(), "p", Some(4)), message);
}

#[test]
fn rows_without_system_rows_beyond_n_keys_are_read() {
    let cells = [n_keys("1"), NULL_ROW, key_row("a"), NULL_ROW, NULL_ROW];
    let node = decode(encode_batch(&rows(&cells), Compression::None).unwrap(), "p", Some(4)).unwrap();
    assert_eq!((node.n_keys(), node.height(), node.order()), (1, Some(0), 4));
}

#[test]
fn invalid_system_rows_are_refused() {
    assert_refused(&[], "no key table");
    assert_refused(&[n_keys("0")], "no key table");
    assert_refused(&[NULL_ROW, NULL_ROW, NULL_ROW, NULL_ROW], "n_keys is missing");
    let table = [NULL_ROW; 4];
    let with = |system: Cells| [&[n_keys("0"), system], table.as_slice()].concat();
    assert_refused(&with([Some("k"), None, None, None]), "not a system row");
    assert_refused(&with([None, Some("v"), None, None]), "not a system row");
    assert_refused(&with([Some("k"), Some("v"), Some("child"), None]), "not a system row");
    assert_refused(&with([Some("k"), Some("v"), None, Some("txn")]), "not a system row");
    assert_refused(&with([Some("height"), Some("high"), None, None]), "not a number");
}

#[test]
fn key_counts_that_do_not_fit_the_table_are_refused() {
    let table = |n| [n_keys(n), NULL_ROW, key_row("a"), NULL_ROW, NULL_ROW];
    for n in ["0", "2", "3"] {
        assert_refused(&table(n), "contradicts n_keys");
    }
    for n in ["4", "1000000", "18446744073709551615"] {
        assert_refused(&table(n), "holds fewer");
    }
    for n in ["18446744073709551616", "-1", "", "one"] {
        assert_refused(&table(n), "not a number");
    }
}

#[test]
fn keys_that_do_not_ascend_are_refused() {
    assert_refused(&[n_keys("2"), NULL_ROW, key_row("b"), key_row("a"), NULL_ROW], "do not ascend");
    assert_refused(&[n_keys("2"), NULL_ROW, key_row("a"), key_row("a"), NULL_ROW], "do not ascend");
}

#[test]
fn key_rows_with_a_null_are_refused() {
    let with = |row: Cells| [n_keys("1"), NULL_ROW, row, NULL_ROW, NULL_ROW];
    assert_refused(&with([Some("a"), None, None, None]), "contradicts n_keys");
    assert_refused(&with([None, Some("v"), None, None]), "contradicts n_keys");
    let gap = [n_keys("1"), NULL_ROW, NULL_ROW, key_row("a"), NULL_ROW];
    assert_refused(&gap, "contradicts n_keys");
}

#[test]
fn children_of_some_keys_only_are_refused() {
    let child = Some("child");
    let no_leftmost = [n_keys("1"), NULL_ROW, [Some("a"), Some("v"), child, None], NULL_ROW, NULL_ROW];
    assert_refused(&no_leftmost, "a child next to every key");
    let leftmost: Cells = [None, None, child, None];
    assert_refused(&[n_keys("1"), leftmost, key_row("a"), NULL_ROW, NULL_ROW], "a child next to every key");
    assert_refused(&[n_keys("0"), leftmost, leftmost, NULL_ROW, NULL_ROW], "a child next to every key");
}

/// A node with children and height 0, or without children and another height, is refused (failure mode 35).
#[test]
fn a_height_that_does_not_fit_the_children_is_refused() {
    let height = |height| [Some("height"), Some(height), None, None];
    assert_refused(&[n_keys("0"), height("1"), NULL_ROW, NULL_ROW, NULL_ROW, NULL_ROW], "height is 1");
    let leftmost: Cells = [None, None, Some("child"), None];
    assert_refused(&[n_keys("0"), height("0"), leftmost, NULL_ROW, NULL_ROW, NULL_ROW], "height is 0");
}

#[test]
fn invalid_messages_are_refused() {
    let table = [n_keys("0"), NULL_ROW, NULL_ROW, NULL_ROW, NULL_ROW];
    let good: Cells = [Some("a"), None, None, Some("txn")];
    let with = |row: Cells| [&table, [good, row, good].as_slice()].concat();
    assert_refused(&with(NULL_ROW), "not a message");
    assert_refused(&with([None, Some("v"), None, Some("txn")]), "not a message");
    assert_refused(&with([Some("a"), Some("v"), Some("child"), Some("txn")]), "not a message");
}

/// A node whose key table has another number of rows than the order of the lakehouse is refused (failure mode 36).
#[test]
fn a_table_of_another_order_is_refused() {
    let bytes = file(&leaf(), Compression::Zstd);
    assert_corrupt(decode(bytes.clone(), "p", Some(ORDER + 1)), "the key table has 6 rows");
    assert_corrupt(decode(bytes, "p", Some(ORDER - 1)), "the key table has 6 rows");
}

#[test]
fn an_invalid_draft_is_not_written() {
    let too_many = MutableNode { rows: ["a", "b", "c", "d", "e", "f"].map(row).to_vec(), ..MutableNode::default() };
    let unordered = MutableNode { rows: ["b", "a"].map(row).to_vec(), ..MutableNode::default() };
    let childless = MutableNode { children: Vec::new(), ..inner() };
    for draft in [too_many, unordered, childless] {
        assert!(matches!(encode(&[], &draft, ORDER, Compression::None), Err(Error::CorruptFile { .. })));
    }
}

/// A file is read at any address in memory. Arrow's writers align buffers in the file, but the bytes of the file need
/// not begin at an aligned address.
#[test]
fn a_file_at_any_address_is_read() {
    let bytes = file(&inner(), Compression::None);
    let expected = dump(&decode(bytes.clone(), "p", Some(ORDER)).unwrap());
    for shift in 1..8 {
        let shifted = Bytes::from([vec![0; shift], bytes.to_vec()].concat()).slice(shift..);
        assert_eq!(dump(&decode(shifted, "p", Some(ORDER)).unwrap()), expected);
    }
}

/// A record batch is refused if a column has another number of rows or nulls than the batch states.
#[test]
fn counts_that_contradict_the_columns_are_refused() {
    let cells = [n_keys("1"), NULL_ROW, key_row("a"), NULL_ROW, NULL_ROW];
    let bytes = foreign(&[rows(&cells)], Compression::None);
    let frame = Frame::check(&bytes).unwrap();
    let nodes = frame.batch.nodes().unwrap().bytes();
    let at = bytes.windows(nodes.len()).position(|window| window == nodes).unwrap();
    // The first field is the number of rows of the first column, the second its number of nulls.
    for (field, message) in [(0, "rows, not 5"), (8, "the record batch says")] {
        let mut other = bytes.to_vec();
        other[at + field] -= 1;
        assert_corrupt(decode(other.into(), "p", Some(4)), message);
    }
}

/// A node file is refused if it contains the id of another node. Otherwise two intact leaves that were exchanged would
/// be accepted, and objects would be missing from listings or listed twice.
#[test]
fn a_node_with_the_name_of_another_is_refused() {
    let paths = [1, 2].map(|number| node_path(uuid::Uuid::from_u128(number)));
    let id = "00000000-0000-0000-0000-000000000001";
    let of = |id: &str| {
        let system = [(NODE_ID, id.to_string())];
        encode(&system, &MutableNode::default(), 4, Compression::Zstd).unwrap().bytes
    };
    assert_eq!(decode(of(id), &paths[0], None).unwrap().system(NODE_ID), Some(id));
    for (id, path) in [(id, &paths[1]), ("nobody", &paths[0])] {
        let refused = decode(of(id), path, None);
        assert!(
            matches!(&refused, Err(Error::CorruptFile { message, .. }) if message.contains("another name")),
            "{refused:?}"
        );
    }
    // A file whose name has no id, and a node without an id, are accepted.
    assert!(decode(of(id), "node.arrow", None).is_ok());
    let unnamed = encode(&[], &MutableNode::default(), 4, Compression::Zstd).unwrap().bytes;
    assert!(decode(unnamed, &paths[0], None).is_ok());
}

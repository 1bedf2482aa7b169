//! Footers of Parquet files, whole and damaged.

use std::sync::Arc;

use bytes::Bytes;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use crate::parquet_footer;
use crate::text_sizes::text_sizes;

fn names(rows: usize) -> Vec<ByteArray> {
    (0..rows).map(|row| ByteArray::from(format!("name {}", row % 50).as_str())).collect()
}

/// A file with two columns, or with their nested form, and a row group for every 60 rows.
fn file_of(rows: usize, dictionary: bool, is_nested: bool) -> Bytes {
    let columns = "required int64 id; required byte_array name (UTF8);";
    let columns = if is_nested { format!("required group part {{ {columns} }}") } else { columns.into() };
    let schema = Arc::new(parse_message_type(&format!("message m {{ {columns} }}")).unwrap());
    let properties = WriterProperties::builder().set_dictionary_enabled(dictionary).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for names in names(rows).chunks(60) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<i64> = (0..names.len() as i64).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(names, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    Bytes::from(bytes)
}

fn footer_with_list(field: u8, count: u32) -> Vec<u8> {
    let mut bytes = vec![field << 4 | 9, 0xf0 | 12];
    let mut left = count;
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

fn ended(mut footer: Vec<u8>) -> Bytes {
    let length = u32::try_from(footer.len()).expect("short");
    footer.extend(length.to_le_bytes());
    footer.extend(b"PAR1");
    Bytes::from(footer)
}

/// A footer of ten bytes claimed two thousand million row groups. The library allocated memory for them, which ended the
/// process, and with it a server.
#[test]
fn a_footer_that_claims_more_than_it_holds_is_refused() {
    assert!(parquet_footer::is_plain(&file_of(10, true, false)));
    for field in [2, 4] {
        assert!(!parquet_footer::is_plain(&ended(footer_with_list(field, i32::MAX as u32))));
    }
    // A root without columns, and row groups.
    let mut groups = vec![0x29, 0x1c, 0x48, 1, b'r', 0];
    groups.extend(footer_with_list(2, i32::MAX as u32));
    assert_eq!(text_sizes(&ended(groups)), None);
    // A root that declares as many children, and nothing after it.
    let mut root = footer_with_list(2, 1);
    root.extend([5 << 4 | 5, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0]);
    assert!(!parquet_footer::is_plain(&ended(root)));
    // Thousands of nested structures.
    let deep: Vec<u8> = std::iter::repeat_n(0x1c, 100_000).collect();
    assert!(!parquet_footer::is_plain(&ended(deep)));
    for odd in [&b""[..], b"PAR1", b"\xff\xff\xff\xffPAR1", b"\0\0\0\0PARE"] {
        assert!(!parquet_footer::is_plain(&Bytes::copy_from_slice(odd)));
    }
}

#[test]
fn text_sizes_count_each_occurrence() {
    let each: usize = names(100).iter().map(ByteArray::len).sum();
    for dictionary in [false, true] {
        let file = file_of(100, dictionary, false);
        let (footer, _) = file[file.len() - 8..].split_at(4);
        let footer = u32::from_le_bytes(footer.try_into().expect("four bytes")) as usize;
        let sizes = text_sizes(&file.slice(file.len() - 8 - footer..)).expect("stored");
        assert_eq!(sizes.len(), 2);
        assert_eq!(sizes.iter().filter_map(|group| group[1]).sum::<u64>(), each as u64);
        assert!(sizes.iter().all(|group| group.len() == 2 && group[0].is_none()));
    }
    assert_eq!(text_sizes(&file_of(10, true, true)), None);
    let file = file_of(10, true, false);
    for end in [0, 7, file.len() - 1] {
        assert_eq!(text_sizes(&file.slice(..end)), None);
    }
}

proptest! {
    #[test]
    fn damaged_footers_end_no_process(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        dictionary in any::<bool>(),
        cut in 0_usize..40,
    ) {
        let mut bytes = file_of(130, dictionary, false).to_vec();
        let whole = bytes.len();
        for (place, value) in changes {
            bytes[whole - 1 - place.index(whole / 3)] = value;
        }
        bytes.truncate(whole - cut.saturating_sub(30));
        text_sizes(&Bytes::from(bytes));
    }
}

//! Files read together have the rows that each of them has by itself, and what is out of the ordinary is left to others.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, FixedSizeBinaryArray, Float64Array, Int64Array, RecordBatch,
    StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use proptest::prelude::*;

use crate::text_sizes::text_sizes;
use crate::{footer, read_together};

const PLENTY: usize = 16 << 20;

fn field(name: &str, id: i32, data_type: DataType, nullable: bool) -> Field {
    Field::new(name, data_type, nullable)
        .with_metadata(HashMap::from([("PARQUET:field_id".to_owned(), id.to_string())]))
}

fn stored_schema() -> Schema {
    Schema::new(vec![
        field("id", 1, DataType::Int64, false),
        field("name", 2, DataType::Utf8, true),
        field("amount", 3, DataType::Decimal128(18, 2), true),
        field("at", 4, DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        field("is_new", 5, DataType::Boolean, true),
        field("key", 6, DataType::FixedSizeBinary(3), true),
        field("ratio", 7, DataType::Float64, true),
    ])
}

/// As a table has it: wide texts.
fn asked_schema() -> Schema {
    Schema::new(
        stored_schema()
            .fields()
            .iter()
            .map(|field| match field.data_type() {
                DataType::Utf8 => field.as_ref().clone().with_data_type(DataType::LargeUtf8),
                _ => field.as_ref().clone(),
            })
            .collect::<Vec<_>>(),
    )
}

fn rows(first: i64, count: i64) -> RecordBatch {
    let each = || first..first + count;
    let some = |number: i64| number % 7 != 3;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(each())),
        Arc::new(StringArray::from_iter(each().map(|n| some(n).then(|| format!("name {}", n % 50))))),
        Arc::new(
            Decimal128Array::from_iter(each().map(|n| some(n).then_some(i128::from(n) * 7 - 500)))
                .with_precision_and_scale(18, 2)
                .expect("fits"),
        ),
        Arc::new(
            TimestampMicrosecondArray::from_iter(each().map(|n| some(n).then_some(n * 1_000_003)))
                .with_timezone("UTC"),
        ),
        Arc::new(BooleanArray::from_iter(each().map(|n| some(n).then_some(n % 2 == 0)))),
        Arc::new(
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                each().map(|n| some(n).then_some([n as u8, 1, 2])),
                3,
            )
            .expect("three bytes each"),
        ),
        Arc::new(Float64Array::from_iter(each().map(|n| some(n).then_some(n as f64 / 3.0)))),
    ];
    RecordBatch::try_new(Arc::new(stored_schema()), columns).expect("columns of the schema")
}

fn file_of(batch: &RecordBatch, properties: WriterProperties) -> Bytes {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).expect("a writer");
    writer.write(batch).expect("written");
    writer.close().expect("closed");
    Bytes::from(bytes)
}

fn zstd() -> WriterProperties {
    WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build()
}

fn read(files: &[Bytes], asked: &Schema) -> (RecordBatch, usize) {
    read_together(files.iter().cloned().map(Some), asked, PLENTY)
}

/// With the types of the table, and nothing said beside.
fn plain(batch: &RecordBatch) -> RecordBatch {
    let names = batch.column_by_name("name").expect("is there");
    let wide = arrow_array::LargeStringArray::from_iter(
        names.as_any().downcast_ref::<StringArray>().expect("texts").iter(),
    );
    let mut columns = batch.columns().to_vec();
    columns[1] = Arc::new(wide);
    RecordBatch::try_new(crate::columns::target(&asked_schema()), columns).expect("columns of the schema")
}

#[test]
fn files_of_any_usual_kind_are_read_as_one() {
    let usual = |compression, version, dictionary, page_rows, group_rows| {
        WriterProperties::builder()
            .set_compression(compression)
            .set_writer_version(version)
            .set_dictionary_enabled(dictionary)
            .set_data_page_row_count_limit(page_rows)
            .set_write_batch_size(16)
            .set_max_row_group_row_count(Some(group_rows))
            .set_column_encoding("id".into(), Encoding::PLAIN)
            .build()
    };
    let whole = rows(0, 1000);
    for compression in
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())]
    {
        for dictionary in [false, true] {
            let parts = [(0, 100), (100, 1), (101, 399), (500, 500)];
            let files: Vec<Bytes> = parts
                .iter()
                .map(|(begin, count)| {
                    let properties = usual(compression, WriterVersion::PARQUET_1_0, dictionary, 64, 150);
                    file_of(&whole.slice(*begin, *count), properties)
                })
                .collect();
            let (found, count) = read(&files, &asked_schema());
            assert_eq!(count, 4, "{compression} {dictionary}");
            assert_eq!(found, plain(&whole), "{compression} {dictionary}");
        }
    }
}

#[test]
fn pages_of_the_second_version_are_read_where_they_are_not_deltas() {
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let whole = rows(0, 300);
    let (found, count) = read(&[file_of(&whole, properties)], &asked_schema());
    assert_eq!((found, count), (plain(&whole), 1));
}

#[test]
fn a_file_that_was_compressed_as_a_stream_says_no_sizes_and_is_read_all_the_same() {
    // What zstd says of a frame is how large it is, if the one who compressed it knew.
    let text = "a text that is repeated ".repeat(100);
    let stream = zstd::stream::encode_all(text.as_bytes(), 1).expect("compressed");
    assert!(matches!(zstd::zstd_safe::get_frame_content_size(&stream), Ok(None)));
    let codec = Compression::ZSTD(ZstdLevel::default());
    let found = crate::pages::decompressed(&Bytes::from(stream.clone()), 0, codec, text.len()).expect("fits");
    assert_eq!(found, text.as_bytes());
    assert!(crate::pages::decompressed(&Bytes::from(stream), 0, codec, text.len() - 1).is_err());
}

#[test]
fn columns_are_found_by_their_ids() {
    // A table whose columns were renamed, put in another order, and one of them dropped.
    let asked = Schema::new(vec![
        field("value", 7, DataType::Float64, true),
        field("title", 2, DataType::LargeUtf8, true),
        field("number", 1, DataType::Int64, false),
    ]);
    let whole = rows(0, 40);
    let (found, count) = read(&[file_of(&whole, zstd()), file_of(&rows(40, 2), zstd())], &asked);
    assert_eq!((found.num_rows(), count), (42, 2));
    let whole = plain(&rows(0, 42));
    for (column, place) in [("value", 6), ("title", 1), ("number", 0)] {
        assert_eq!(found.column_by_name(column), Some(whole.column(place)));
    }
}

#[test]
fn files_of_other_columns_are_left_to_others() {
    let file = file_of(&rows(0, 10), zstd());
    let is_read = |fields: Vec<Field>| read(std::slice::from_ref(&file), &Schema::new(fields)).1 == 1;
    assert!(is_read(vec![field("id", 1, DataType::Int64, false)]));
    assert!(!is_read(vec![]), "no column");
    assert!(!is_read(vec![field("id", 9, DataType::Int64, true)]), "a column that came later");
    assert!(!is_read(vec![field("id", 1, DataType::Int32, true)]), "another type");
    assert!(!is_read(vec![field("name", 2, DataType::LargeBinary, true)]), "texts as bytes");
    assert!(!is_read(vec![field("name", 2, DataType::LargeUtf8, false)]), "there are rows without a value");
    assert!(!is_read(vec![field("amount", 3, DataType::Decimal128(20, 2), true)]), "another precision");
    assert!(!is_read(vec![Field::new("id", DataType::Int64, true)]), "no id");
    let twice = [field("id", 1, DataType::Int64, true), field("again", 1, DataType::Int64, true)];
    assert!(!is_read(twice.to_vec()), "a column twice");
    let mut extension = field("key", 6, DataType::FixedSizeBinary(3), true);
    extension.metadata_mut().insert("ARROW:extension:name".to_owned(), "a.kind".to_owned());
    assert!(!is_read(vec![extension]), "more than what is stored");
}

#[test]
fn what_stands_behind_another_kind_of_file_is_not_read_with_those_before_it() {
    let usual = file_of(&rows(0, 10), zstd());
    let less = file_of(&rows(0, 10).project(&[0, 1]).expect("two columns"), zstd());
    let asked = Schema::new(vec![field("id", 1, DataType::Int64, false)]);
    assert_eq!(read(&[usual.clone(), usual.clone(), less.clone(), usual.clone()], &asked).1, 2);
    let missing = [Some(usual.clone()), None, Some(usual)];
    assert_eq!(read_together(missing, &asked, PLENTY).1, 1);
    assert_eq!(read_together([None], &asked, PLENTY).1, 0);
}

#[test]
fn other_encodings_are_left_to_others() {
    for encoding in [Encoding::DELTA_BINARY_PACKED, Encoding::BYTE_STREAM_SPLIT] {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_column_encoding("id".into(), encoding)
            .build();
        let (found, count) = read(&[file_of(&rows(0, 10), properties)], &asked_schema());
        assert_eq!((found.num_rows(), count), (0, 0), "{encoding}");
    }
}

/// A text of a megabyte stands in a file once, and 2,000 rows refer to it: 20 kB that are two gigabytes as plain rows.
#[test]
fn rows_that_refer_to_one_long_text_are_left_to_who_reads_them_in_parts() {
    let text = "x".repeat(1 << 20);
    let schema = Arc::new(Schema::new(vec![field("name", 2, DataType::Utf8, true)]));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..2000).map(|_| text.as_str())));
    let batch = RecordBatch::try_new(schema, vec![texts]).expect("one column");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_page_size_limit(4 << 20)
        .build();
    let long = file_of(&batch, properties);
    assert!(long.len() < 100_000);
    let asked = Schema::new(vec![field("name", 2, DataType::LargeUtf8, true)]);
    assert_eq!(read(std::slice::from_ref(&long), &asked).1, 0);
}

#[test]
fn as_many_files_are_read_as_take_that_much_memory() {
    let files = vec![file_of(&rows(0, 100), zstd()); 10];
    let asked = Schema::new(vec![field("id", 1, DataType::Int64, false)]);
    for (max_size_bytes, count) in [(0, 0), (1600, 1), (4800, 3), (4900, 3), (16_000, 10)] {
        let found = read_together(files.iter().cloned().map(Some), &asked, max_size_bytes);
        assert_eq!((found.1, found.0.num_rows()), (count, 100 * count));
    }
}

/// Thrift: a structure with a list of so many structures in a field.
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

/// A footer of ten bytes said that two thousand million row groups follow. The library made room for them, and where no
/// machine has that much memory the process ended, and with it a server.
#[test]
fn a_footer_that_claims_more_than_it_holds_is_not_believed() {
    assert!(footer::is_plain(&file_of(&rows(0, 10), zstd())));
    for field in [2, 4] {
        assert!(!footer::is_plain(&ended(footer_with_list(field, i32::MAX as u32))));
    }
    // A root without columns, and row groups.
    let mut groups = vec![0x29, 0x1c, 0x48, 1, b'r', 0];
    groups.extend(footer_with_list(2, i32::MAX as u32));
    assert_eq!(read(&[ended(groups)], &asked_schema()).1, 0);
    // A root that has as many children, and nothing behind it.
    let mut root = footer_with_list(2, 1);
    root.extend([5 << 4 | 5, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0]);
    assert!(!footer::is_plain(&ended(root)));
    // Structures inside of structures, some thousands.
    let deep: Vec<u8> = std::iter::repeat_n(0x1c, 100_000).collect();
    assert!(!footer::is_plain(&ended(deep)));
    for odd in [&b""[..], b"PAR1", b"\xff\xff\xff\xffPAR1", b"\0\0\0\0PARE"] {
        assert!(!footer::is_plain(&Bytes::copy_from_slice(odd)));
    }
}

/// Texts are counted as often as they are there, also where the file has them once. Footers of columns with parts, and such
/// that lie, are left alone.
#[test]
fn footers_say_how_many_bytes_their_texts_have() {
    let each: usize = (0..100).filter(|n| n % 7 != 3).map(|n| format!("name {}", n % 50).len()).sum();
    for dictionary in [false, true] {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(dictionary)
            .set_max_row_group_row_count(Some(60))
            .build();
        let file = file_of(&rows(0, 100), properties);
        let (footer, _) = file[file.len() - 8..].split_at(4);
        let footer = u32::from_le_bytes(footer.try_into().expect("four bytes")) as usize;
        let sizes = text_sizes(&file.slice(file.len() - 8 - footer..)).expect("it says");
        assert_eq!(sizes.len(), 2);
        assert_eq!(sizes.iter().filter_map(|group| group[1]).sum::<u64>(), each as u64);
        assert!(sizes.iter().all(|group| group.len() == 7 && group[0].is_none()));
    }
    let inside = StructArray::from(vec![(
        Arc::new(Field::new("name", DataType::Utf8, true)),
        Arc::new(StringArray::from(vec!["a"])) as ArrayRef,
    )]);
    let nested = RecordBatch::try_from_iter([("parts", Arc::new(inside) as ArrayRef)]).expect("one column");
    assert_eq!(text_sizes(&file_of(&nested, zstd())), None);
    let file = file_of(&rows(0, 10), zstd());
    for end in [0, 7, file.len() - 1] {
        assert_eq!(text_sizes(&file.slice(..end)), None);
    }
    let mut groups = vec![0x29, 0x1c, 0x48, 1, b'r', 0];
    groups.extend(footer_with_list(2, i32::MAX as u32));
    assert_eq!(text_sizes(&ended(groups)), None);
}

proptest! {
    /// Bytes of a file were changed, or its end is missing. There is no checksum, so values may differ; what is read has
    /// the columns that were asked for and as many rows as it says, and nothing ends the process.
    #[test]
    fn damaged_files_are_read_or_left(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        dictionary in any::<bool>(),
        at_the_end in any::<bool>(),
        cut in 0_usize..40,
    ) {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(dictionary)
            .build();
        let mut bytes = file_of(&rows(0, 60), properties).to_vec();
        let whole = bytes.len();
        for (place, value) in changes {
            let place = if at_the_end { whole - 1 - place.index(whole / 3) } else { place.index(whole) };
            bytes[place] = value;
        }
        bytes.truncate(whole - cut.saturating_sub(30));
        let bytes = Bytes::from(bytes);
        text_sizes(&bytes);
        let (found, count) = read(&[bytes], &asked_schema());
        prop_assert!(count <= 1);
        prop_assert_eq!(found.schema(), crate::columns::target(&asked_schema()));
    }
}

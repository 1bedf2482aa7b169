//! Bloom filters of Parquet files, which pyarrow writes and does not read.

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_schema::DataType;
use parquet::bloom_filter::Sbbf;
use trinitylake_base::catch_panic::quietly;

/// Returns for each value whether the file may contain it; false for null, which no filter contains. `None` if the
/// filter cannot be decoded, or for values other than integers, dates, strings and binary.
///
/// # Arguments
///
/// * `filter`: as stored in the file, including its header.
/// * `values`: in the type in which the file stores them.
pub fn may_hold(filter: &[u8], values: &ArrayRef) -> Option<BooleanArray> {
    // The library panics on a filter without a block.
    quietly(|| checked(&Sbbf::from_bytes(filter).ok()?, values)).ok().flatten()
}

fn checked(filter: &Sbbf, values: &ArrayRef) -> Option<BooleanArray> {
    fn each<V>(values: impl Iterator<Item = Option<V>>, check: impl Fn(V) -> bool) -> BooleanArray {
        values.map(|value| Some(value.is_some_and(&check))).collect()
    }
    let number = |value: i32| filter.check(&value);
    let text = |value: &str| filter.check(value);
    let bytes = |value: &[u8]| filter.check(value);
    Some(match values.data_type() {
        DataType::Int32 => each(values.as_primitive::<Int32Type>().iter(), number),
        DataType::Date32 => each(values.as_primitive::<Date32Type>().iter(), number),
        DataType::Int64 => each(values.as_primitive::<Int64Type>().iter(), |value| filter.check(&value)),
        DataType::Utf8 => each(values.as_string::<i32>().iter(), text),
        DataType::LargeUtf8 => each(values.as_string::<i64>().iter(), text),
        DataType::Binary => each(values.as_binary::<i32>().iter(), bytes),
        DataType::LargeBinary => each(values.as_binary::<i64>().iter(), bytes),
        DataType::FixedSizeBinary(_) => each(values.as_fixed_size_binary().iter(), bytes),
        _ => return None,
    })
}

//! Sizes of the strings of a Parquet file, from its footer. A string counts as often as it occurs, also where the file
//! stores it once in a dictionary.

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use trinitylake_base::caught::quietly;

use crate::parquet_footer;

/// For each row group and each of its columns, the bytes of all strings. `None` for a column without strings, or whose
/// writer did not store their size. `None` instead of the whole for a damaged footer and for nested columns.
///
/// # Arguments
///
/// * `tail`: the end of a Parquet file, from the beginning of its footer.
pub fn text_sizes(tail: &Bytes) -> Option<Vec<Vec<Option<u64>>>> {
    if !parquet_footer::is_plain(tail) {
        return None;
    }
    // The library panics on some damaged footers.
    let metadata = quietly(|| metadata_of(tail).ok()).ok().flatten()?;
    let size = |size: i64| u64::try_from(size).ok();
    let groups = metadata.row_groups().iter().map(|group| {
        group.columns().iter().map(|column| column.unencoded_byte_array_data_bytes().and_then(size)).collect()
    });
    Some(groups.collect())
}

fn metadata_of(tail: &Bytes) -> Result<ParquetMetaData> {
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll);
    ParquetMetaDataReader::new().with_metadata_options(Some(options)).parse_and_finish(tail)
}

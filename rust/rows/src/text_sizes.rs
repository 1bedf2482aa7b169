//! How many bytes the texts of a file have, as its footer says: each counted as often as it is there, though the file may
//! have it once and refer to it.

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use trinitylake_base::caught::quietly;

use crate::footer;

/// For each row group, and each of its columns, the bytes of all texts; None for a column that has none, or whose writer
/// did not say. None for a footer that is out of the ordinary: damaged, or of columns with parts.
///
/// # Arguments
///
/// * `tail`: the end of a Parquet file, from where its footer begins.
pub fn text_sizes(tail: &Bytes) -> Option<Vec<Vec<Option<u64>>>> {
    if !footer::is_plain(tail) {
        return None;
    }
    // Parquet's library is held to give an error for whatever bytes it gets, and has panicked instead.
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

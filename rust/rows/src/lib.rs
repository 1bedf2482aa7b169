//! The rows of small Parquet files, many files in one Arrow batch; and what Bloom filters and footers of such files say.
//! No storage: bytes in, rows out.
//!
//! To read a small file is mostly to begin: a reader, a context for its codec, arrays of a thousand rows that are put
//! together afterwards. So files of the same columns are read as if they were row groups of one file, right into the
//! arrays of one batch. What is out of the ordinary is left to others: a file with other columns than those asked for,
//! with rows that may take much memory, of another codec, damaged. That is no error here, and no row is ever made up.

pub mod bloom_filter;
mod columns;
mod footer;
mod pages;
pub mod text_sizes;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use trinitylake_base::caught::quietly;

use crate::columns::Columns;
use crate::pages::{FileRows, Rows};

/// The rows of the first files, in their order, as many files as have these columns and together take little memory; and
/// how many files these are: 0 if the first is none of them.
///
/// All files that are read together have the same columns, also those that nobody asked for.
///
/// # Arguments
///
/// * `files`: the contents, one after the other; None for one that cannot be had, which ends it.
/// * `asked`: at least one column: name, type, whether values may be absent, and the id of Iceberg as Arrow names it for
///   Parquet (`PARQUET:field_id`). A column is found by its id. Widths of offsets are as they are said here, whatever the
///   files say. The rows have these columns, without what else is said of them.
/// * `max_size_bytes`: of the batch in memory, more or less, and of the files decompressed.
pub fn read_together(
    files: impl IntoIterator<Item = Option<Bytes>>,
    asked: &Schema,
    max_size_bytes: usize,
) -> (RecordBatch, usize) {
    let target = columns::target(asked);
    // Parquet's library is held to give an error for whatever bytes it gets, and has panicked instead.
    let read = quietly(|| {
        let (files, columns) = first_files(files, asked, max_size_bytes)?;
        let count = files.len();
        Some((decoded(Rows::new(files), &columns, &target).ok()?, count))
    });
    read.ok().flatten().unwrap_or_else(|| (RecordBatch::new_empty(target), 0))
}

fn first_files(
    files: impl IntoIterator<Item = Option<Bytes>>,
    asked: &Schema,
    max_size_bytes: usize,
) -> Option<(Vec<FileRows>, Columns)> {
    let mut found: Vec<FileRows> = Vec::new();
    let mut columns = None;
    let mut left = max_size_bytes;
    for file in files {
        let Some(file) = file.filter(footer::is_plain) else { break };
        let Ok(metadata) = metadata_of(&file) else { break };
        if found.first().is_some_and(|first| !first.has_columns_of(&metadata)) {
            break;
        }
        if columns.is_none() {
            columns = columns::find(metadata.file_metadata().schema_descr(), asked);
        }
        let Some(columns) = &columns else { break };
        let Ok(Some(rows)) = FileRows::decompressed(&file, metadata, &columns.leaves, left) else { break };
        left -= rows.size_bytes();
        found.push(rows);
    }
    columns.filter(|_| !found.is_empty()).map(|columns| (found, columns))
}

fn metadata_of(file: &Bytes) -> Result<ParquetMetaData> {
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll);
    ParquetMetaDataReader::new().with_metadata_options(Some(options)).parse_and_finish(file)
}

fn decoded(rows: Rows, columns: &Columns, target: &SchemaRef) -> Result<RecordBatch> {
    let count = rows.count();
    if count == 0 {
        return Ok(RecordBatch::new_empty(target.clone()));
    }
    let mut reader = ParquetRecordBatchReader::try_new_with_row_groups(&columns.levels, &rows, count, None)?;
    let batch = reader.next().transpose()?.filter(|batch| batch.num_rows() == count);
    let batch =
        batch.ok_or_else(|| ParquetError::General("rows are missing".to_owned()))?.project(&columns.order)?;
    Ok(RecordBatch::try_new(target.clone(), batch.columns().to_vec())?)
}

#[cfg(test)]
mod tests;

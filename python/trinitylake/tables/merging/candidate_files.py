"""Selects the data files that may have one of many keys, by partition, column bounds and Bloom filters.

The filter of a statement lists the keys only if they are few; for many keys it has only their range (`key_filter`). So
this module compares files with all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DateType, DecimalType, IcebergType, IntegerType, LongType, StringType

from trinitylake.iceberg_storage.data_files.bloom_filters import asked_columns, may_hold
from trinitylake.iceberg_storage.data_files.streamed_rows import READ_AHEAD
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.tables.merging.join_keys import whole_numbers

#: Keys with more distinct values in a column that is not integer are not compared with bounds.
MAX_VALUES = 1_000_000
#: Reading a file smaller than this takes no longer than reading its Bloom filters.
_SMALL_SIZE_BYTES = 256 << 10


def candidate_files(
    metadata: TableMetadata, io: FileIO, filter: BooleanExpression, keys: pa.Table, columns: Sequence[str]
) -> list[FileScanTask]:
    """The files of the current snapshot that may have a row with one of `keys`, ordered by path.

    Args:
        filter: matches all rows with one of the keys.
        keys: rows with the key `columns`, with the types of the table.
    """
    if metadata.current_snapshot_id is None or keys.num_rows == 0:
        return []
    schema = metadata.schema()
    values = {name: found for name in columns if (found := _ascending(keys.column(name), schema.find_type(name)))}
    tasks = files_of_branch(metadata, io, RowFilter.of(filter, schema).and_also(RowFilter.among(schema, values)))
    return sorted(_by_bloom_filters(metadata, io, tasks, keys, columns), key=lambda task: task.file.file_path)


def _by_bloom_filters(
    metadata: TableMetadata, io: FileIO, tasks: Sequence[FileScanTask], keys: pa.Table, columns: Sequence[str]
) -> Sequence[FileScanTask]:
    """The files whose Bloom filters do not exclude all keys; all files if there are too many keys for a look-up."""
    schema = metadata.schema()
    asked = asked_columns(metadata.properties, schema, keys, columns)
    if not asked:
        return tasks

    def is_candidate(task: FileScanTask) -> bool:
        file = task.file
        if file.file_format != FileFormat.PARQUET or file.file_size_in_bytes < _SMALL_SIZE_BYTES:
            return True
        return may_hold(io.new_input(file.file_path), schema, keys, asked)

    with ThreadPoolExecutor(READ_AHEAD, "trinitylake-filters") as pool:
        return [task for task, is_one in zip(tasks, pool.map(is_candidate, tasks), strict=True) if is_one]


def _ascending(column: pa.ChunkedArray, kind: IcebergType) -> list[Any] | None:
    """The values of a column without NULL, ascending; None for too many values, and for types that are rarely keys."""
    if isinstance(kind, IntegerType | LongType | DateType):
        numbers: list[Any] = np.sort(whole_numbers(column.drop_null())).tolist()
        return numbers
    if not isinstance(kind, StringType | DecimalType):
        return None
    distinct = pc.unique(column).drop_null()
    return None if len(distinct) > MAX_VALUES else sorted(distinct.to_pylist())

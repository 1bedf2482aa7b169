"""Selects the data files that may have one of many keys, by partition, bounds of columns, and Bloom filters.

The filter of a statement lists few keys only, and has the range of many (`key_filter`). So files are compared with all
keys here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, PrimitiveType, StringType

from trinitylake.iceberg_storage.data_files.bloom_filters import asked_columns, may_hold
from trinitylake.iceberg_storage.data_files.partitioned_rows import transformed
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch
from trinitylake.iceberg_storage.name_mapping import columns_with_moved_names
from trinitylake.tables.merging.dense_keys import whole_numbers
from trinitylake.tables.streamed_rows import READ_AHEAD

#: Bounds are not compared with more distinct values of a column, unless they are integers.
MAX_VALUES = 1_000_000
#: Reading a smaller file takes no longer than reading its Bloom filters.
_SMALL_SIZE_BYTES = 256 << 10


def candidate_files(
    metadata: TableMetadata, io: FileIO, filter: BooleanExpression, keys: pa.Table, columns: Sequence[str]
) -> list[FileScanTask]:
    """The files of the current snapshot that may have a row with one of `keys`, ordered by path.

    Args:
        metadata, io: of the table.
        filter: matches all rows with one of the keys.
        keys: rows with the key `columns`, with the types of the table.
    """
    if metadata.current_snapshot_id is None or keys.num_rows == 0:
        return []
    moved = columns_with_moved_names(metadata)
    reliable = [name for name in columns if metadata.schema().find_field(name).field_id not in moved]
    tests = [*_bounds_tests(metadata, keys, reliable), *_partition_tests(metadata, keys, reliable)]
    tasks = [task for task in files_of_branch(metadata, io, filter) if all(test(task.file) for test in tests)]
    return sorted(_by_bloom_filters(metadata, io, tasks, keys, columns), key=lambda task: task.file.file_path)


def _by_bloom_filters(
    metadata: TableMetadata, io: FileIO, tasks: Sequence[FileScanTask], keys: pa.Table, columns: Sequence[str]
) -> Sequence[FileScanTask]:
    """The files whose Bloom filters do not exclude all keys. Many keys are not looked up."""
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


def _bounds_tests(
    metadata: TableMetadata, keys: pa.Table, columns: Sequence[str]
) -> Iterable[Callable[[DataFile], bool]]:
    """Tests whether the bounds of a column in a file contain a key."""
    for name in columns:
        field = metadata.schema().find_field(name)
        if not isinstance(field.field_type, IntegerType | LongType | DateType | StringType | DecimalType):
            continue  # NaN is not in bounds; other types are rarely keys
        values = _ascending(keys.column(name), field.field_type)
        if values is not None:
            yield _within(field.field_id, field.field_type, values)


def _within(id: int, kind: PrimitiveType, values: Sequence[Any]) -> Callable[[DataFile], bool]:
    def test(file: DataFile) -> bool:
        lower, upper = (file.lower_bounds or {}).get(id), (file.upper_bounds or {}).get(id)
        if lower is None or upper is None:
            return True
        try:
            low, high = from_bytes(kind, lower), from_bytes(kind, upper)
            position = bisect_left(values, low)
        except Exception:  # bounds of a former type exclude nothing
            return True
        return position < len(values) and bool(values[position] <= high)

    return test


def _ascending(column: pa.ChunkedArray, kind: PrimitiveType) -> Sequence[Any] | None:
    """The values of a column without nulls, ascending; None for too many."""
    if isinstance(kind, IntegerType | LongType | DateType):
        numbers: Sequence[Any] = np.sort(whole_numbers(column.drop_null()))  # type: ignore[assignment]
        return numbers
    distinct = pc.unique(column).drop_null()
    if len(distinct) > MAX_VALUES:
        return None
    values: list[Any] = distinct.to_pylist()  # Python orders them as Iceberg does
    values.sort()
    return values


def _partition_tests(
    metadata: TableMetadata, keys: pa.Table, columns: Sequence[str]
) -> Iterable[Callable[[DataFile], bool]]:
    """Tests whether the partition of a file contains a key, for integers and texts."""
    names = {metadata.schema().find_field(name).field_id: name for name in columns}
    for spec in metadata.partition_specs:
        for position, field in enumerate(spec.fields):
            name = names.get(field.source_id)
            if name is None or not isinstance(field.transform, BucketTransform | IdentityTransform | TruncateTransform):
                continue
            kind = metadata.schema().find_field(name).field_type
            if not isinstance(kind, IntegerType | LongType | StringType):
                continue
            values = transformed(keys.column(name), field.transform, kind)
            inside = frozenset(pc.unique(values).to_pylist())
            yield _in_partition(spec.spec_id, position, inside)


def _in_partition(spec_id: int, position: int, inside: frozenset[Any]) -> Callable[[DataFile], bool]:
    return lambda file: file.spec_id != spec_id or file.partition[position] in inside

"""Share of NULL and bounds of the columns of a table, from the metrics of its data files.

No data file is read. Deleted rows are still counted, and bounds of long strings are truncated. If a file has no metrics
for a column, the profile of the column is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.types import BinaryType, FixedType, NestedField, UUIDType

from trinitylake.iceberg_storage.column_summary import value_of_bytes

Metric = TypeVar("Metric", int, bytes)


class ColumnProfile(NamedTuple):
    """Share of NULL and bounds of one column; None if unknown.

    Attributes:
        nulls: share of rows with NULL, from 0 to 1.
        bounds: the smallest and the largest value, in the Arrow type of the column.
    """

    nulls: float | None = None
    bounds: pa.Array | None = None


def column_profiles(
    files: Sequence[DataFile], fields: Iterable[NestedField], types: pa.Schema, unknown: Collection[int] = ()
) -> list[ColumnProfile]:
    """The profile of each field. `types` are the Arrow types; `unknown` are ids of fields with unreliable metrics."""
    n_rows = sum(file.record_count for file in files)
    return [
        ColumnProfile()
        if not n_rows or field.field_id in unknown
        else _profile(files, field, types.field(field.name).type, n_rows)
        for field in fields
    ]


def _profile(files: Sequence[DataFile], field: NestedField, type: pa.DataType, n_rows: int) -> ColumnProfile:
    if not field.field_type.is_primitive:
        return ColumnProfile()
    counts = [_of(file.null_value_counts, field.field_id) for file in files]
    n_nulls = sum(count for count in counts if count is not None)
    nulls = None if None in counts else n_nulls / n_rows
    with_values = [file for file, count in zip(files, counts, strict=True) if count != file.record_count]
    return ColumnProfile(nulls, _bounds(with_values, field, type))


def _bounds(files: Sequence[DataFile], field: NestedField, type: pa.DataType) -> pa.Array | None:
    if not files or isinstance(field.field_type, BinaryType | FixedType | UUIDType):
        return None
    lower = [value_of_bytes(field.field_type, _of(file.lower_bounds, field.field_id)) for file in files]
    upper = [value_of_bytes(field.field_type, _of(file.upper_bounds, field.field_id)) for file in files]
    if None in lower or None in upper:
        return None
    found = [min(lower), max(upper)]
    try:
        if pa.types.is_temporal(type):  # dates and times are numbers in the metrics
            return pa.array(found, pa.int32() if type.bit_width == 32 else pa.int64()).cast(type)
        return pa.array(found, type)
    except pa.ArrowException:  # damaged metrics
        return None


def _of(metrics: Mapping[int, Metric] | None, id: int) -> Metric | None:
    return None if metrics is None else metrics.get(id)

"""Statistics of Parquet columns as Iceberg values.

Scans use the statistics to skip row groups, and writers to make the metrics of a file. They are read in their stored
form instead of Python's date types, so dates outside of the years 1 to 9999 work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema, sanitize_column_names

from trinitylake.iceberg_storage.column_summary import ANYTHING, ColumnSummary, scaled, successor

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_UNITS: dict[type, str] = {
    iceberg.TimeType: "microseconds",
    iceberg.TimestampType: "microseconds",
    iceberg.TimestamptzType: "microseconds",
    iceberg.TimestampNanoType: "nanoseconds",
    iceberg.TimestamptzNanoType: "nanoseconds",
}


def value_of_raw(type: iceberg.IcebergType, column: pq.ColumnSchema, raw: Any) -> Any:
    """Decode a stored bound as a value of a type; None if the bound is unusable or of another type."""
    match type:
        case iceberg.FloatType() | iceberg.DoubleType():
            return None if not isinstance(raw, float) or math.isnan(raw) else raw
        case iceberg.BooleanType():
            return raw if isinstance(raw, bool) else None
        case iceberg.StringType():
            return _text(raw)
        case iceberg.BinaryType() | iceberg.FixedType() | iceberg.UUIDType():
            return raw if isinstance(raw, bytes) else None
        case iceberg.DecimalType():
            number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
            return scaled(number, type.scale) if isinstance(number, int) and column.scale == type.scale else None
    if not isinstance(raw, int):
        return None
    logical = column.logical_type
    if isinstance(type, iceberg.IntegerType | iceberg.LongType):
        return raw if logical.type == "NONE" or '"isSigned":true' in logical.to_json() else None
    if isinstance(type, iceberg.DateType):
        return raw if logical.type == "DATE" else None
    unit = _UNITS.get(type.__class__)
    return raw if unit is not None and f'"timeUnit":"{unit}"' in logical.to_json() else None


def _text(raw: Any) -> str | None:
    try:
        return raw.decode() if isinstance(raw, bytes) else None
    except UnicodeDecodeError:
        return None


class FileMetrics:
    """The metrics of a data file, from its footer and the metrics modes of its table.

    Parquet statistics do not count NaN values, so the writer calls `nan_counts`.

    Args:
        properties: of the table, with the metrics modes.
        columns: the columns of a file that another program wrote, with their names in the file; by default the columns
            of `schema`.

    Attributes:
        ids: the ids of the columns of a file, by their paths.
    """

    def __init__(self, schema: Schema, properties: Mapping[str, str], columns: Schema | None = None) -> None:
        from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping

        written = sanitize_column_names(schema)
        self.ids = parquet_path_to_id_mapping(written if columns is None else columns)
        self._modes = compute_statistics_plan(written, dict(properties))
        self._counts_nan = [
            (field.field_id, position)
            for position, field in enumerate(schema.fields)
            if isinstance(field.field_type, iceberg.FloatType | iceberg.DoubleType)
            and self._mode(field.field_id) != "none"
        ]

    def nan_counts(self, rows: pa.Table) -> dict[int, int]:
        """Number of NaN values of top-level columns, by the id of the column.

        Args:
            rows: with the columns of the table in its order.
        """
        return {
            id: sum(pc.is_nan(chunk).true_count for chunk in rows.column(position).chunks)
            for id, position in self._counts_nan
        }

    def of(self, metadata: pq.FileMetaData) -> dict[str, Any]:
        """The arguments of `DataFile.from_args` from a footer."""
        sizes: dict[int, int] = {}
        values: dict[int, int] = {}
        nulls: dict[int, int] = {}
        lower: dict[int, Any] = {}
        upper: dict[int, Any] = {}
        unknown: set[int] = set()
        offsets = []
        columns = [(place, self.ids.get(metadata.schema.column(place).path)) for place in range(metadata.num_columns)]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for place, id in columns:
                chunk = group.column(place)
                if place == 0:
                    data, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
                    offsets.append(data if dictionary is None else min(data, dictionary))
                if id is None:
                    continue
                sizes[id] = sizes.get(id, 0) + chunk.total_compressed_size
                if (mode := self._mode(id)) == "none":
                    continue
                values[id] = values.get(id, 0) + chunk.num_values
                found = chunk.statistics
                if found is None or not found.has_null_count:
                    unknown.add(id)
                    continue
                nulls[id] = nulls.get(id, 0) + found.null_count
                if mode == "counts" or found.null_count == chunk.num_values:
                    continue
                type, column = self._modes[id].iceberg_type, metadata.schema.column(place)
                low, high = (
                    (value_of_raw(type, column, found.min_raw), value_of_raw(type, column, found.max_raw))
                    if found.has_min_max
                    else (None, None)
                )
                # A column of NaN has no bounds, and does not invalidate the bounds of other row groups.
                if low is None or high is None:
                    if not isinstance(type, iceberg.FloatType | iceberg.DoubleType):
                        unknown.add(id)
                    continue
                lower[id] = min(low, lower.get(id, low))
                upper[id] = max(high, upper.get(id, high))
        known = lower.keys() - unknown
        return {
            "record_count": metadata.num_rows,
            "column_sizes": sizes,
            "value_counts": values,
            "null_value_counts": {id: count for id, count in nulls.items() if id not in unknown},
            "nan_value_counts": {},
            "lower_bounds": {id: self._bytes(id, self._cut_lower(id, lower[id])) for id in sorted(known)},
            "upper_bounds": {
                id: self._bytes(id, value)
                for id in sorted(known)
                if (value := self._cut_upper(id, upper[id])) is not None
            },
            "split_offsets": sorted(offsets),
        }

    def _mode(self, id: int) -> str:
        return str(self._modes[id].mode.type.value) if id in self._modes else "none"

    def _bytes(self, id: int, value: Any) -> bytes:
        return to_bytes(self._modes[id].iceberg_type, value)

    def _cut_lower(self, id: int, value: Any) -> Any:
        length = self._modes[id].mode.length
        return value if length is None or not isinstance(value, str | bytes) else value[:length]

    def _cut_upper(self, id: int, value: Any) -> Any:
        """Upper bound truncated to the length of the metrics mode; None if no such bound exists."""
        length = self._modes[id].mode.length
        if length is None or not isinstance(value, str | bytes) or len(value) <= length:
            return value
        return successor(value[:length])


class RowGroupSummaries:
    """Summaries of columns by row group, from the footer of a Parquet file.

    Args:
        schema: its columns, with the ids of the table.
        wanted: the types of columns in the table, by id.
    """

    def __init__(self, metadata: pq.FileMetaData, schema: Schema, wanted: dict[int, iceberg.IcebergType]) -> None:
        self._metadata = metadata
        self._places: dict[int, tuple[int, iceberg.IcebergType]] = {}
        paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        for id, path, type in _leaves(schema.as_struct(), ""):
            if id in wanted and paths.count(path) == 1:
                is_widened_date = isinstance(type, iceberg.DateType) and not isinstance(wanted[id], iceberg.DateType)
                if not is_widened_date:  # its statistics are in days, and the values of the table in microseconds
                    self._places[id] = paths.index(path), type

    def of(self, row_group: int, id: int) -> ColumnSummary:
        if id not in self._places:
            return ANYTHING
        place, type = self._places[id]
        chunk = self._metadata.row_group(row_group).column(place)
        found = chunk.statistics
        if found is None:
            return ANYTHING
        nulls = found.null_count if found.has_null_count else None
        is_floating = isinstance(type, iceberg.FloatType | iceberg.DoubleType)
        has_values = nulls is None or chunk.num_values > nulls
        if not found.has_min_max:
            return ColumnSummary(nulls != 0, is_floating, has_values)
        column = self._metadata.schema.column(place)
        return ColumnSummary(
            nulls != 0,
            is_floating,
            has_values,
            value_of_raw(type, column, found.min_raw),
            value_of_raw(type, column, found.max_raw),
        )


def _leaves(struct: iceberg.StructType, above: str) -> Any:
    for field in struct.fields:
        path = f"{above}{field.name}"
        if isinstance(field.field_type, iceberg.StructType):
            yield from _leaves(field.field_type, f"{path}.")
        elif field.field_type.is_primitive:
            yield field.field_id, path, field.field_type

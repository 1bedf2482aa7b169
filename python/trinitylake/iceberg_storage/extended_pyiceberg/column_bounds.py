"""What is told of the columns of a data file, as a manifest holds it: PyIceberg's, without what it makes anew for each
column of each file. Where few rows are appended, that took a twentieth of the time.

How many values are NaN is counted here, for Parquet does not say it: bounds leave NaN out, which is larger than any
number, so of a file without that count nobody knows that it holds nothing above 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io.fileformat import DataFileStatistics
    from pyiceberg.io.pyarrow import StatisticsCollector

#: Types whose bounds Arrow gives as PyIceberg has them. Decimals are numbers without their scale there.
_AS_ARROW_HAS_THEM = (
    BooleanType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    StringType,
    BinaryType,
)


class FlatColumn(NamedTuple):
    """What is told of one column of a file.

    Attributes:
        id: of the field.
        kind: its type.
        is_counted: whether more than its size is told.
        is_bounded: whether bounds are.
        length: of bounds that are cut; None for those that are not.
    """

    id: int
    kind: PrimitiveType
    is_counted: bool
    is_bounded: bool
    length: int | None


def flat_columns(schema: Schema, statistics: Mapping[int, StatisticsCollector]) -> list[FlatColumn] | None:
    """The columns of files of a schema, in their order, as far as `told` takes the short way; None if one has parts, or
    a type that PyIceberg alone can tell bounds of.

    Args:
        schema: of the files.
        statistics: what is told of each column.
    """
    columns = []
    for field in schema.fields:
        kind, mode = field.field_type, statistics[field.field_id].mode if field.field_id in statistics else None
        if mode is None or not isinstance(kind, _AS_ARROW_HAS_THEM):
            return None
        wanted = mode.type.value
        is_counted = wanted != "none"
        columns.append(FlatColumn(field.field_id, kind, is_counted, is_counted and wanted != "counts", mode.length))
    return columns


def told(
    metadata: pq.FileMetaData,
    columns: Sequence[FlatColumn] | None,
    statistics: dict[int, StatisticsCollector],
    leaves: dict[str, int],
) -> dict[str, Any]:
    """The arguments of a data file that tell of its columns. Those that are NaN are not counted (`NanCounts`).

    Args:
        metadata: of the file.
        columns: as `flat_columns` gives them for its schema.
        statistics: what is told of each column.
        leaves: the columns in the file, by their paths, with their ids.
    """
    if columns is not None and (short := _told_of_flat(metadata, columns)) is not None:
        return short
    from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata

    return serialized(data_file_statistics_from_parquet_metadata(metadata, statistics, leaves))


def _told_of_flat(metadata: pq.FileMetaData, columns: Sequence[FlatColumn]) -> dict[str, Any] | None:
    """What PyIceberg tells, which looks up each column of each row group several times; None where Arrow has less."""
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    least: dict[int, Any] = {}
    most: dict[int, Any] = {}
    offsets = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for position, (id, _, is_counted, is_bounded, _) in enumerate(columns):
            chunk = group.column(position)
            if position == 0:
                data, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
                offsets.append(data if dictionary is None else min(data, dictionary))
            sizes[id] = sizes.get(id, 0) + chunk.total_compressed_size
            if not is_counted:
                continue
            values[id] = values.get(id, 0) + chunk.num_values
            found = chunk.statistics
            if found is None:
                return None
            if found.has_null_count:
                nulls[id] = nulls.get(id, 0) + found.null_count
            if not is_bounded or not found.has_min_max:
                continue
            low, high = found.min, found.max
            least[id] = low if id not in least else min(low, least[id])
            most[id] = high if id not in most else max(high, most[id])
    bounds = {}
    for position, (id, kind, _, _, length) in enumerate(columns):
        if id in least:
            whole = _bounds(kind, length, least[id], most[id])
            stored = "" if whole else metadata.schema.column(position).physical_type
            bounds[id] = whole or _cut(kind, stored, length, least[id], most[id])
    return {
        "record_count": metadata.num_rows,
        "column_sizes": sizes,
        "value_counts": values,
        "null_value_counts": nulls,
        "nan_value_counts": {},
        "lower_bounds": {id: low for id, (low, _) in bounds.items() if low is not None},
        "upper_bounds": {id: high for id, (_, high) in bounds.items() if high is not None},
        "split_offsets": sorted(offsets),
    }


def serialized(statistics: DataFileStatistics) -> dict[str, Any]:
    """The arguments of a data file, as `DataFileStatistics.to_serialized_dict` has them."""
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for id, column in statistics.column_aggregates.items():
        bounds = _bounds(column.primitive_type, column.trunc_length, column.current_min, column.current_max)
        least, most = bounds or (column.min_as_bytes(), column.max_as_bytes())
        if least is not None:
            lower[id] = least
        if most is not None:
            upper[id] = most
    return {
        "record_count": statistics.record_count,
        "column_sizes": statistics.column_sizes,
        "value_counts": statistics.value_counts,
        "null_value_counts": statistics.null_value_counts,
        "nan_value_counts": statistics.nan_value_counts,
        "lower_bounds": lower,
        "upper_bounds": upper,
        "split_offsets": statistics.split_offsets,
    }


def nan_columns(schema: Schema, statistics: Mapping[int, StatisticsCollector]) -> list[tuple[int, int]]:
    """Id and position of the columns whose values that are NaN are counted.

    Nested columns, which have no bounds that NaN could lie outside of, are left out.

    Args:
        schema: of the rows.
        statistics: what is told of each column.
    """
    return [
        (field.field_id, position)
        for position, field in enumerate(schema.fields)
        if isinstance(field.field_type, FloatType | DoubleType)
        and (wanted := statistics.get(field.field_id)) is not None
        and wanted.mode.type.value != "none"
    ]


class NanCounts:
    """How many values of each of some columns of a file are NaN, by its id.

    Args:
        columns: as `nan_columns` gives them.
    """

    def __init__(self, columns: Sequence[tuple[int, int]]) -> None:
        self._columns = columns
        self.counts = {id: 0 for id, _ in columns}

    def count(self, rows: pa.Table) -> None:
        """Count those of some rows, which have the columns of the schema in its order."""
        if not self._columns:
            return
        import pyarrow.compute as pc

        for id, position in self._columns:
            self.counts[id] += sum(pc.is_nan(chunk).true_count for chunk in rows.column(position).chunks)


def _bounds(kind: PrimitiveType, length: int | None, least: Any, most: Any) -> tuple[bytes | None, bytes | None] | None:
    """The bounds as bytes; None if they have to be cut."""
    if isinstance(kind, StringType | BinaryType):
        # An upper bound that is cut is made greater, which is PyIceberg's to know.
        is_whole = isinstance(most, str if isinstance(kind, StringType) else bytes)
        is_whole = is_whole and (length is None or len(most) <= length)
    else:
        is_whole = length is None
    if not is_whole:
        return None
    serialize = to_bytes.dispatch(type(kind))
    return (
        None if least is None else serialize(kind, least if length is None else least[:length]),
        None if most is None else serialize(kind, most),
    )


def _cut(
    kind: PrimitiveType, stored: str, length: int | None, least: Any, most: Any
) -> tuple[bytes | None, bytes | None]:
    from pyiceberg.io.pyarrow import StatsAggregator

    column = StatsAggregator(kind, stored, length)
    column.update_min(least)
    column.update_max(most)
    return column.min_as_bytes(), column.max_as_bytes()

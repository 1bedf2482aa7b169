"""Converts the input rows of a write to the columns and types of the table.

The input is read once, before the first attempt of a statement (`taken`). A statement may be repeated after a lost
race, when an iterator would be empty or have other rows. So all attempts read the same copy, a `pyarrow.Table` or a
`Spool`.

Values are cast to the type of the column only if nothing is lost. Missing optional columns become null. Columns and
struct fields that the table does not have raise an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, partial
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from trinitylake.definitions.arrow_types import type_text
from trinitylake.definitions.schema import refuse_objects
from trinitylake.definitions.sql_type_grammar import MAX_DEPTH
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import (
    arrow_schema,
    cast_parts,
    has_part,
    no_rows,
    nulls,
    requires_parts,
)
from trinitylake.iceberg_storage.data_files.written_values import check_columns, check_values, defaulted, leaf_arrays
from trinitylake.iceberg_storage.errors import translated
from trinitylake.tables.declared_limits import NO_LIMITS, Limits, check_limit
from trinitylake.tables.spool import Spool
from trinitylake.tables.text_casts import (
    decoded,
    has_uuids,
    is_parsed,
    parsed,
    plain_numbers,
    simple_values,
    texts_of_uuids,
    uuids_of_texts,
    with_parts,
)

#: Rows that a statement writes. Tables and spools can be read several times, a reader only once.
Rows: TypeAlias = "pa.Table | Spool | pa.RecordBatchReader"


# Classes of objects with all rows in memory, which become Arrow tables without a copy.
_IN_MEMORY = (("polars", "DataFrame"), ("polars", "Series"), ("pandas", "DataFrame"))

_SCALAR_TYPE = re.compile(r" as a scalar of type \S+")
#: Number of rows of a query that are requested at a time.
BATCH_ROWS = 100_000

#: Number of decimal digits that a floating-point type preserves, and the relative error of a number within these
#: digits, by the bits of the type.
_DIGITS = {16: 3, 32: 6, 64: 15}
_ERRORS = {bits: 10.0**-digits for bits, digits in _DIGITS.items()}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXPECTED = (
    "expected Arrow data (pyarrow, polars, pandas, duckdb, a dict of columns, a list of dicts, an iterator of "
    "record batches or dicts), got {}"
)


@contextmanager
def taken(
    data: Any, *, repeatable: bool, joined_with: Schema | None = None, schema: Callable[[], Schema] | None = None
) -> Iterator[Rows]:
    """Context manager: the rows of a tabular object, which is read once.

    Accepts any object with the Arrow C stream interface (pyarrow, polars, pandas, duckdb), a polars `LazyFrame`, a
    mapping of columns, a list or another iterable of dictionaries, and an iterable of record batches or tables.

    Args:
        repeatable: whether the rows can be read several times in the block. If so, a stream is read to its end, and a
            large stream is stored in a temporary file (`Spool`).
        joined_with: schema of a table that the rows are joined with. If given, a stream gets the types of the columns
            of this schema, and a large stream is stored in a file that is mapped into memory.
        schema: returns the schema of the table, which decides whether a dictionary or a list of pairs is a map.

    Raises `InvalidArgument` for other inputs, and the errors of the input while it is read.
    """
    with translated(f"cannot read {type(data).__name__} as Arrow"):
        rows = _taken(data, _maps_of(schema))
        for column in rows.schema:
            _check_depth(column.type, f"column {column.name}: ")
        if isinstance(rows, pa.RecordBatchReader):
            rows = pa.RecordBatchReader.from_batches(rows.schema, map(partial(_with_columns_of, rows.schema), rows))
        if joined_with is not None and isinstance(rows, pa.RecordBatchReader):
            rows = _spooled(rows, arrow_schema(joined_with))
        elif repeatable and isinstance(rows, pa.RecordBatchReader):
            rows = Spool(rows.schema, rows)
    try:
        yield rows
    finally:
        if isinstance(rows, Spool):
            rows.close()


def _check_depth(kind: pa.DataType, place: str = "") -> None:
    """Raise `InvalidArgument` for a type that is nested more deeply than a table permits."""
    level, depth = [kind], 0
    while level := [kind.field(number).type for kind in level for number in range(kind.num_fields)]:
        depth += 1
        if depth > 2 * MAX_DEPTH:  # a map has two levels in Arrow
            raise InvalidArgument(f"{place}types are nested in at most {MAX_DEPTH} levels")


def _with_columns_of(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a stream with the columns in the order of the stream: **columns are matched by name**.

    Arrow itself matches the columns of batches by position. Raises `InvalidArgument` for other columns or types.
    """
    if batch.schema.equals(schema):
        return batch
    if sorted(batch.schema.names) != sorted(schema.names) or len(set(schema.names)) != len(schema):
        raise InvalidArgument(
            f"a record batch has the columns {', '.join(batch.schema.names)}, and the first one of the stream has "
            f"{', '.join(schema.names)}: give all batches the same columns"
        )
    for field in schema:
        if (there := batch.schema.field(field.name).type) != field.type:
            raise InvalidArgument(
                f"column {field.name} of a record batch has the type {there}, and in the first one of the stream "
                f"{field.type}: give all batches the same types"
            )
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _spooled(rows: pa.RecordBatchReader, target: pa.Schema) -> Spool:
    """The rows of a stream for a join, with the types that columns of the same name have in a table."""
    fields = [
        field.with_type(target.field(field.name).type) if field.name in target.names else field for field in rows.schema
    ]
    schema = pa.schema(fields)
    batches = (
        pa.RecordBatch.from_arrays(
            [_cast(one, to) for one, to in zip(batch.columns, fields, strict=True)], schema=schema
        )
        for batch in rows
    )
    return Spool(schema, batches, is_mapped=True)


def read_all(data: Any, schema: Callable[[], Schema] | None = None) -> pa.Table:
    """All rows of an input that `taken` accepts, in memory. Raises as `taken` does."""
    with taken(data, repeatable=False, schema=schema) as rows:
        return rows if isinstance(rows, pa.Table) else rows.read_all()


def without_views(rows: pa.Table) -> pa.Table:
    """Convert the string views of polars, which Arrow cannot filter, to plain strings."""
    wide = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return rows.cast(pa.schema([field.with_type(wide.get(field.type, field.type)) for field in rows.schema]))


#: The types of columns that are maps.
_Maps: TypeAlias = Callable[[], Mapping[str, pa.DataType]]


def _maps_of(schema: Callable[[], Schema] | None) -> _Maps:
    @cache
    def maps() -> dict[str, pa.DataType]:
        fields = () if schema is None else arrow_schema(schema())
        return {field.name: field.type for field in fields if has_part(field.type, pa.types.is_map)}

    return maps


def _taken(data: Any, maps: _Maps) -> pa.Table | pa.RecordBatchReader:
    if _is_a(data, (("polars", "DataFrame"), ("polars", "LazyFrame"))):
        refuse_objects(data.collect_schema())
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatchReader):
        return data  # not through a C stream, which would lose the class of an exception in the caller's code
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return pa.table({name: _column_of(name, values, maps) for name, values in data.items()})
    if _is_a(data, (("polars", "LazyFrame"),)):
        return _of_lazy_frame(data)
    if _is_a(data, (("duckdb", "DuckDBPyRelation"),)):
        has_new_name = hasattr(data, "to_arrow_reader")  # since DuckDB 1.4
        return (data.to_arrow_reader if has_new_name else data.fetch_arrow_reader)(BATCH_ROWS)
    if _is_a(data, _IN_MEMORY):
        return pa.table(data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | bytearray | memoryview):
        return _taken_from(iter(data), data, maps)
    raise InvalidArgument(_EXPECTED.format(type(data).__name__))


def _of_lazy_frame(data: Any) -> pa.Table | pa.RecordBatchReader:
    """Streams the rows of a polars LazyFrame from its engine."""
    if not hasattr(data, "collect_batches"):  # polars before 1.34
        return pa.table(data.collect())
    from polars import DataFrame

    schema = pa.table(DataFrame(schema=data.collect_schema())).schema
    frames = data.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming")
    batches = (batch for frame in frames for batch in pa.table(frame).cast(schema).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _taken_from(items: Iterator[Any], data: Any, maps: _Maps) -> pa.Table | pa.RecordBatchReader:
    nothing = object()  # None may be the first item
    if (first := next(items, nothing)) is nothing:
        return pa.table({})
    if isinstance(first, pa.RecordBatch | pa.Table):
        return pa.RecordBatchReader.from_batches(first.schema, _batches(chain([first], items)))
    if isinstance(first, Mapping):
        rows = [first, *items]
        if all(isinstance(row, Mapping) for row in rows):
            # Arrow would only use the columns of the first row.
            names = dict.fromkeys(name for row in rows for name in row)
            if not names:
                raise InvalidArgument("the rows have no columns")
            return pa.table({name: _array(name, [row.get(name) for row in rows], maps) for name in names})
        first = next(row for row in rows if not isinstance(row, Mapping))
    raise InvalidArgument(_EXPECTED.format(f"{type(data).__name__} of {type(first).__name__}"))


def _batches(items: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    for item in items:
        if isinstance(item, pa.RecordBatch):
            yield item
        elif isinstance(item, pa.Table):
            yield from item.to_batches()
        else:
            raise InvalidArgument(f"expected record batches to the end, got {type(item).__name__}")


def _column_of(name: Any, values: Any, maps: _Maps) -> Any:
    if not isinstance(name, str) or isinstance(values, str | bytes | Mapping) or not _has_values(values):
        raise InvalidArgument(f"a dict of columns maps names to values, got {name!r}: {type(values).__name__}")
    if _is_a(values, (("polars", "Series"),)):
        refuse_objects({name: values.dtype})
    values = list(values) if isinstance(values, Iterator) else values
    return _array(name, values, maps) if isinstance(values, list | tuple) else values


def _array(name: str, values: Sequence[Any], maps: _Maps) -> pa.Array:
    first = next((value for value in values if value is not None), None)
    try:
        if isinstance(first, Mapping | list | tuple) and name in maps():
            return _array_by_parts(values, maps()[name], pa.types.is_map)
        try:
            made = pa.array(values)
        except (pa.ArrowNotImplementedError, OverflowError):  # a nested UUID, or an integer beyond 64 bits
            made = pa.array(simple_values(values))
        if pa.types.is_nested(made.type):
            _check_depth(made.type)
            if has_part(made.type, _is_moment):
                return _array_by_parts(values, made.type, _is_moment)
        return _moments(values, made) if _is_moment(made.type) else made
    except (InvalidArgument, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidArgument(f"column {name}: {error}" if name else str(error)) from error


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date32(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def _moments(values: Sequence[Any], made: pa.Array) -> pa.Array:
    """Dates and times of Python, from which Arrow made `made`. Raises `InvalidArgument` for a zone of a time of day.

    Arrow takes the type of the first value: it cuts datetimes to dates and times of day, makes datetimes with and
    without a zone equal, and cuts the nanoseconds of pandas. A datetime without a zone next to others is in UTC.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {date} or not all(issubclass(kind, date | time) for kind in kinds):
        return made
    present = [value if value == value else None for value in values]  # pandas.NaT does not equal itself
    moments = [value for value in present if isinstance(value, datetime)]
    zones = {value.tzinfo is not None for value in present if isinstance(value, datetime | time)}
    if pa.types.is_time(made.type):
        if moments or True in zones:
            raise InvalidArgument("a time of day has neither a date nor a time zone")
        return made
    has_nanoseconds = any(getattr(value, "nanosecond", 0) for value in moments)
    if len(zones) < 2 and not has_nanoseconds and date not in kinds:
        return made

    def number(value: Any) -> int:
        moment = datetime.combine(value, time()) if type(value) is date else value
        micros: int = (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
        return micros * 1000 + getattr(value, "nanosecond", 0) if has_nanoseconds else micros

    numbers = [None if value is None else number(value) for value in present]
    kind = pa.timestamp("ns" if has_nanoseconds else "us", "UTC" if True in zones else None)
    return pa.array(numbers, pa.int64()).cast(kind)


def _array_by_parts(values: Sequence[Any], kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> pa.Array:
    """Convert nested values to Arrow part by part, where a part of the type `kind` passes a test."""
    # The data decides the types of the parts. With the types of the column, Arrow would convert 1.5 to 1.
    if not pa.types.is_nested(kind) or not has_part(kind, test):
        return _array("", values, dict)
    if pa.types.is_struct(kind):
        return _struct_array(values, kind, test)
    offsets: list[int | None] = []
    flat: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(flat))
        flat.extend(() if value is None else value.items() if isinstance(value, Mapping) else value)
    places = pa.array([*offsets, len(flat)], pa.int32())
    if not pa.types.is_map(kind):
        return pa.ListArray.from_arrays(places, _array_by_parts(flat, kind.value_type, test))
    if any(not isinstance(pair, tuple) or len(pair) != 2 or pair[0] is None for pair in flat):
        raise InvalidArgument("a map is a dictionary, or pairs of a key and a value, and no key is null")
    keys, items = ([pair[place] for pair in flat] for place in (0, 1))
    return pa.MapArray.from_arrays(places, _array("", keys, dict), _array_by_parts(items, kind.item_type, test))


def _struct_array(values: Sequence[Any], kind: pa.StructType, test: Callable[[pa.DataType], bool]) -> pa.Array:
    if any(value is not None and not isinstance(value, Mapping) for value in values):
        return _array("", values, dict)
    names = list(dict.fromkeys(name for value in values if value is not None for name in value))
    parts = []
    for name in names:
        part = [None if value is None else value.get(name) for value in values]
        number = kind.get_field_index(name)
        inner = None if number < 0 else kind.field(number).type
        parts.append(_array(name, part, dict) if inner is None else _array_by_parts(part, inner, test))
    return pa.StructArray.from_arrays(parts, names, mask=pa.array([value is None for value in values]))


def _has_values(values: Any) -> bool:
    return isinstance(values, Iterable) or hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")


def _is_a(data: Any, kinds: Iterable[tuple[str, str]]) -> bool:
    """Whether an object is of these classes, without importing their libraries."""
    for module, name in kinds:
        known = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and isinstance(data, known):
            return True
    return False


def conform(
    rows: Rows, schema: Schema, *, limits: Limits = NO_LIMITS, stream: bool = False, needed: Container[str] = ()
) -> pa.Table | pa.RecordBatchReader:
    """Convert rows to the columns of an Iceberg schema, in its order.

    Args:
        rows: a table, a reader, or a spool.
        limits: of declared types.
        stream: return a reader for rows that are not in memory, instead of reading them.
        needed: names of columns to add as null if they are missing and optional.

    Raises `InvalidArgument` with the name of the column for an unknown column, a required column that is missing or
    has a null, and a value that does not fit the type.
    """
    check_columns(schema)
    target, given = arrow_schema(schema), defaulted(schema)
    rows = _with_columns(rows, target)
    if not isinstance(rows, pa.Table):
        if stream:
            fields = _known_columns(rows.schema, target, given)
            batches = rows.batches() if isinstance(rows, Spool) else rows
            return pa.RecordBatchReader.from_batches(fields, _conformed(batches, target, given, limits))
        rows = rows.read_all()
    for field in target if needed else ():
        if field.name in needed and field.name not in rows.column_names and field.nullable and field.name not in given:
            rows = rows.append_column(field.name, nulls(rows.num_rows, field.type))
    return _conform_table(rows, target, given, limits)


def _with_columns(rows: Rows, target: pa.Schema) -> Rows:
    """The same rows. An input without columns and rows, such as `[]`, becomes an empty table with all columns."""
    if isinstance(rows, pa.Table) and rows.num_rows and not rows.schema.names:
        raise InvalidArgument("the rows have no columns")
    return rows if rows.schema.names else no_rows(target)


def _conformed(
    batches: Iterable[pa.RecordBatch], target: pa.Schema, given: Container[str], limits: Limits
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from _conform_table(pa.Table.from_batches([batch]), target, given, limits).to_batches()


def _conform_table(rows: pa.Table, target: pa.Schema, given: Container[str], limits: Limits) -> pa.Table:
    fields = target if rows.column_names == target.names else _known_columns(rows.schema, target, given)
    return pa.Table.from_arrays([fitting(rows.column(one.name), one, limits) for one in fields], schema=fields)


def _known_columns(rows: pa.Schema, target: pa.Schema, given: Container[str]) -> pa.Schema:
    """The fields of `target` that `rows` have. Raises `InvalidArgument` for unknown and missing required columns.

    The columns in `given` may be missing, because they have default values.
    """
    names = rows.names
    if len(set(names)) != len(names):
        raise InvalidArgument(f"duplicate columns in the data: {', '.join(names)}")
    if unknown := [name for name in names if target.get_field_index(name) < 0]:
        raise InvalidArgument(f"the table has no column {', '.join(unknown)}; it has {', '.join(target.names)}")
    present = set(names)
    required = [field.name for field in target if not field.nullable and field.name not in given]
    if missing := [name for name in required if name not in present]:
        raise InvalidArgument(f"required columns are missing from the data: {', '.join(missing)}")
    return pa.schema([field for field in target if field.name in present])


def fitting(
    column: pa.ChunkedArray | pa.Array, field: pa.Field, limits: Limits = NO_LIMITS
) -> pa.ChunkedArray | pa.Array:
    """A column with the type of a field. Raises `InvalidArgument` for a value or null that does not fit."""
    if not field.nullable and column.null_count:
        raise InvalidArgument(f"column {field.name} is required, but {column.null_count} of its values are null")
    made = _cast(column, field)
    check_values(made, field.name)
    if (limit := limits.get(field.name)) is not None:
        check_limit(made, limit, field.name)
    return made


def with_table_types(rows: Rows, schema: Schema) -> pa.Table:
    """Read rows into a table. Columns of the Iceberg schema are cast to its types; other columns keep their types.

    Raises `InvalidArgument` for a value that does not fit the type of its column.
    """
    check_columns(schema)
    rows = _with_columns(rows, arrow_schema(schema))
    given = rows if isinstance(rows, pa.Table) else rows.read_all()
    if len(set(given.column_names)) != given.num_columns:
        raise InvalidArgument(f"duplicate columns in the data: {', '.join(given.column_names)}")
    target = arrow_schema(schema)
    columns = [
        _cast(column, target.field(name)) if name in target.names else column
        for name, column in zip(given.column_names, given.columns, strict=True)
    ]
    return pa.table(columns, names=given.column_names)


def _cast(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if column.type == field.type and not requires_parts(field.type):
        return column
    _check_parts(column.type, field.type, field.name)
    try:
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([_cast_array(chunk, field.type) for chunk in column.chunks], field.type)
        return _cast_array(column, field.type)
    except (pa.ArrowException, ValueError) as error:
        # Arrow's message about an impossible cast repeats the types.
        why = "" if isinstance(error, pa.ArrowNotImplementedError) else f": {_SCALAR_TYPE.sub('', str(error))}"
        if "would lose data" in why and getattr(column.type, "unit", "") == "ns":
            why += "; round the values first, or create the table with the property format-version=3"
        types = " to ".join(dict.fromkeys(map(type_text, (column.type, field.type))))
        if " to " not in types:
            types = f"{column.type} to {field.type}"
        raise InvalidArgument(f"column {field.name}: cannot cast {types}{why}") from error


def _cast_array(values: pa.Array, kind: pa.DataType) -> pa.Array:
    # DuckDB gives NULL the type INTEGER, also for a column of the type unknown.
    if pa.types.is_null(values.type) or (pa.types.is_null(kind) and values.null_count == len(values)):
        return nulls(len(values), kind)
    if pa.types.is_nested(values.type) or has_part(values.type, _is_encoded):
        values = decoded(values, kind)
    if has_uuids(kind):  # DuckDB returns UUIDs as strings
        values = uuids_of_texts(values, kind)
    if has_uuids(values.type):  # Arrow would make text of their bytes
        values = texts_of_uuids(values, kind)
    leaves = _leaf_types(values.type, kind)
    if any(pa.types.is_nested(target) and not pa.types.is_nested(given) for given, target in leaves):
        values = with_parts(values, kind, _without_value)
        leaves = _leaf_types(values.type, kind)
    if any(_is_boolean_as_number(given, target) for given, target in leaves):
        raise InvalidArgument("a boolean is not a number")
    if any(_is_text_as_bytes(given, target) for given, target in leaves):
        raise InvalidArgument("text is not bytes: convert it, in SQL with encode(…), or unhex(…) of hexadecimal digits")
    if any(_loses_zone(given, target) for given, target in leaves):
        raise InvalidArgument(
            "the column has no time zone, so convert the instants first, in SQL with: AT TIME ZONE 'UTC'"
        )
    if any(pa.types.is_timestamp(given) and pa.types.is_time(target) for given, target in leaves):
        raise InvalidArgument("a time of day has no date: convert the timestamps first, in SQL with: CAST(… AS TIME)")
    if any(is_parsed(given, target) for given, target in leaves):
        values = with_parts(values, kind, parsed)
    decimals = [given for given, target in leaves if pa.types.is_decimal(target)]
    if any(not pa.types.is_floating(one) and not pa.types.is_null(one) for one in decimals):
        values = with_parts(values, kind, _wide_decimals)
    digits = with_parts(values, kind, _preserved_digits) if any(map(pa.types.is_floating, decimals)) else values
    made = cast_parts(digits, kind)
    if _infinities(made) > _infinities(values):
        raise InvalidArgument("a number is out of range")
    if any(map(pa.types.is_floating, decimals)):
        _check_digits(values, made)
    if any(_may_lose(given, target) for given, target in leaves):
        _check_unchanged(values, made, leaves)
    return made


def _without_value(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Nulls of a nested type for a part without a value, which `load` reads from JSON as strings."""
    return nulls(len(values), kind) if pa.types.is_nested(kind) and values.null_count == len(values) else values


def _is_boolean_as_number(given: pa.DataType, target: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(given) and (pa.types.is_integer(target) or pa.types.is_floating(target)))


def _is_text_as_bytes(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether a conversion would store the UTF-8 of texts, which may be hexadecimal digits or Base64."""
    is_ = pa.types
    is_text = is_.is_string(given) or is_.is_large_string(given) or is_.is_string_view(given)
    return bool(is_text and (is_.is_binary(target) or is_.is_large_binary(target) or is_.is_fixed_size_binary(target)))


def _loses_zone(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether a conversion would turn instants into times without a zone."""
    is_ = pa.types
    return bool(is_.is_timestamp(given) and given.tz and is_.is_timestamp(target) and not target.tz)


def _parts(given: pa.DataType, kind: pa.DataType) -> list[tuple[str, pa.DataType, pa.DataType]]:
    """The fields of the nested type `given`: for each field its name, its type, and its type in `kind`."""
    is_ = pa.types
    if is_.is_struct(given) and is_.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return [(field.name, field.type, known[field.name]) for field in given]
    if is_.is_map(given) and is_.is_map(kind):
        return [("key", given.key_type, kind.key_type), ("value", given.item_type, kind.item_type)]
    if given.num_fields == 1 == kind.num_fields and not is_.is_struct(given) and not is_.is_struct(kind):
        return [("element", given.field(0).type, kind.field(0).type)]
    return []


def _leaf_types(given: pa.DataType, kind: pa.DataType) -> list[tuple[pa.DataType, pa.DataType]]:
    """The leaf types of `given`, in the order of `leaf_arrays`, each with its target type."""
    if parts := _parts(given, kind):
        return [one for _, part, target in parts for one in _leaf_types(part, target)]
    return [(given, kind)]


def _may_lose(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow casts between two types without an error also for values that the target cannot represent."""
    is_ = pa.types
    return bool(
        (is_.is_boolean(target) and (is_.is_integer(given) or is_.is_floating(given)))
        or (is_.is_date(target) and is_.is_timestamp(given))
        or (is_.is_floating(target) and is_.is_decimal(given) and given.scale == 0)
    )


def _check_unchanged(values: pa.Array, made: pa.Array, leaves: Iterable[tuple[pa.DataType, pa.DataType]]) -> None:
    """Raise `InvalidArgument` if a cast changed a value."""
    # Examples are a number other than 0 and 1 to a boolean, a timestamp with a time to a date, and an integer of more
    # than 64 bits to a floating-point number.
    back = made.cast(values.type)
    for given, kept, types in zip(leaf_arrays(values), leaf_arrays(back), leaves, strict=True):
        if _may_lose(*types):
            lost = given.filter(pc.not_equal(given, kept))
            if len(lost):
                raise InvalidArgument(f"{lost[0]} is not a valid {type_text(types[1])}")


def _wide_decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values that become decimals to decimals of 256 bits with the scale of `kind`."""
    # Arrow rescales decimals of 128 bits without a check for overflow, also when it parses them.
    if not pa.types.is_decimal(kind) or pa.types.is_floating(values.type) or pa.types.is_null(values.type):
        return values
    if pa.types.is_decimal128(values.type) and values.type.scale == kind.scale:
        return values
    if pa.types.is_decimal256(values.type):
        values = values.cast(pa.decimal128(38, min(values.type.scale, 38)))
    elif values.type in (pa.string(), pa.large_string(), pa.string_view()):
        values = plain_numbers(values)
    return values.cast(pa.decimal256(76, kind.scale))


def _preserved_digits(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert floating-point numbers that become decimals to decimals of the digits that their type preserves.

    Arrow converts all digits of the binary fraction: 1.1 to 1.100000000000000089 with 18 decimal places.
    """
    if not pa.types.is_decimal(kind) or not pa.types.is_floating(values.type):
        return values
    numbers = values.cast(pa.float64())
    magnitudes = pc.floor(pc.log10(pc.abs(numbers)))
    places = pc.subtract(_DIGITS[values.type.bit_width] - 1.0, magnitudes)
    # Numbers with more digits before the point keep their fraction. Infinity and NaN cannot be cast.
    is_short = pc.and_(pc.is_finite(numbers), pc.and_(pc.greater(places, 0), pc.less(places, kind.scale)))
    places = pc.if_else(is_short, places, float(kind.scale))
    made = pa.nulls(len(numbers), pa.decimal256(76, kind.scale))
    for count in pc.unique(places.drop_null()).to_pylist():
        part = pc.if_else(pc.equal(places, count), numbers, None).cast(pa.decimal128(38, int(count)))
        made = pc.coalesce(made, part.cast(made.type))
    return made


def _check_digits(values: pa.Array, made: pa.Array) -> None:
    """Raise `InvalidArgument` for floating-point numbers that Arrow rounded to decimals."""
    # Rounding errors of the floating-point number itself are accepted: with scale 2, 0.1 + 0.2 becomes 0.30, and 1.105
    # is refused.
    for given, kept in zip(leaf_arrays(values), leaf_arrays(made.cast(values.type)), strict=True):
        if pa.types.is_floating(given.type):
            error = pc.multiply(pc.abs(given), _ERRORS[given.type.bit_width])
            lost = given.filter(pc.greater(pc.abs(pc.subtract(given, kept)), error))
            if len(lost):
                raise InvalidArgument(f"the number {lost[0]} would be rounded")


def _is_encoded(kind: pa.DataType) -> bool:
    is_ = pa.types
    tests = is_.is_dictionary, is_.is_run_end_encoded, is_.is_list_view, is_.is_large_list_view
    return any(test(kind) for test in tests)


def _infinities(values: pa.Array) -> int:
    """The number of infinite values at any depth. Arrow casts numbers that are out of range to infinity."""
    return sum(int(pc.is_inf(leaf).true_count) for leaf in leaf_arrays(values) if pa.types.is_floating(leaf.type))


def _check_parts(given: pa.DataType, kind: pa.DataType, path: str) -> None:
    """Raise `InvalidArgument` for struct fields that the table lacks, or that occur twice. Arrow would drop them."""
    is_ = pa.types
    if is_.is_dictionary(given):
        _check_parts(given.value_type, kind, path)
        return
    if is_.is_struct(given) and is_.is_struct(kind):
        known = [field.name for field in kind]
        if len({field.name for field in given}) < given.num_fields:
            raise InvalidArgument(f"column {path} has two fields of one name: {', '.join(one.name for one in given)}")
        if unknown := [field.name for field in given if field.name not in known]:
            raise InvalidArgument(
                f"column {path} of the table has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
    for name, part, target in _parts(given, kind):
        _check_parts(part, target, f"{path}.{name}")

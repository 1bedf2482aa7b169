"""Input files of one format as a stream of record batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from trinitylake.definitions import as_schema
from trinitylake.definitions.sql_types import Type
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.written_values import leaf_arrays
from trinitylake.tables.input_files import text_conversion as conversion
from trinitylake.tables.input_files.bad_rows import (
    BadRow,
    bad_rows_of,
    check_number,
    rejected_records,
    shortened,
    translated,
)
from trinitylake.tables.input_files.hive_paths import WAY_OUT, path_texts
from trinitylake.tables.input_files.local_files import Format, local_files
from trinitylake.tables.input_files.text_sources import Source, TextOptions, csv_source, json_source, readable_path
from trinitylake.tables.queries.duckdb_types import with_uuids
from trinitylake.tables.sql_sandbox import arrow_result, connect, quoted, refusals
from trinitylake.tables.text_casts import uuids_of_texts

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_BATCH_ROWS = 64 * 1024
#: Number of rows of each file from which types are detected.
_SAMPLE_ROWS = 20_480
#: Name of the column with the fault of each row.
_BAD = "__bad"
#: Detected types of the columns of Hive-style paths: bigint, date, timestamp and timestamptz.
_PATH_TYPES = (conversion.NUMBERS[0], *conversion.TIMES[:3])


@contextmanager
def input_files(
    patterns: Sequence[str],
    format: Format,
    options: TextOptions,
    storage_options: Mapping[str, str],
    *,
    hive_partitioning: bool,
) -> Iterator[InputFiles]:
    """Open input files for the block.

    Args:
        patterns: paths, glob patterns, URLs on an object store, or `-` for standard input. Standard input and files on
            an object store are copied to a temporary folder first.
        format: the format of all files.
        options: for CSV and JSON.
        storage_options: for URLs.
        hive_partitioning: whether folders such as `year=2024` in paths and URLs are columns.

    Raises `InvalidArgument` for a pattern without a file, and for files that cannot be read.
    """
    with (
        TemporaryDirectory() as folder,
        InputFiles(
            local_files(patterns, storage_options, Path(folder)), format, options, hive_partitioning=hive_partitioning
        ) as opened,
    ):
        yield opened


class InputFiles:
    """Input files of one format, with the types of their columns.

    Args:
        files: pairs of a name for messages and an absolute local path.
        format: format of all files.
        options: for CSV and JSON; the types also for the columns of paths.
        hive_partitioning: whether folders such as `year=2024` in the names are columns.

    Attributes:
        names: the names of the files, by path.
        size_bytes: size of all files.
        schema: the columns of all files, by name. In rows of a file that lacks a column, the column is NULL.
        notes: decisions about types that a user should know.
        bad_rows: rows that were rejected so far.

    Raises `InvalidArgument` for files that cannot be read.
    """

    def __init__(
        self, files: Sequence[tuple[str, Path]], format: Format, options: TextOptions, *, hive_partitioning: bool
    ) -> None:
        self._format = format
        self._options = options
        self.names = {path: name for name, path in files}
        self.size_bytes = sum(path.stat().st_size for path in self.names)
        self._stack = ExitStack()
        self._sources: dict[Path, Source] = {}
        #: Names of the columns in each file.
        self._file_columns: dict[Path, Container[str]] = {}
        #: Columns of Hive-style paths, with one value for each file.
        self._path_columns: dict[str, pa.Array] = {}
        #: Types by column. A string is DuckDB's type of a nested column.
        self._types: dict[str, Type | str] = {}
        self._detected_columns: frozenset[str] = frozenset()
        self.notes: list[str] = []
        self.bad_rows: list[BadRow] = []
        if options.time_zone and options.time_zone not in available_timezones():
            raise InvalidArgument(f"unknown time zone {options.time_zone!r}: use a name such as Europe/Paris")
        spill = self._stack.enter_context(TemporaryDirectory())
        try:
            self._paths = [self._readable_path(path, Path(spill)) for _, path in files]
            self._connection: Any = self._stack.enter_context(
                connect(
                    needs="loading files",
                    files=list(map(str, self._paths)),
                    spill_folder=spill,
                    time_zone=self._options.time_zone or "UTC",
                )
            )
            self.schema = self._read_schema()
            if hive_partitioning:
                self._read_path_columns()
        except BaseException:
            self._stack.close()
            raise

    def _readable_path(self, path: Path, folder: Path) -> Path:
        name, copy = self.names[path], folder / f"{len(self.names)}.txt"
        found = readable_path(name, path, copy, self._format, self._options)
        self.names[found] = name
        return found

    def __enter__(self) -> InputFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def reader(
        self, on_rows: Callable[[int], object] = lambda done: None, select: str | None = None
    ) -> pa.RecordBatchReader:
        """The rows of all files, in order.

        Args:
            on_rows: called with the number of rows that were read.
            select: a query over `input`, the rows of all files.

        Raises `InvalidArgument` while it is read for a row that does not fit, and at once for a wrong query.
        """
        rows = pa.RecordBatchReader.from_batches(self.schema, self._counted(on_rows))
        if select is None:
            return rows
        with refusals("--select", quotes_rows=True):
            # Copy the stream to a table, because a query may read its input several times.
            self._connection.register("stream", rows)
            self._connection.execute("CREATE TEMP TABLE input AS FROM stream")
            self._connection.unregister("stream")
            if len(self._connection.extract_statements(select)) != 1:
                raise InvalidArgument("--select: expected one statement")
            schema = self._schema_of(select)
            result = arrow_result(self._connection, select).to_arrow_reader(_BATCH_ROWS)
            return pa.RecordBatchReader.from_batches(schema, (_with_uuids(batch, schema) for batch in result))

    def _counted(self, on_rows: Callable[[int], object]) -> Iterator[pa.RecordBatch]:
        done = 0
        for number, path in enumerate(self._paths):
            for batch in self._batches(path):
                done += batch.num_rows
                on_rows(done)
                yield self._with_path_columns(batch, number)

    # Columns

    def _read_schema(self) -> pa.Schema:
        """Find the columns of all files and their types."""
        if self._format == "parquet":
            return self._parquet_schema()
        columns: dict[str, Sequence[Type] | str] = {}
        several_kinds: dict[str, str] = {}
        for path in self._paths:
            name = self.names[path]
            with translated(name, path):
                if self._format == "csv":
                    source = csv_source(name, path, self._options)
                else:
                    source = json_source(self._connection, name, path, self._paths, self._options)
            _check_case(name, columns, source.columns)
            self._sources[path] = source
            self._file_columns[path] = source.columns
            columns |= source.columns
            several_kinds |= source.several_kinds
        open_columns = {
            name: types
            for name, types in columns.items()
            if not isinstance(types, str) and name not in self._options.types
        }
        detected = self._detected(open_columns) if open_columns else {}
        self._detected_columns = frozenset(detected)
        self.notes += [
            f"column {name} has no value in the first {_SAMPLE_ROWS:,} rows of a file: its type is VARCHAR"
            for name, type in detected.items()
            if type is None
        ]
        for name, kind in several_kinds.items():
            if kind != "JSON":
                self.notes.append(
                    f"parts of column {name} have values of several kinds, or none: they are stored as JSON text"
                )
            elif detected.get(name) is not None:
                self.notes.append(f"column {name} has values of several kinds: its type is VARCHAR, with JSON text")
        for name, types in columns.items():
            fixed = self._options.types.get(name)
            copied = types if isinstance(types, str) else conversion.TEXT
            self._types[name] = fixed or detected.get(name) or copied
        with translated(self.names[self._paths[0]], self._paths[0]):
            schema = self._schema_of(self._converted(self._paths[0]))
        return pa.schema([one for one in schema if one.name != _BAD])

    def _schema_of(self, query: str) -> pa.Schema:
        types = [type for _, type, *_ in self._connection.execute(f"DESCRIBE {query}").fetchall()]
        result = arrow_result(self._connection, f"SELECT * FROM ({query}) LIMIT 0").to_arrow_table()
        return with_uuids(result.schema, types, self._connection)

    def _detected(self, columns: Mapping[str, Sequence[Type]]) -> dict[str, Type | None]:
        samples = []
        for source in self._sources.values():
            if known := ", ".join(quoted(name) for name in source.columns if name in columns):
                samples.append(f"(SELECT {known} FROM ({source.query}) LIMIT {_SAMPLE_ROWS})")
        with translated(self.names[self._paths[0]], self._paths[0]):
            return conversion.detected_types(
                self._connection,
                " UNION ALL BY NAME ".join(samples),
                columns,
                decimal=self._options.decimal,
                has_time_zone=bool(self._options.time_zone),
            )

    def _converted(self, path: Path) -> str:
        source = self._sources[path]
        return conversion.converted(
            source.query,
            self._types,
            source.columns,
            _BAD,
            self._options.decimal,
            self._detected_columns,
            source.json_columns,
            self._options.required,
        )

    def _parquet_schema(self) -> pa.Schema:
        schema = pa.schema([])
        for path in self._paths:
            with translated(self.names[path], path):
                found = _parquet_file(path).schema
                _check_case(self.names[path], schema.names, found.names)
                self._file_columns[path] = found.names
                schema = pa.unify_schemas([schema, found], promote_options="permissive")
        for number, column in enumerate(schema):
            if pa.types.is_null(column.type):
                self.notes.append(f"column {column.name} has no type and no value: its type is VARCHAR")
                schema = schema.set(number, column.with_type(pa.string()))
        return schema.remove_metadata()

    def _read_path_columns(self) -> None:
        """Add the columns of Hive-style paths to the schema, and convert their values."""
        names = [self.names[path] for path in self._paths]
        texts = path_texts(names)
        if not (keys := texts.column_names):
            return
        for key in keys:
            if others := [name for name in (*self.schema.names, *keys) if name.lower() == key.lower() and name != key]:
                raise InvalidArgument(f"{names[0]}: the column {key} of the path is also named {others[0]}; {WAY_OUT}")
        in_files = pa.schema([field for field in self.schema if field.name in keys])
        given = {**self._options.types, **{column.name: column.type for column in as_schema(in_files).columns}}
        self._connection.register("path_texts", texts)
        detected = conversion.detected_types(
            self._connection,
            "FROM path_texts",
            {key: _PATH_TYPES for key in keys if key not in given},
            has_time_zone=bool(self._options.time_zone),
        )
        types: dict[str, Type | str] = {key: given.get(key) or detected[key] or conversion.TEXT for key in keys}
        query = conversion.converted("FROM path_texts", types, keys, _BAD)
        schema = self._schema_of(query)
        with translated(names[0], self._paths[0]):
            found = arrow_result(self._connection, query).to_arrow_table()
            self._connection.unregister("path_texts")
            for name, fault in zip(names, found[_BAD].to_pylist(), strict=True):
                if fault is not None:
                    bad = json.loads(fault)["fault"]
                    column, value = bad["column"], shortened(bad["value"])
                    raise InvalidArgument(f"{name}: {value} of column {column} is not a valid {types[column]}")
            new = [field for field in schema if field.name in keys and field.name not in in_files.names]
            self.schema = pa.schema([*self.schema, *new])
            self._types |= {field.name: types[field.name] for field in new}
            [rows] = found.combine_chunks().to_batches()
            rows = _with_uuids(rows, schema)
            self._path_columns = {key: rows.column(key).cast(self.schema.field(key).type) for key in keys}

    # Rows

    def _with_path_columns(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """A batch of a file with the columns of its path. Raises `InvalidArgument` if the file has other values."""
        path = self._paths[number]
        for key, values in self._path_columns.items():
            value, place = values.slice(number, 1), self.schema.get_field_index(key)
            if key not in self._file_columns[path]:
                repeated = value.take(pa.repeat(0, batch.num_rows))
                batch = batch.set_column(place, self.schema.field(place), repeated)
            elif not _distinct(batch.column(place)) <= _distinct(value):
                raise InvalidArgument(
                    f"{self.names[path]}: column {key} of the file has other values than the folder {key}=…; {WAY_OUT}"
                )
        return batch

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """The rows of a file that fit."""
        if self._format == "parquet":
            with translated(self.names[path], path):
                _check_nanoseconds(self.names[path], path)
                yield from _parquet_file(path, self.schema).to_batches(batch_size=_BATCH_ROWS)
            return
        cursor = self._connection.cursor()
        before, faults = 0, []
        with translated(self.names[path], path):
            for batch in arrow_result(cursor, self._converted(path)).to_arrow_reader(_BATCH_ROWS):
                bad = batch.column(batch.num_columns - 1)
                if bad.null_count < len(bad):
                    faults += [(before + row, fault) for row, fault in enumerate(bad.to_pylist()) if fault is not None]
                    if len(self.bad_rows) + len(faults) > self._options.bad_rows_max:
                        break
                before += len(bad)
                yield _with_uuids(batch.filter(bad.is_null()).select(self.schema.names), self.schema)
            has_rejects = self._format == "csv" and self._options.bad_rows_max
            rejected = rejected_records(cursor) if has_rejects else []
            self.bad_rows += bad_rows_of(
                self.names[path], path, self._sources[path], self._options, self._types, dict(faults), rejected
            )
            check_number(self.bad_rows, self._options.bad_rows_max)


def _check_case(file: str, known: Iterable[str], names: Iterable[str]) -> None:
    """Raise `InvalidArgument` if a column of a file differs only in case from a column of an earlier file."""
    spellings = {name.lower(): name for name in known}
    for name in names:
        if (other := spellings.get(name.lower(), name)) != name:
            raise InvalidArgument(
                f"{file}: the column {name!r} is {other!r} in another file: load the files one by one, "
                f"with --select 'SELECT * RENAME ({quoted(name)} AS {quoted(other)}) FROM input'"
            )


def _parquet_file(path: Path, schema: pa.Schema | None = None) -> Dataset:
    """A Parquet file. Timestamps of 96 bits are read as microseconds, because nanoseconds of some years overflow."""
    return dataset.dataset(path, schema, dataset.ParquetFileFormat(coerce_int96_timestamp_unit="us"))


def _check_nanoseconds(name: str, path: Path) -> None:
    """Raise `InvalidArgument` for a timestamp of 96 bits (INT96) that microseconds cannot represent."""
    # Nanoseconds of some years overflow in Arrow, but only by multiples of 2**64, as the product below.
    both = [parquet.ParquetFile(path, coerce_int96_timestamp_unit=unit) for unit in ("us", "ns")]
    leaves = [both[0].metadata.schema.column(number) for number in range(both[0].metadata.num_columns)]
    columns = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    batches = (file.iter_batches(_BATCH_ROWS, columns=columns) for file in both) if columns else ()
    for micros, nanos in zip(*batches, strict=True):
        for column, *parts in zip(columns, *(_leaves(batch) for batch in (micros, nanos)), strict=True):
            is_cut = pc.not_equal(pc.multiply(parts[0], 1000), parts[1])
            if pc.any(is_cut).as_py():
                raise InvalidArgument(
                    f"{name}: the INT96 timestamp {parts[0].filter(is_cut).cast(pa.timestamp('us'))[0]} in column "
                    f"{column} also has nanoseconds: write the file with timestamps of 64 bits, or round them"
                )


def _leaves(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    return (leaf.cast(pa.int64()) for column in batch.columns for leaf in leaf_arrays(column))


def _distinct(values: pa.Array) -> set[Any]:
    return set(getattr(values, "storage", values).unique().to_pylist())  # Arrow cannot compare UUIDs


def _with_uuids(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of DuckDB, in which UUIDs are strings, to the types of a schema."""
    columns = [uuids_of_texts(one, field.type) for one, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

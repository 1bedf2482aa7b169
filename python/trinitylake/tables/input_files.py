"""Rows of CSV, JSON and Parquet files, read as a stream and without loss.

The dialect of a CSV file is explicit: DuckDB's detection drops rows that do not fit its guess. Each row has as many
fields as the header. `duckdb_text_conversion.py` converts values. A row that does not fit is an error that names file,
line and text, or goes to `InputFiles.bad_rows` if that is allowed.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob, has_magic
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import available_timezones

from trinitylake import _core
from trinitylake.definitions.sql_types import Type
from trinitylake.errors import InvalidArgument
from trinitylake.tables import duckdb_text_conversion as conversion
from trinitylake.tables.queries.duckdb_types import with_uuids
from trinitylake.tables.sql_sandbox import arrow_result, connect, literal, quoted, refusals
from trinitylake.tables.uuid_casts import uuids_of_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset

Format = Literal["csv", "json", "parquet"]
_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
#: How files of gzip, zstd, ZIP, xz and bzip2 begin.
_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\xfd7zXZ\x00", b"BZh")
_OTHER_COMPRESSIONS = (".bz2", ".xz", ".zip", ".7z", ".lz4")
_DELIMITERS = (",", "\t", ";", "|")
_BATCH_ROWS = 64 * 1024
#: Files on an object store are fetched in parts of this size.
_PART_SIZE_BYTES = 8 * 1024 * 1024
#: Number of rows of each file from which types are detected.
SAMPLE_ROWS = 20_480
ENCODINGS = ("utf-8", "utf-16", "latin-1")
#: Maximum size of a row of CSV. With the default of DuckDB, 2 MB, reading takes as long.
_ROW_MAX_BYTES = 16 * 1024 * 1024
_BAD = "__bad"
#: DuckDB has one entry for each superfluous field of a row.
_REJECTS = (
    "SELECT DISTINCT ON (line_byte_position) line, column_name, error_message, csv_line FROM reject_errors "
    "ORDER BY line_byte_position, byte_position"
)
_JSON_NUMBERS = ("BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT", "DOUBLE", "DECIMAL")
_JSON_TEXTS = ("VARCHAR", "UUID", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
_SHOWN_TEXT_MAX = 200
#: Names of columns that DuckDB gives to values that are no objects, names that differ only in case, and empty names.
_OWN_NAME = re.compile(r"json|.*_\d+|C\d+", re.DOTALL)
#: A nested type of DuckDB, or its type JSON for values of several kinds.
_NESTED = re.compile(r"^(STRUCT|MAP)\b|\[\]$|\bJSON\b")
#: DOUBLE in a nested type, or a quoted name of a field, which is group 1.
_DOUBLE = re.compile(r'("(?:[^"]|"")*")|\bDOUBLE(?=[],)[]|$)')
#: SQL of a JSON text with its numbers as texts, because DuckDB rounds fractions to doubles. JSON has no character \1.
_EXACT_JSON = (
    "replace(replace(regexp_replace(json::VARCHAR, "
    r"""'("(?:[^"\\]|\\.)*")|(-?[0-9][-+0-9.eE]*)', '\1' || chr(1) || '\2' || chr(1), 'g'), """
    """chr(1) || chr(1), ''), chr(1), '"')"""
)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for reading text files.

    Attributes:
        types: types by column, also of columns that no file has; the other types are detected.
        nested: columns of the table with nested types. Fractions in them are read from JSON as strings, because a
            double would round values that the table stores as decimals.
        required: columns in which NULL does not fit.
        nulls: strings that stand for NULL, in addition to an empty field without quotes.
        delimiter: between the fields of CSV; "" detects it in the header.
        decimal: decimal separator.
        encoding: one of `ENCODINGS`.
        skip: lines before the header of CSV.
        has_header: whether CSV has a header; otherwise the columns are column1, column2, ….
        time_zone: zone of times without an offset, which then have the type timestamptz.
        bad_rows_max: number of rows that may be rejected.
    """

    types: Mapping[str, Type] = field(default_factory=dict)
    nested: Collection[str] = ()
    required: Collection[str] = ()
    nulls: Sequence[str] = ()
    delimiter: str = ""
    decimal: str = "."
    encoding: str = "utf-8"
    skip: int = 0
    has_header: bool = True
    time_zone: str = ""
    bad_rows_max: int = 0


@dataclass(frozen=True, slots=True)
class BadRow:
    """A rejected row: the line at which a CSV row ends, or the number of a JSON value, from 1."""

    file: str
    line: int | None
    row: int | None
    column: str | None
    error: str
    text: str


def format_of(names: Sequence[str]) -> Format:
    """The format of files, by their names. Raises `InvalidArgument` if the names have none, or several.

    Standard input, `-`, has the format of the other files.
    """
    if all(name == "-" for name in names):
        raise InvalidArgument("the format of standard input is unknown: use --format csv, json or parquet")
    found = set()
    for name in names:
        if name == "-":
            continue
        suffixes = [one.lower() for one in Path(name).suffixes if one.lower() not in _COMPRESSED]
        if suffixes and suffixes[-1] in _OTHER_COMPRESSIONS:
            raise InvalidArgument(
                f"{name} has an unsupported compression: decompress it; only .gz and .zst files are decompressed"
            )
        if not suffixes or suffixes[-1] not in _FORMATS:
            raise InvalidArgument(f"the name {name} has no known suffix: use --format csv, json or parquet")
        found.add(_FORMATS[suffixes[-1]])
    if len(found) != 1:
        raise InvalidArgument(f"all files must have one format, not {' and '.join(sorted(found))}")
    return found.pop()


@contextmanager
def input_files(
    patterns: Sequence[str], format: Format, options: TextOptions, storage_options: Mapping[str, str]
) -> Iterator[InputFiles]:
    """Open input files for the block.

    Args:
        patterns: paths, glob patterns, URLs on an object store, or `-` for standard input. Files of the last two are
            copied to a temporary folder first.
        format: the format of all files.
        options: for CSV and JSON.
        storage_options: for URLs.

    Raises `InvalidArgument` for a pattern without a file, and for files that cannot be read.
    """
    with TemporaryDirectory() as folder:
        files: list[tuple[str, Path]] = []
        for pattern in patterns:
            if pattern == "-":
                files.append((pattern, Path(folder) / "stdin"))
                with files[-1][1].open("wb") as target:
                    shutil.copyfileobj(sys.stdin.buffer, target)
            elif "://" in pattern:
                files += _fetched(pattern, storage_options, Path(folder) / str(len(files)))
            elif Path(pattern).is_file():
                files.append((pattern, Path(pattern).absolute()))
            else:
                matches = [Path(one) for one in sorted(glob(pattern, recursive=True))] if has_magic(pattern) else []
                files += [(str(one), one.absolute()) for one in matches if one.is_file()]
                if not any(one.is_file() for one in matches):
                    is_folder = Path(pattern).is_dir()
                    why = f"it is a folder; name its files, as in '{pattern}/*.csv'" if is_folder else "no such file"
                    raise InvalidArgument(f"{pattern}: {why}")
        with InputFiles(files, format, options) as opened:
            yield opened


def _fetched(pattern: str, storage_options: Mapping[str, str], folder: Path) -> list[tuple[str, Path]]:
    """Copy the files of a URL, whose last segments may be a pattern, to a local folder."""
    parts = pattern.split("/")
    fixed = next((number for number, part in enumerate(parts) if has_magic(part)), len(parts) - 1)
    root = "/".join(parts[:fixed])
    storage = _core.Storage(root, storage_options)
    name = "/".join(parts[fixed:])
    if has_magic(name):
        paths = [path for path, _, _ in storage.list("") if fnmatchcase(path, name)]
    else:
        paths = [name] if storage.exists(name) else []
    if not paths:
        raise InvalidArgument(f"{pattern}: no such file")
    found = []
    for number, path in enumerate(sorted(paths)):
        local = folder / str(number) / PurePosixPath(path).name
        local.parent.mkdir(parents=True)
        size_bytes = storage.size(path)
        with local.open("wb") as target:
            for offset in range(0, size_bytes, _PART_SIZE_BYTES):
                target.write(storage.get_range(path, offset, min(_PART_SIZE_BYTES, size_bytes - offset)))
        found.append((f"{root}/{path}", local))
    return found


class InputFiles:
    """Input files of one format, with the types of their columns.

    Args:
        files: names for messages, with absolute local paths.
        format: their format.
        options: for CSV and JSON.

    Attributes:
        names: the names of the files, by path.
        size_bytes: size of all files.
        schema: the columns of all files, by name; a column that a file lacks is NULL there.
        notes: decisions about types that a user should know.
        bad_rows: rows that were rejected so far.

    Raises `InvalidArgument` for files that cannot be read.
    """

    def __init__(self, files: Sequence[tuple[str, Path]], format: Format, options: TextOptions) -> None:
        self._format = format
        self._options = options
        self.names = {path: name for name, path in files}
        self.size_bytes = sum(path.stat().st_size for path in self.names)
        self._stack = ExitStack()
        #: SQL of the texts of each file, and the columns that it has.
        self._sources: dict[Path, tuple[str, list[str]]] = {}
        self._delimiters: dict[Path, str] = {}
        #: A column with a type of DuckDB, a text, is nested.
        self._types: dict[str, Type | str] = {}
        #: Columns of each file that its source has as JSON.
        self._nested: dict[Path, frozenset[str]] = {}
        self._detected_columns: frozenset[str] = frozenset()
        #: Columns of JSON with values of several kinds, and their types in DuckDB.
        self._of_several_kinds: dict[str, str] = {}
        self.notes: list[str] = []
        self.bad_rows: list[BadRow] = []
        if options.time_zone and options.time_zone not in available_timezones():
            raise InvalidArgument(f"unknown time zone {options.time_zone!r}: use a name such as Europe/Paris")
        spill = self._stack.enter_context(TemporaryDirectory())
        try:
            self._paths = [self._readable(path, Path(spill)) for _, path in files]
            self._connection: Any = self._stack.enter_context(
                connect(
                    needs="loading files",
                    files=list(map(str, self._paths)),
                    spill_folder=spill,
                    time_zone=self._options.time_zone or "UTC",
                )
            )
            self.schema = self._read_schema()
        except BaseException:
            self._stack.close()
            raise

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
        import pyarrow as pa

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
        for path in self._paths:
            for batch in self._batches(path):
                done += batch.num_rows
                on_rows(done)
                yield batch

    # Columns

    def _read_schema(self) -> pa.Schema:
        """Find the columns of all files and their types."""
        import pyarrow as pa

        if self._format == "parquet":
            return self._parquet_schema()
        columns: dict[str, Sequence[Type] | str] = {}
        for path in self._paths:
            with self._translated(path):
                found = self._csv_columns(path) if self._format == "csv" else self._json_columns(path)
            self._check_case(path, columns, found)
            columns |= found
        open_columns = {
            name: types
            for name, types in columns.items()
            if not isinstance(types, str) and name not in self._options.types
        }
        detected = self._detected(open_columns) if open_columns else {}
        self._detected_columns = frozenset(detected)
        self.notes += [
            f"column {name} has no value in the first {SAMPLE_ROWS:,} rows of a file: its type is VARCHAR"
            for name, type in detected.items()
            if type is None
        ]
        for name, kind in self._of_several_kinds.items():
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
        with self._translated(self._paths[0]):
            schema = self._schema_of(self._converted(self._paths[0]))
        return pa.schema([one for one in schema if one.name != _BAD])

    def _check_case(self, path: Path, known: Iterable[str], names: Iterable[str]) -> None:
        """Raise `InvalidArgument` if a column of a file differs only in case from one of the files before it."""
        spellings = {name.lower(): name for name in known}
        for name in names:
            if (other := spellings.get(name.lower(), name)) != name:
                raise InvalidArgument(
                    f"{self.names[path]}: the column {name!r} is {other!r} in another file: load the files one by one, "
                    f"with --select 'SELECT * RENAME ({quoted(name)} AS {quoted(other)}) FROM input'"
                )

    def _schema_of(self, query: str) -> pa.Schema:
        types = [type for _, type, *_ in self._connection.execute(f"DESCRIBE {query}").fetchall()]
        result = arrow_result(self._connection, f"SELECT * FROM ({query}) LIMIT 0").to_arrow_table()
        return with_uuids(result.schema, types, self._connection)

    def _detected(self, columns: Mapping[str, Sequence[Type]]) -> dict[str, Type | None]:
        samples = []
        for text, names in self._sources.values():
            if known := ", ".join(quoted(name) for name in names if name in columns):
                samples.append(f"(SELECT {known} FROM ({text}) LIMIT {SAMPLE_ROWS})")
        with self._translated(self._paths[0]):
            return conversion.detected_types(
                self._connection,
                " UNION ALL BY NAME ".join(samples),
                columns,
                decimal=self._options.decimal,
                has_time_zone=bool(self._options.time_zone),
            )

    def _converted(self, path: Path) -> str:
        text, names = self._sources[path]
        return conversion.converted(
            text,
            self._types,
            names,
            _BAD,
            self._options.decimal,
            self._detected_columns,
            self._nested.get(path, frozenset()),
            self._options.required,
        )

    def _csv_columns(self, path: Path) -> dict[str, Sequence[Type] | str]:
        """The columns of a CSV file, each with its candidate types."""
        options = self._options
        name = self.names[path]
        with self._text(path) as lines:
            header = "".join(islice(lines, options.skip, options.skip + 1))
        if not header.strip():
            raise InvalidArgument(f"{name} has no header: the file is empty")
        if "\0" in header:
            raise InvalidArgument(f"{name}: the header has a NUL character, so the file is no text")
        delimiter = self._delimiter(header)
        with self._text(path) as lines:
            columns = next(_records(lines, options.skip, delimiter, strict=True))
        if not options.has_header:
            columns = [f"column{number}" for number in range(1, len(columns) + 1)]
        if re.fullmatch(r"sep=.\r?\n?", header):
            raise InvalidArgument(
                f"{name}: line {options.skip + 1} is no header, but names the delimiter: use --skip 1"
            )
        folded = [column.lower() for column in columns]
        for number, column in enumerate(folded, 1):
            if not column or folded.count(column) > 1:
                fault = f"the column {columns[number - 1]!r} twice" if column else f"no name for column {number}"
                raise InvalidArgument(
                    f"{name}: the header has {fault}; name the columns with --skip {options.skip + 1} --no-header "
                    '--select "SELECT column1 AS a, column2 AS b FROM input"'
                )
        self._delimiters[path] = delimiter
        fields = ", ".join(f"{literal(column)}: 'VARCHAR'" for column in columns)
        settings = {
            "auto_detect": "false",
            "columns": f"{{{fields}}}",
            "delim": literal(delimiter),
            "quote": literal('"'),
            "escape": literal('"'),
            "header": str(options.has_header).lower(),
            "skip": str(options.skip),
            "nullstr": f"[{', '.join(map(literal, ('', *options.nulls)))}]",
            "allow_quoted_nulls": "false",
            "strict_mode": "true",
            "max_line_size": str(_ROW_MAX_BYTES),
        }
        if options.bad_rows_max:
            settings["store_rejects"] = "true"
        arguments = ", ".join(f"{setting} = {value}" for setting, value in settings.items())
        self._sources[path] = f"SELECT * FROM read_csv({literal(str(path))}, {arguments})", columns
        return dict.fromkeys(columns, (conversion.BOOLEAN, *conversion.NUMBERS, *conversion.TIMES))

    def _json_columns(self, path: Path) -> dict[str, Sequence[Type] | str]:
        """The fields of a JSON file: candidate types for texts and numbers, exact types for nested values."""
        read = f"read_json({literal(str(path))}, sample_size = -1, convert_strings_to_integers = false"
        objects = f"read_json_objects({literal(str(path))})"
        described = self._described(f"{read})")
        if len(self._paths) > 1:  # nested values have one type, with the fields of all files
            files = f"[{', '.join(literal(str(one)) for one in self._paths)}]"
            of_all = self._described(f"{read.replace(literal(str(path)), files, 1)}, union_by_name = true)")
            described |= {name: of_all[name] for name in described if _NESTED.search(of_all.get(name, ""))}
        kinds: dict[str, str] = {name: type.partition("(")[0] for name, type in described.items()}
        if any(map(_OWN_NAME.fullmatch, kinds)):
            keys = self._connection.execute(f"SELECT DISTINCT unnest(json_keys(json)) FROM {objects}").fetchall()
            if not keys:
                raise InvalidArgument(f"{self.names[path]}: no row of the file is an object with fields")
            if set(kinds) - {key for (key,) in keys}:
                raise InvalidArgument(
                    f"{self.names[path]}: rows of JSON are objects with fields, whose names are not empty and differ "
                    "not only in case"
                )
        columns: dict[str, Sequence[Type] | str] = {}
        for name, type in described.items():
            kind = kinds[name]
            if "JSON" in type and name not in self._options.types:
                self._of_several_kinds[name] = type
            if kind == "BOOLEAN":
                columns[name] = (conversion.BOOLEAN,)
            elif kind in _JSON_NUMBERS:
                columns[name] = conversion.NUMBERS
            elif kind in _JSON_TEXTS:
                columns[name] = conversion.TIMES
            elif kind in ("JSON", '"NULL"'):  # values of several kinds, or none
                columns[name] = ()
            elif name in self._options.nested:
                columns[name] = _DOUBLE.sub(lambda found: found[1] or "VARCHAR", type)
            else:
                columns[name] = type
        declared = self._options.types
        self._nested[path] = frozenset(
            name
            for name, types in columns.items()
            if isinstance(types, str) and ("DOUBLE" in types or name in declared)
        )
        read_as = {
            name: "JSON" if name in self._nested[path] else types if isinstance(types, str) else "VARCHAR"
            for name, types in columns.items()
        }
        floats = {name for name in columns if name not in declared or declared[name].kind in ("real", "double")}
        with_fractions = {
            name: read_as[name]
            for name, type in described.items()
            if kinds[name] == "JSON"
            or (kinds[name] == "DOUBLE" and name not in floats)
            or (isinstance(columns[name], str) and columns[name] != type)
        }
        if with_fractions:
            values = []
            for name, type in read_as.items():
                value = f"{'exact' if name in with_fractions else 'inexact'}.{quoted(name)}"
                if name in with_fractions and type == "VARCHAR":  # a text of a nested value keeps its numbers
                    inexact = f"inexact.{quoted(name)}"
                    value = f"CASE WHEN {inexact}[1] IN ('{{', '[') THEN {inexact} ELSE {value} END AS {quoted(name)}"
                values.append(value)
            text = (
                f"SELECT {', '.join(values)} FROM (SELECT from_json(json, {literal(json.dumps(read_as))}) AS inexact, "
                f"from_json({_EXACT_JSON}, {literal(json.dumps(with_fractions))}) AS exact FROM {objects})"
            )
        else:
            fields = ", ".join(f"{literal(name)}: {literal(type)}" for name, type in read_as.items())
            text = f"SELECT * FROM {read}, columns = {{{fields}}})"
        self._sources[path] = text, list(columns)
        return columns

    def _described(self, query: str) -> dict[str, str]:
        """The columns of a query, with their types in DuckDB."""
        return {name: type for name, type, *_ in self._connection.execute(f"DESCRIBE SELECT * FROM {query}").fetchall()}

    def _parquet_schema(self) -> pa.Schema:
        import pyarrow as pa

        schema = pa.schema([])
        for path in self._paths:
            with self._translated(path):
                found = _parquet_file(path).schema
                self._check_case(path, schema.names, found.names)
                schema = pa.unify_schemas([schema, found], promote_options="permissive")
        for number, column in enumerate(schema):
            if pa.types.is_null(column.type):
                self.notes.append(f"column {column.name} has no type and no value: its type is VARCHAR")
                schema = schema.set(number, column.with_type(pa.string()))
        return schema.remove_metadata()

    # Rows

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """The rows of a file that fit."""
        if self._format == "parquet":
            with self._translated(path):
                yield from _parquet_file(path, self.schema).to_batches(batch_size=_BATCH_ROWS)
            return
        cursor = self._connection.cursor()
        before, faults = 0, []
        with self._translated(path):
            for batch in arrow_result(cursor, self._converted(path)).to_arrow_reader(_BATCH_ROWS):
                bad = batch.column(batch.num_columns - 1)
                if bad.null_count < len(bad):
                    faults += [(before + row, fault) for row, fault in enumerate(bad.to_pylist()) if fault is not None]
                    if len(self.bad_rows) + len(faults) > self._options.bad_rows_max:
                        break
                before += len(bad)
                yield _with_uuids(batch.filter(bad.is_null()).select(self.schema.names), self.schema)
            has_rejects = self._format == "csv" and self._options.bad_rows_max
            self._reject(path, dict(faults), cursor.execute(_REJECTS).fetchall() if has_rejects else [])

    def _reject(
        self, path: Path, faults: Mapping[int, str], rejected: Sequence[tuple[int, str | None, str, str]]
    ) -> None:
        """Reject rows of a file. Raises `InvalidArgument` for more bad rows than are allowed.

        Args:
            path: the file.
            faults: values that have another type, by the number of the row.
            rejected: records of CSV that DuckDB rejected: the number of the record, which it calls line, and the fault.
        """
        lines: dict[int, int] = {}
        records: dict[int, int] = {}
        name, is_csv = self.names[path], self._format == "csv"
        if is_csv and (faults or rejected):
            lines, records = self._lines(path, faults, [record for record, *_ in rejected])
        bad = [BadRow(name, records.get(record), None, column, error, text) for record, column, error, text in rejected]
        for row, text in faults.items():
            found = json.loads(text)
            column, value = found["fault"]["column"], found["fault"]["value"]
            error = f"column {column} is required, and its value is NULL"
            if value is not None:
                error = f"{_shortened(value)} in column {column} is not a valid {self._types[column]}"
            shown = json.dumps(found["row"], ensure_ascii=False)
            bad.append(BadRow(name, lines.get(row), None if is_csv else row + 1, column, error, shown))
        self.bad_rows += sorted(bad, key=lambda one: one.line or one.row or 0)
        bad_rows_max = self._options.bad_rows_max
        if len(self.bad_rows) <= bad_rows_max:
            return
        last = self.bad_rows[bad_rows_max]
        message = f"{last.file}, {f'line {last.line}' if is_csv else f'row {last.row}'}: {last.error}"
        if bad_rows_max:
            raise InvalidArgument(f"more than {bad_rows_max:,} rows do not fit: {message}")
        raise InvalidArgument(f"{message}; use --type {last.column}=VARCHAR, --null, --select or --bad-rows FILE")

    def _lines(
        self, path: Path, rows: Container[int], records: Container[int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """The lines, from 1, in which rows and rejected records of a CSV file end, by the numbers of rows and records.

        Rows are numbered from 0. All records are numbered from 1, including blank lines and lines before the header.
        """
        found: tuple[dict[int, int], dict[int, int]] = {}, {}
        columns, skip, row = len(self._sources[path][1]), self._options.skip, -int(self._options.has_header)
        with self._text(path) as lines:
            reader = _records(lines, skip, self._delimiters[path])
            for record, fields in enumerate(reader, skip + 1):
                if record in records:
                    found[1][record] = reader.line_num + skip
                elif len(fields) == columns or (not fields and columns == 1):  # a blank line is a row of one column
                    if row in rows:
                        found[0][row] = reader.line_num + skip
                    row += 1
        return found

    def _readable(self, path: Path, folder: Path) -> Path:
        """The path of a file, or of a copy in UTF-8 whose lines have one end.

        DuckDB reads no big-endian UTF-16, no JSON with a BOM, and no CSV with line ends of several kinds.
        Decompresses the file once, because DuckDB notices neither a missing end nor a wrong checksum.
        """
        import pyarrow as pa

        compression, name, is_csv = _COMPRESSED.get(path.suffix.lower()), self.names[path], self._format == "csv"
        encoding = "utf-8" if self._format == "parquet" else self._options.encoding
        copy = folder / f"{len(self.names)}.txt"
        ends: set[bytes] = set()
        try:
            with pa.input_stream(str(path), compression=compression) as stream:
                start = part = stream.read(_PART_SIZE_BYTES)
                while part and (is_csv or compression is not None):
                    if is_csv:
                        part += stream.read(1) if part.endswith(b"\r") else b""
                        ends |= _line_ends(part)
                    part = stream.read(_PART_SIZE_BYTES)
            if encoding == "utf-8":
                if start.startswith(_MAGIC):
                    raise InvalidArgument(f"{name} is compressed: decompress it, or give it a name with .gz or .zst")
                if b"\0" in start[:4]:
                    raise InvalidArgument(f"{name} is not UTF-8, but probably UTF-16: use --encoding utf-16")
                if len(ends) < 2 and (is_csv or not start.startswith(codecs.BOM_UTF8)):
                    return path
                encoding = "utf-8-sig"
            # Keep bytes that are not UTF-8: DuckDB's error then has the line.
            errors = "surrogateescape" if encoding == "utf-8-sig" else "strict"
            with (
                pa.input_stream(str(path), compression=compression) as stream,
                io.TextIOWrapper(stream, encoding, errors, newline="") as text,
                copy.open("w", encoding="utf-8", errors=errors, newline="") as target,
            ):
                if is_csv:
                    target.writelines(self._with_one_line_end(text))
                else:
                    shutil.copyfileobj(text, target, _PART_SIZE_BYTES)
        except UnicodeError as error:
            raise InvalidArgument(f"{name} has another encoding than {encoding}: {error}") from error
        except OSError as error:
            raise InvalidArgument(
                f"{name}: the {compression} file is cut or damaged, and nothing was loaded: {error}"
            ) from error
        self.names[copy] = name
        return copy

    def _with_one_line_end(self, lines: Iterator[str]) -> Iterator[str]:
        """Lines of CSV that end with \\n, except line breaks in quotes, which stay as they are."""
        skipped = list(islice(lines, self._options.skip))
        header = next(lines, "")
        delimiter = re.escape(self._delimiter(header))
        whole = re.compile(rf'(?:^|(?<={delimiter}))"(?:[^"]|"")*+"')
        opening, rest_of_quoted = re.compile(rf'(?:^|{delimiter})"'), re.compile(r'(?:[^"]|"")*+"')
        is_quoted = False
        for number, line in enumerate(chain(skipped, [header], lines)):
            if number >= len(skipped) and (is_quoted or '"' in line):
                end = rest_of_quoted.match(line) if is_quoted else None
                unquoted = line if end is None else f" {line[end.end() :]}"  # the space: no field begins here
                if not is_quoted or end is not None:
                    is_quoted = opening.search(whole.sub("", unquoted)) is not None
            yield line if is_quoted or not line.endswith(("\r", "\n")) else line.rstrip("\r\n") + "\n"

    def _delimiter(self, header: str) -> str:
        return self._options.delimiter or max(_DELIMITERS, key=header.count)

    @contextmanager
    def _text(self, path: Path) -> Iterator[io.TextIOWrapper]:
        """A file as lines of text, decompressed."""
        import pyarrow as pa

        with pa.input_stream(str(path), compression=_COMPRESSED.get(path.suffix.lower())) as stream:
            yield io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")

    @contextmanager
    def _translated(self, path: Path) -> Iterator[None]:
        """Raise `InvalidArgument` in one line for errors of DuckDB, Arrow and Python's csv module about a file."""
        import duckdb
        import pyarrow as pa

        try:
            yield
        except (
            duckdb.Error,
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            pa.ArrowNotImplementedError,
            csv.Error,
            OSError,
        ) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # not an error of DuckDB that Arrow raised while it read a stream
            if (found := _JSON_ERROR.search(str(error))) is not None:
                raise InvalidArgument(f"{self.names[path]}, {self._damage_of_json(path, found)}") from error
            raise InvalidArgument(f"{self.names[path]}: {_first_lines(str(error))}") from error

    def _damage_of_json(self, path: Path, error: re.Match[str]) -> str:
        """The place of damaged JSON. DuckDB counts values from 2, and calls them lines if each has its own."""
        number, why = int(error["number"]) - 1, error["why"].rstrip(". ")
        if error["kind"] != "line":
            return f"value {number}: damaged JSON at byte {error['byte']} of the value: {why}"
        with self._text(path) as lines:
            values = ((place, line) for place, line in enumerate(lines, 1) if line.strip())
            place, line = next(islice(values, number - 1, None), (number, ""))
        return f"line {place}: damaged JSON at byte {error['byte']}: {why}: {_shortened(line.rstrip())}"


def _records(lines: Iterable[str], skip: int, delimiter: str, *, strict: bool = False) -> Any:
    """The records of CSV after some lines, with fields as long as DuckDB reads them."""
    csv.field_size_limit(max(csv.field_size_limit(), 2 * _ROW_MAX_BYTES))  # of the process; it is 128 KiB at first
    return csv.reader(islice(lines, skip, None), delimiter=delimiter, strict=strict)


def _line_ends(part: bytes) -> set[bytes]:
    """The kinds of line ends in a part of a file. A part never ends inside of a line end."""
    both = part.count(b"\r\n")
    counts = {b"\r\n": both, b"\n": part.count(b"\n") - both, b"\r": part.count(b"\r") - both}
    return {end for end, count in counts.items() if count}


def _parquet_file(path: Path, schema: pa.Schema | None = None) -> Dataset:
    """A Parquet file. Timestamps of 96 bits are read as microseconds: nanoseconds of far years overflow."""
    from pyarrow import dataset

    return dataset.dataset(path, schema, dataset.ParquetFileFormat(coerce_int96_timestamp_unit="us"))


def _with_uuids(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of DuckDB, which has UUIDs as texts, with the types of a schema."""
    import pyarrow as pa

    columns = [uuids_of_texts(one, field.type) for one, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_JSON_ERROR = re.compile(
    r"Malformed JSON in file .*, at byte (?P<byte>\d+) in (?P<kind>line|record/value) (?P<number>\d+): (?P<why>.*)"
)
_CSV_ERROR = re.compile(r".*?CSV Error on Line: (?P<line>\d+); Original Line: (?P<text>.*); (?P<why>[^;]+(?:; .*)?)")


#: Words of errors of DuckDB and Arrow, and the options that help.
_WAYS_OUT = {
    "not utf-8 encoded": "; name its --encoding, such as latin-1",
    "Expected Number of Columns": "; use --delimiter, --skip or --bad-rows FILE",
    "unterminated quote": "; use --bad-rows FILE",
    "Maximum line size": "; use --bad-rows FILE",
    "incompatible types": ": load the files one by one, with --select",
    "not in range": ": load the files one by one, with --select",
}


def _first_lines(message: str) -> str:
    """The lines of a DuckDB error before its hints, joined to one line."""
    lines = message.partition("\nPossible ")[0].partition("\nTry ")[0].partition("\nLINE ")[0].splitlines()
    text = "; ".join(line.strip() for line in lines if line.strip())
    if "Parquet magic bytes not found" in text or "Is this a 'parquet' file?" in text:
        return "it is no Parquet file, or its end is missing"
    if "duplicate field names" in text:
        return "two of its columns have the same name"
    way_out = next((way for words, way in _WAYS_OUT.items() if words in text), "")
    if (found := _CSV_ERROR.match(text)) is not None:
        return f"line {found['line']}: {found['why'].rstrip('.')}{way_out}: {_shortened(found['text'])}"
    return (text.partition("Error: ")[2] or text) + way_out


def _shortened(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_TEXT_MAX else value[:_SHOWN_TEXT_MAX] + "…")

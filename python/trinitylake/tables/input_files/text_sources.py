"""Text files as DuckDB reads them: options, CSV and JSON with an explicit dialect, and copies in UTF-8."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from trinitylake.definitions.sql_types import Type
from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files import text_conversion as conversion
from trinitylake.tables.input_files.local_files import COMPRESSED, Format
from trinitylake.tables.sql_sandbox import literal, quoted

ENCODINGS = ("utf-8", "utf-16", "latin-1")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for reading text files.

    Attributes:
        types: declared types by column, also of columns that no file has. The types of other columns are detected.
        nested: columns of the table with nested types. Fractions in them are read from JSON as strings, because a
            double would round values that the table stores as decimals.
        required: columns that must not be NULL.
        nulls: strings that stand for NULL, in addition to an empty field without quotes.
        delimiter: character between the fields of CSV; "" detects it in the header.
        encoding: one of `ENCODINGS`.
        skip: number of lines before the header of CSV.
        has_header: whether CSV has a header; otherwise the columns are named column1, column2, ….
        time_zone: zone of times without an offset, which get the type timestamptz; "" for no zone.
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
class Source:
    """A text file as DuckDB reads it.

    Attributes:
        query: SQL of the rows, in which all columns are strings, except nested columns.
        columns: candidate types by column. For a nested column, its DuckDB type as a string.
        json_columns: nested columns that are JSON in `query`.
        several_kinds: DuckDB types of JSON columns with values of several kinds.
        delimiter: character between the fields of CSV.
    """

    query: str
    columns: Mapping[str, Sequence[Type] | str]
    json_columns: frozenset[str] = frozenset()
    several_kinds: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ""


@contextmanager
def text_lines(path: Path) -> Iterator[io.TextIOWrapper]:
    """A file as lines of text, decompressed."""
    with pa.input_stream(str(path), compression=COMPRESSED.get(path.suffix.lower())) as stream:
        yield io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")


_DELIMITERS = (",", "\t", ";", "|")
#: Maximum size of a row of CSV. Reading is as fast as with DuckDB's default, 2 MB.
_ROW_MAX_BYTES = 16 * 1024 * 1024


def csv_source(name: str, path: Path, options: TextOptions) -> Source:
    """Describe a CSV file for DuckDB. Raises `InvalidArgument` for a header that names no columns."""
    with text_lines(path) as lines:
        header = "".join(islice(lines, options.skip, options.skip + 1))
    if not header.strip():
        raise InvalidArgument(f"{name} has no header: the file is empty")
    if "\0" in header:
        raise InvalidArgument(f"{name}: the header has a NUL character, so the file is no text")
    delimiter = delimiter_of(header, options)
    with text_lines(path) as lines:
        columns = next(records(lines, options.skip, delimiter, strict=True))
    if not options.has_header:
        columns = [f"column{number}" for number in range(1, len(columns) + 1)]
    if re.fullmatch(r"sep=.\r?\n?", header):
        raise InvalidArgument(f"{name}: line {options.skip + 1} is no header, but names the delimiter: use --skip 1")
    folded = [column.lower() for column in columns]
    for number, column in enumerate(folded, 1):
        if not column or folded.count(column) > 1:
            fault = f"the column {columns[number - 1]!r} twice" if column else f"no name for column {number}"
            raise InvalidArgument(
                f"{name}: the header has {fault}; name the columns with --skip {options.skip + 1} --no-header "
                '--select "SELECT column1 AS a, column2 AS b FROM input"'
            )
    settings = {
        "auto_detect": "false",
        "columns": _fields(dict.fromkeys(columns, "VARCHAR")),
        "hive_partitioning": "false",
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
    return Source(
        f"SELECT * FROM read_csv({literal(str(path))}, {arguments})",
        dict.fromkeys(columns, (conversion.BOOLEAN, *conversion.NUMBERS, *conversion.TIMES)),
        delimiter=delimiter,
    )


def delimiter_of(header: str, options: TextOptions) -> str:
    return options.delimiter or max(_DELIMITERS, key=header.count)


def records(lines: Iterable[str], skip: int, delimiter: str, *, strict: bool = False) -> Any:
    """The records of CSV after `skip` lines, with fields as long as DuckDB reads them."""
    csv.field_size_limit(max(csv.field_size_limit(), 2 * _ROW_MAX_BYTES))  # of the whole process; 128 KiB by default
    return csv.reader(islice(lines, skip, None), delimiter=delimiter, strict=strict)


_JSON_NUMBERS = ("BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT", "DOUBLE", "DECIMAL")
#: Names that DuckDB makes for values that are not objects, for names that differ only in case, and for empty names.
_OWN_NAME = re.compile(r"json|.*_\d+|C\d+", re.DOTALL)
#: A nested type of DuckDB, or its type JSON for values of several kinds.
_NESTED = re.compile(r"^(STRUCT|MAP)\b|\[\]$|\bJSON\b")
#: A part of a nested type, or a quoted name of a field, which is group 1.
_PART = r'("(?:[^"]|"")*")|\b(?:{})(?=[],)[]|$)'
_DOUBLE = re.compile(_PART.format("DOUBLE"))
#: Types that DuckDB detects in strings, with casts that drop digits of times and offsets of timestamps. Since 2.0 the
#: type of a part without a value is "NULL".
_OF_STRING = re.compile('"NULL"(?=[],)[])|' + _PART.format("DATE|TIME|TIMESTAMP|TIMESTAMP WITH TIME ZONE|UUID"))
#: SQL that puts the numbers of a JSON text into quotes, because DuckDB rounds fractions to doubles. It uses the
#: character \1, which JSON cannot contain.
_EXACT_JSON = (
    "replace(replace(regexp_replace(json::VARCHAR, "
    r"""'("(?:[^"\\]|\\.)*")|(-?[0-9][-+0-9.eE]*)', '\1' || chr(1) || '\2' || chr(1), 'g'), """
    """chr(1) || chr(1), ''), chr(1), '"')"""
)


def json_source(connection: Any, file: str, path: Path, all_paths: Sequence[Path], options: TextOptions) -> Source:
    """Describe a JSON file for DuckDB: candidate types for strings and numbers, exact types for nested values.

    Nested values of `all_paths` have one type. Strings in them remain strings. Raises `InvalidArgument` for rows that
    are not objects with fields.
    """
    # Without the threshold, DuckDB reads an object with many fields, or with few that are in all rows, as a map.
    settings = "sample_size = -1, convert_strings_to_integers = false, map_inference_threshold = -1"
    read = f"read_json({literal(str(path))}, hive_partitioning = false, {settings}"
    objects = f"read_json_objects({literal(str(path))}, hive_partitioning = false)"
    described = _described(connection, f"{read})")
    if len(all_paths) > 1:
        files = f"[{', '.join(literal(str(one)) for one in all_paths)}]"
        of_all = _described(connection, f"{read.replace(literal(str(path)), files, 1)}, union_by_name = true)")
        described |= {name: of_all[name] for name in described if _NESTED.search(of_all.get(name, ""))}
    described = {name: _OF_STRING.sub(lambda found: found[1] or "VARCHAR", type) for name, type in described.items()}
    kinds: dict[str, str] = {name: type.partition("(")[0] for name, type in described.items()}
    if any(map(_OWN_NAME.fullmatch, kinds)):
        keys = connection.execute(f"SELECT DISTINCT unnest(json_keys(json)) FROM {objects}").fetchall()
        if not keys:
            raise InvalidArgument(f"{file}: no row of the file is an object with fields")
        if set(kinds) - {key for (key,) in keys}:
            raise InvalidArgument(
                f"{file}: rows of JSON are objects with fields, whose names are not empty and differ not only in case"
            )
    columns: dict[str, Sequence[Type] | str] = {}
    several_kinds = {}
    for name, type in described.items():
        kind = kinds[name]
        if "JSON" in type and name not in options.types:
            several_kinds[name] = type
        if kind == "BOOLEAN":
            columns[name] = (conversion.BOOLEAN,)
        elif kind in _JSON_NUMBERS:
            columns[name] = conversion.NUMBERS
        elif kind == "VARCHAR":
            columns[name] = conversion.TIMES
        elif kind in ("JSON", '"NULL"'):  # values of several kinds, or none
            columns[name] = ()
        elif name in options.nested:
            columns[name] = _DOUBLE.sub(lambda found: found[1] or "VARCHAR", type)
        else:
            columns[name] = type
    declared = options.types
    json_columns = frozenset(
        name for name, types in columns.items() if isinstance(types, str) and ("DOUBLE" in types or name in declared)
    )
    read_as = {
        name: "JSON" if name in json_columns else types if isinstance(types, str) else "VARCHAR"
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
    if json_columns or with_fractions:  # `from_json` ignores all but the first of repeated keys; `read_json` does not
        connection.execute(f"SELECT count(COLUMNS(*)) FROM {read}, columns = {_fields(described)})")
    if with_fractions:
        values = []
        for name, type in read_as.items():
            value = f"{'exact' if name in with_fractions else 'inexact'}.{quoted(name)}"
            if name in with_fractions and type == "VARCHAR":  # nested values as text keep their numbers without quotes
                inexact = f"inexact.{quoted(name)}"
                value = f"CASE WHEN {inexact}[1] IN ('{{', '[') THEN {inexact} ELSE {value} END AS {quoted(name)}"
            values.append(value)
        text = (
            f"SELECT {', '.join(values)} FROM (SELECT from_json(json, {literal(json.dumps(read_as))}) AS inexact, "
            f"from_json({_EXACT_JSON}, {literal(json.dumps(with_fractions))}) AS exact FROM {objects})"
        )
    else:
        text = f"SELECT * FROM {read}, columns = {_fields(read_as)})"
    return Source(text, columns, json_columns, several_kinds)


def _fields(types: Mapping[str, str]) -> str:
    """SQL of columns with their types in DuckDB."""
    return f"{{{', '.join(f'{literal(name)}: {literal(type)}' for name, type in types.items())}}}"


def _described(connection: Any, query: str) -> dict[str, str]:
    """The columns of a query, with their types in DuckDB."""
    return {name: type for name, type, *_ in connection.execute(f"DESCRIBE SELECT * FROM {query}").fetchall()}


#: First bytes of gzip, zstd, ZIP, xz and bzip2 files.
_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\xfd7zXZ\x00", b"BZh")
_PART_SIZE_BYTES = 8 * 1024 * 1024


def readable_path(name: str, path: Path, copy: Path, format: Format, options: TextOptions) -> Path:
    """The path of a file that DuckDB can read: `path`, or `copy`, which is written in UTF-8 with one kind of line ends.

    DuckDB cannot read big-endian UTF-16, JSON with a BOM, and CSV with several kinds of line ends. A compressed file is
    decompressed once as a check, because DuckDB does not notice a missing end or a wrong checksum.
    """
    compression, is_csv = COMPRESSED.get(path.suffix.lower()), format == "csv"
    encoding = "utf-8" if format == "parquet" else options.encoding
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
        # Bytes that are not UTF-8 are copied, so that DuckDB's error has the line.
        errors = "surrogateescape" if encoding == "utf-8-sig" else "strict"
        with (
            pa.input_stream(str(path), compression=compression) as stream,
            io.TextIOWrapper(stream, encoding, errors, newline="") as text,
            copy.open("w", encoding="utf-8", errors=errors, newline="") as target,
        ):
            if is_csv:
                target.writelines(_with_one_line_end(text, options))
            else:
                shutil.copyfileobj(text, target, _PART_SIZE_BYTES)
    except UnicodeError as error:
        raise InvalidArgument(f"{name} has another encoding than {encoding}: {error}") from error
    except OSError as error:
        raise InvalidArgument(
            f"{name}: the {compression} file is cut or damaged, and nothing was loaded: {error}"
        ) from error
    return copy


def _with_one_line_end(lines: Iterator[str], options: TextOptions) -> Iterator[str]:
    """Lines of CSV that end with \\n. Line breaks in quotes are not changed."""
    skipped = list(islice(lines, options.skip))
    header = next(lines, "")
    delimiter = re.escape(delimiter_of(header, options))
    whole = re.compile(rf'(?:^|(?<={delimiter}))"(?:[^"]|"")*+"')
    opening, rest_of_quoted = re.compile(rf'(?:^|{delimiter})"'), re.compile(r'(?:[^"]|"")*+"')
    is_quoted = False
    for number, line in enumerate(chain(skipped, [header], lines)):
        if number >= len(skipped) and (is_quoted or '"' in line):
            end = rest_of_quoted.match(line) if is_quoted else None
            unquoted = line if end is None else f" {line[end.end() :]}"  # with a space, because no field begins here
            if not is_quoted or end is not None:
                is_quoted = opening.search(whole.sub("", unquoted)) is not None
        yield line if is_quoted or not line.endswith(("\r", "\n")) else line.rstrip("\r\n") + "\n"


def _line_ends(part: bytes) -> set[bytes]:
    """The kinds of line ends in a part of a file. The part must not end within a line end."""
    both = part.count(b"\r\n")
    counts = {b"\r\n": both, b"\n": part.count(b"\n") - both, b"\r": part.count(b"\r") - both}
    return {end for end, count in counts.items() if count}

"""Options for reading text files, and the SQL with which DuckDB reads a text file."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trinitylake.definitions.sql_types import Type
from trinitylake.tables.input_files.local_files import COMPRESSED

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
        decimal: decimal separator.
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
    import pyarrow as pa

    with pa.input_stream(str(path), compression=COMPRESSED.get(path.suffix.lower())) as stream:
        yield io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")

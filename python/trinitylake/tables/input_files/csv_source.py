"""CSV files: the header, the delimiter, and the SQL that reads a file with an explicit dialect."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files import text_conversion as conversion
from trinitylake.tables.input_files.text_files import Source, TextOptions, text_lines
from trinitylake.tables.sql_sandbox import literal

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

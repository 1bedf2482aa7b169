"""Prints the results of SQL statements as tables for people, CSV or JSON, to standard output or a file."""

from __future__ import annotations

import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from trinitylake.cli.rows import TerminalFile, csv_writer, line_width, print_json
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from trinitylake.tables.queries.query import Query

#: Default number of printed rows.
SHOWN_ROWS = 100


class Format(StrEnum):
    """Output format of rows: a table, each value on its own line, CSV, or one JSON document."""

    TABLE = "table"
    LINE = "line"
    CSV = "csv"
    JSON = "json"


class ResultPrinter:
    """Prints the rows of queries.

    Args:
        format: output format of the rows.
        limit: maximum number of printed rows in a format for people.
        has_pager: whether long tables are shown in a pager, if standard output is a terminal.

    Attributes:
        is_timed: whether to print the time of each statement on standard error.
    """

    def __init__(self, format: Format = Format.TABLE, limit: int = SHOWN_ROWS, *, has_pager: bool = False) -> None:
        self.format = format
        self.is_timed = False
        self._limit = limit
        self._has_pager = has_pager
        self._path = ""

    @property
    def is_for_people(self) -> bool:
        """Whether the format is for people, not for programs."""
        return self.format in (Format.TABLE, Format.LINE)

    def redirect(self, path: str) -> None:
        """Print to a new file, or to standard output for "". Raises `InvalidArgument` if it cannot be written."""
        try:
            if path:
                Path(path).write_text("")
        except OSError as error:
            raise InvalidArgument(f"cannot write {path}: {error.strerror}") from None
        self._path = path

    def show(self, query: Query) -> None:
        """Print the rows of a query. In a format for programs, the rows are streamed."""
        started = time.perf_counter()
        if self._path:
            with Path(self._path).open("a", encoding="utf-8") as file:
                self._show(query, file, None)
        else:
            self._show(query, sys.stdout, line_width())
        if self.is_timed:
            print(f"Time: {time.perf_counter() - started:.3f} s", file=sys.stderr)

    def _show(self, query: Query, out: TextIO, width: int | None) -> None:
        if self.is_for_people:
            self._print(query._text(self._limit, width, one_by_one=self.format is Format.LINE), out)
            return
        reader = query._stream(is_shown=True)
        if self.format is Format.JSON:
            print_json(reader, out)
            return
        with csv_writer(TerminalFile(out) if out.isatty() else out.buffer, reader.schema) as write:
            for batch in reader:
                write(batch)

    def _print(self, text: str, out: TextIO) -> None:
        is_long = text.count("\n") >= shutil.get_terminal_size().lines - 1
        if self._has_pager and is_long and out.isatty():
            import pydoc

            pydoc.pager(text)
        else:
            print(text, file=out)

"""`head`, `count` and `cat`: rows of a table.

The module does not import rich for small outputs, because this import would take a tenth of the time of `count`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, TextIO

import typer

from trinitylake.cli.command import At, Json, Lake, command, object_names
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.printable import printable, printable_json

if TYPE_CHECKING:
    import pyarrow as pa

    from trinitylake.lakehouse.reader import Reader
    from trinitylake.tables.scan import Scan

Format = Literal["csv", "json", "parquet"]
#: Maximum number of changed rows that are printed for people.
_ROWS_MAX = 200

Identifier = Annotated[str, typer.Argument(help="A table.", autocompletion=object_names("table"))]
Where = Annotated[str | None, typer.Option("--where", help='Filter, such as "month = 1".')]
Columns = Annotated[list[str] | None, typer.Option("--column", "-c", help="Only this column, repeatable.")]


@command
def head(
    lake: Lake,
    table: Identifier,
    limit: int = typer.Option(10, "--limit", "-n", min=1, help="Rows to print."),
    where: Where = None,
    columns: Columns = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Print the first rows of a table."""
    rows = _scan(lake.at(at), table, where, columns, limit).to_arrow()
    if as_json:
        print_json(rows.to_batches())
    else:
        print_rows(rows)


@command
def count(lake: Lake, table: Identifier, where: Where = None, at: At = None, as_json: Json = False) -> None:
    """Count the rows of a table."""
    number = _scan(lake.at(at), table, where).count()
    document = json.dumps({"table": table, "rows": number}, indent=2, ensure_ascii=False)
    print(printable_json(document) if as_json else f"{number:,}")


@command
def cat(
    lake: Lake,
    table: Identifier,
    format: Format = typer.Option("csv", "--format", "-f", help="JSON has one row per line."),
    output: Path | None = typer.Option(None, "--output", "-o", help="A file; default: standard output."),
    limit: int | None = typer.Option(None, "--limit", "-n", min=1, help="Maximum number of rows."),
    where: Where = None,
    columns: Columns = None,
    at: At = None,
) -> None:
    """Write the rows of a table as CSV, JSON lines or Parquet.

    Rows are streamed. --json applies to errors only.
    """
    to_terminal = output is None and sys.stdout.isatty()
    if to_terminal and format == "parquet":
        raise InvalidArgument("a terminal cannot show Parquet: use --output FILE or a pipe")
    from trinitylake.cli.output import counting

    reader = _scan(lake.at(at), table, where, columns, limit).to_arrow_batch_reader()
    with _target(output) as target, counting("reading") as on_progress:
        done = 0
        with _writer(format, target, reader.schema, to_terminal) as write:
            for batch in reader:
                write(batch)
                done += batch.num_rows
                on_progress(f"of rows of {table}", done)


def print_changed_rows(feeds: Iterable[tuple[str, pa.RecordBatchReader]], as_json: bool) -> None:
    """Print changed rows of tables, with the name of each table unless it is "".

    Without `as_json`, at most `_ROWS_MAX` rows of each table are printed.
    """
    import pyarrow as pa

    if as_json:
        print_json(
            batch.append_column("_table", pa.repeat(table, batch.num_rows)) if table else batch
            for table, rows in feeds
            for batch in rows
        )
        return
    from rich.text import Text

    from trinitylake.cli.output import console

    for table, rows in feeds:
        first: list[pa.RecordBatch] = []
        while (left := _ROWS_MAX - sum(one.num_rows for one in first)) and (batch := next(rows, None)) is not None:
            first.append(batch.slice(0, left))
        shown = pa.Table.from_batches(first, rows.schema)
        if table:
            console().print(Text(table, "bold"))
        print_rows(shown.drop_columns(["_committed_at", "_transaction_id"]))
        if not left:
            console().print(Text(f"the first {_ROWS_MAX} rows; --json prints all", "dim"))


def print_rows(rows: pa.Table) -> None:
    """Print rows for people, in the width of the terminal."""
    from trinitylake.tables.display_values import python_values
    from trinitylake.tables.queries.text_table import Preview, text_table

    values = list(zip(*map(python_values, rows.columns), strict=True))
    print(text_table(Preview(rows.column_names, values), line_width()))


def line_width() -> int | None:
    """Width of a line on the terminal; None for a pipe, where lines can have any length."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if has_width else None


def _scan(
    source: Reader, table: str, where: str | None, columns: list[str] | None = None, limit: int | None = None
) -> Scan:
    """The scan of a table. The error for an unknown table suggests the most similar name."""
    try:
        return source.table(table).scan(where, columns or None, limit)
    except ObjectNotFound as error:
        if similar := get_close_matches(table, source._similar_names(table), n=1, cutoff=0.8):
            raise ObjectNotFound(f"{error}; did you mean {similar[0]}?") from None
        raise


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with output.open("wb") as file:
        yield file


@contextmanager
def _writer(format: Format, target: BinaryIO, schema: pa.Schema, to_terminal: bool) -> Iterator[Any]:
    from trinitylake.tables.display_values import json_texts

    if format == "json":
        yield lambda batch: target.write("".join(f"{line}\n" for line in json_texts(batch)).encode())
    elif format == "parquet":
        from pyarrow import parquet

        with parquet.ParquetWriter(target, schema) as writer:
            yield writer.write_batch
    else:
        out: Any = TerminalFile(sys.stdout) if to_terminal else target
        with csv_writer(out, schema) as write:
            yield write


@contextmanager
def csv_writer(target: Any, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Context manager with a function that writes a batch as CSV."""
    import pyarrow as pa
    from pyarrow import csv

    from trinitylake.tables.display_values import for_csv

    none = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    with csv.CSVWriter(target, for_csv(none).schema) as writer:
        yield lambda batch: writer.write_batch(for_csv(batch))


def print_json(batches: Iterable[pa.RecordBatch], out: TextIO | None = None) -> None:
    """Print rows as one JSON list, streamed, on standard output by default."""
    from trinitylake.tables.display_values import json_texts

    separator = "["
    for line in chain.from_iterable(map(json_texts, batches)):
        print(separator, line, sep="\n  ", end="", file=out)
        separator = ","
    print("[]" if separator == "[" else "\n]", file=out)


class TerminalFile:
    """Binary file over a terminal for Arrow's CSV writer. It escapes control characters."""

    closed = False

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, data: Any) -> int:
        self._terminal.write(printable(bytes(data).decode(errors="backslashreplace"), keep="\n\t"))
        return len(data)

    def flush(self) -> None:
        self._terminal.flush()

    def writable(self) -> bool:
        return True

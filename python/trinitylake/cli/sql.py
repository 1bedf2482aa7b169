"""`sql`: a SQL statement, or a shell."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trinitylake.base.commit_info import CommitInfo
from trinitylake.cli.command import At, Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.output import Harmless, console
from trinitylake.cli.rows import AsText, csv_writer, print_json

if TYPE_CHECKING:
    from trinitylake.tables.queries.query import Query

#: Default number of printed rows.
SHOWN_ROWS = 100


class Format(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@command
def sql(
    root: Root,
    statement: Annotated[
        str | None,
        typer.Argument(help="One statement; default: an interactive shell, or statements from standard input."),
    ] = None,
    at: At = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.TABLE,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows of --format table.")] = SHOWN_ROWS,
    allow_external: Annotated[
        bool, typer.Option("--allow-external", help="Allow queries to read files and URLs outside of the lakehouse.")
    ] = False,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Run SQL over tables and views, with DuckDB.

    A statement that writes is a transaction.
    """
    from trinitylake.cli.sql_shell import SqlShell

    lake = open_lakehouse(root, options)
    chosen = Format.JSON if as_json else format
    info = CommitInfo(message, author)
    shell = SqlShell(lake, lambda query: print_rows(query, chosen, limit), info, allow_external=allow_external)
    if at is not None:
        shell.look_at(at)
    if statement is not None:
        shell.run(statement)
    elif sys.stdin.isatty():
        shell.talk()
    else:
        shell.run_all(sys.stdin.read())


def print_rows(query: Query, format: Format, limit: int) -> None:
    """Print the rows of a query, streamed."""
    if format is Format.TABLE:
        print(query.text(limit, console().width))
        return
    reader = query.to_arrow_batch_reader()
    if format is Format.JSON:
        print_json(reader)
        return
    out = AsText(Harmless(sys.stdout)) if sys.stdout.isatty() else sys.stdout.buffer
    with csv_writer(out, reader.schema) as write:
        for batch in reader:
            write(batch)

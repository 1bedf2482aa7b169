"""`sql`: SQL statements, or a shell."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trinitylake.base.commit_info import CommitInfo
from trinitylake.cli.command import At, Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.sql_results import SHOWN_ROWS, Format, ResultPrinter
from trinitylake.errors import InvalidArgument


@command
def sql(
    root: Root,
    statements: Annotated[
        str | None, typer.Argument(help="Statements; default: an interactive shell, or statements from standard input.")
    ] = None,
    command: Annotated[list[str] | None, typer.Option("--command", "-c", help="Statements, repeatable.")] = None,
    file: Annotated[list[str] | None, typer.Option("--file", "-f", help="A file of statements, repeatable.")] = None,
    single_transaction: Annotated[
        bool, typer.Option("--single-transaction", "-1", help="Run all statements in one transaction.")
    ] = False,
    at: At = None,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TABLE,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows for people.")] = SHOWN_ROWS,
    allow_external: Annotated[
        bool, typer.Option("--allow-external", help="Allow queries to read files and URLs outside of the lakehouse.")
    ] = False,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Run SQL over tables and views, with DuckDB.

    A statement that writes is a transaction. Statements end with a semicolon; the first that fails ends the command.
    --json prints a list for each statement that returns rows.
    """
    from trinitylake.cli.sql_shell import SqlShell, text_of

    texts = [*([statements] if statements is not None else []), *(command or []), *map(text_of, file or [])]
    is_shell = not texts and sys.stdin.isatty()
    if is_shell and single_transaction:
        raise InvalidArgument("--single-transaction needs statements; in the shell use .begin and .commit")
    lake = open_lakehouse(root, options)
    printer = ResultPrinter(Format.JSON if as_json else format, limit, has_pager=is_shell)
    shell = SqlShell(lake, printer, CommitInfo(message, author), allow_external=allow_external)
    if at is not None:
        shell.look_at(at)
    if is_shell:
        shell.run_interactively()
    else:
        shell.run_all(texts or [sys.stdin.read()], single_transaction=single_transaction)

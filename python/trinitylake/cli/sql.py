"""`sql`: SQL statements, or a shell."""

from __future__ import annotations

import sys

import typer

from trinitylake.base.commit_info import CommitInfo
from trinitylake.cli.command import At, Json, Lake, LogInfo, command
from trinitylake.cli.sql_results import SHOWN_ROWS, Format, ResultPrinter
from trinitylake.errors import InvalidArgument


@command
def sql(
    lake: Lake,
    log: LogInfo,
    statements: str | None = typer.Argument(
        None, help="Statements; default: an interactive shell, or statements from standard input."
    ),
    command: list[str] | None = typer.Option(None, "--command", "-c", help="Statements, repeatable."),
    file: list[str] | None = typer.Option(None, "--file", "-f", help="A file of statements, repeatable."),
    single_transaction: bool = typer.Option(
        False, "--single-transaction", "-1", help="Run all statements in one transaction."
    ),
    at: At = None,
    format: Format = typer.Option(Format.TABLE, "--format", help="Output format."),
    limit: int = typer.Option(SHOWN_ROWS, min=1, help="Maximum number of rows for people."),
    allow_external: bool = typer.Option(
        False, "--allow-external", help="Allow queries to read files and URLs outside of the lakehouse."
    ),
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
    printer = ResultPrinter(Format.JSON if as_json else format, limit, has_pager=is_shell)
    shell = SqlShell(lake, printer, CommitInfo(**log), allow_external=allow_external)
    if at is not None:
        shell.look_at(at)
    if is_shell:
        shell.run_interactively()
    else:
        shell.run_all(texts or [sys.stdin.read()], single_transaction=single_transaction)

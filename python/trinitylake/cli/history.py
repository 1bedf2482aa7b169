"""`log`, `diff`, `at` and `rollback`: the versions of a lakehouse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.cli.catalog import list_objects, show_object
from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.completion import object_names
from trinitylake.cli.output import age_text, emit, grid, time_text
from trinitylake.lakehouse.history import CommittedTransaction, LogEntry

SIGN_STYLES = {"+": "green", "-": "red", "~": "yellow"}
#: Versions whose summaries stand below a difference.
SUMMARIES_MAX = 20


@command
def log(
    root: Root,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Newest versions to print; 0 prints all.")] = 20,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the newest versions, newest first."""
    entries = open_lakehouse(root, options).log(limit or None)
    emit([asdict(entry) for entry in entries], log_picture(entries), as_json)


@command
def diff(
    root: Root,
    before: Annotated[int, typer.Argument(help="A version.")],
    after: Annotated[int | None, typer.Argument(help="A version; the latest without it.")] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print what differs between two versions, and what was done.

    + added, - removed, ~ changed.
    """
    lake = open_lakehouse(root, options)
    difference = lake.diff(before, after)
    lines = [Text(f"{sign} {change}", SIGN_STYLES[sign]) for sign, change in difference]
    between = difference.after - difference.before
    entries = lake.log(min(between, SUMMARIES_MAX), before=difference.after + 1) if between > 0 else []
    lines += [Text.assemble((f"version {entry.version}: ", "bold"), _what_happened(entry)) for entry in entries]
    if between > len(entries) > 0:
        lines.append(Text(f"and {between - len(entries)} versions before, see log", "dim"))
    picture = Text("\n").join(lines)
    document = {
        "before": difference.before,
        "after": difference.after,
        "added": [change._asdict() for change in difference.added],
        "removed": [change._asdict() for change in difference.removed],
        "changed": [change._asdict() for change in difference.changed],
        "transactions": [
            {"version": entry.version, **asdict(transaction)} for entry in entries for transaction in entry.transactions
        ],
    }
    emit(document, picture if difference else Text("no difference", "dim"), as_json)


@command
def at(
    root: Root,
    moment: Annotated[str, typer.Argument(help="A version number, or a time in ISO 8601 (local without a zone).")],
    identifier: Annotated[
        str | None,
        typer.Argument(
            help="An object to show; everything is listed without it.",
            autocompletion=object_names("table", "view", "namespace"),
        ),
    ] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Look at the lakehouse as it was at a version or a time."""
    lake = open_lakehouse(root, options)
    past = lake.at(version=int(moment)) if moment.isdecimal() else lake.at(timestamp=moment)
    if identifier is not None:
        show_object(past, identifier, as_json)
        return
    if not as_json:
        emit(None, Text(f"version {past.version}, {time_text(past.created_at)}", "bold"), as_json=False)
    list_objects(past, None, recursive=True, as_json=as_json)


@command
def rollback(
    root: Root,
    version: Annotated[int, typer.Argument(help="The version to go back to.")],
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the log.")] = "",
    author: Annotated[str, typer.Option("--author", help="Who, for the log.")] = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Make a new version with the content of an older one."""
    new_version = open_lakehouse(root, options).rollback(version, message=message, author=author)
    text = Text(f"version {new_version} has the content of version {version}")
    emit({"version": new_version, "rolled_back_to": version}, text, as_json)


def log_picture(entries: Iterable[LogEntry]) -> Grid:
    """The version log as a table."""
    picture = grid("", "version", "created", "author", "message", numbers=["version"])
    for entry in entries:
        picture.add_row(
            Text("↺", "yellow") if entry.rollback_from is not None else Text("●", "green"),
            Text(str(entry.version), "bold cyan"),
            age_text(entry.created_at),
            Text(entry.author),
            _what_happened(entry),
        )
    return picture


def _what_happened(entry: LogEntry) -> Text:
    if entry.rollback_from is not None:
        return Text.assemble((f"rollback, was {entry.rollback_from}\n", "yellow"), told(entry.transactions[0]))
    if entry.problem:
        return Text(f"cannot be read: {entry.problem}", "red")
    if entry.version == 0:
        return Text("created", "dim")
    return Text("\n").join(told(transaction) for transaction in entry.transactions)


def told(transaction: CommittedTransaction | None) -> Text:
    """What the log says of a transaction: its message, and what it did."""
    if transaction is None:
        return Text()
    summary = transaction.summary or ("" if transaction.message else f"transaction {transaction.id}")
    lines = [Text(transaction.message)] if transaction.message else []
    return Text("\n").join([*lines, *([Text(summary, "dim")] if summary else [])])

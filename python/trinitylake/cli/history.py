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
from trinitylake.cli.output import emit, grid, time_text
from trinitylake.lakehouse.history import LogEntry

SIGN_STYLES = {"+": "green", "-": "red", "~": "yellow"}


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
    """Print the objects that differ between two versions: + added, - removed, ~ changed."""
    difference = open_lakehouse(root, options).diff(before, after)
    picture = Text("\n").join(Text(f"{sign} {change}", SIGN_STYLES[sign]) for sign, change in difference)
    document = {
        "before": difference.before,
        "after": difference.after,
        "added": [change._asdict() for change in difference.added],
        "removed": [change._asdict() for change in difference.removed],
        "changed": [change._asdict() for change in difference.changed],
    }
    emit(document, picture if difference else Text("no difference", "dim"), as_json)


@command
def at(
    root: Root,
    moment: Annotated[str, typer.Argument(help="A version number, or a time in ISO 8601 (local without a zone).")],
    identifier: Annotated[
        str | None, typer.Argument(help="An object to show; everything is listed without it.")
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
            time_text(entry.created_at),
            Text(entry.author),
            _what_happened(entry),
        )
    return picture


def _what_happened(entry: LogEntry) -> Text:
    if entry.rollback_from is not None:
        return Text.assemble((f"rollback, was {entry.rollback_from}  ", "yellow"), entry.message)
    if entry.problem:
        return Text(f"cannot be read: {entry.problem}", "red")
    if entry.version == 0:
        return Text("created", "dim")
    untitled = [f"transaction {transaction.id}" for transaction in entry.transactions if not transaction.message]
    return Text("\n".join(line for line in (entry.message, *untitled) if line))

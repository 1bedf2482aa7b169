"""`log`, `diff`, `rollback` and `undrop`: the versions of a lakehouse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.cli.command import REFERENCES, Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.output import age_text, emit, grid
from trinitylake.lakehouse.history import CommittedTransaction, LogEntry

if TYPE_CHECKING:
    from trinitylake.lakehouse.object_rollback import ObjectRollback

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
def rollback(
    root: Root,
    version: Annotated[str, typer.Argument(help=f"The version to go back to: {REFERENCES}.")],
    objects: Annotated[
        list[str] | None,
        typer.Argument(help="Only these tables, views and namespaces, as they were called then.", show_default=False),
    ] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Go back to an older version, with all objects or some.

    It makes a new version; the history is kept.
    """
    lake = open_lakehouse(root, options)
    if objects:
        _emit_rolled_back(lake.rollback(version, objects=objects, message=message, author=author), objects, as_json)
        return
    target = lake.at(version).version
    new_version = lake.rollback(target, message=message, author=author)
    text = Text(f"version {new_version} has the content of version {target}")
    emit({"version": new_version, "rolled_back_to": target}, text, as_json)


@command
def undrop(
    root: Root,
    identifier: Annotated[str, typer.Argument(help="The table, view or namespace, as it was called then.")],
    at: Annotated[str, typer.Option("--at", metavar="VERSION", help=f"A version that has it: {REFERENCES}.")],
    to: Annotated[
        str | None, typer.Option("--to", help="Another name; a copy if the object exists under its own.")
    ] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Bring dropped objects back as an older version has them."""
    objects = [identifier] if to is None else {identifier: to}
    done = open_lakehouse(root, options).rollback(at, objects=objects, message=message, author=author)
    _emit_rolled_back(done, [identifier], as_json)


def _emit_rolled_back(done: ObjectRollback, objects: Sequence[str], as_json: bool) -> None:
    if done.names:
        text = Text(f"version {done.version} has as of version {done.as_of}: {', '.join(done.names)}")
    else:
        text = Text(f"nothing to do: {', '.join(objects)} are as version {done.as_of} has them")
    emit(asdict(done), text, as_json)


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

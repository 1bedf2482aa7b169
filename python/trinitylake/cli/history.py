"""`log`, `diff`, `changes`, `history`, `rollback`, `undrop` and `tag`: versions of a lakehouse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.cli.app import app
from trinitylake.cli.command import REFERENCES, At, Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.completion import object_names
from trinitylake.cli.output import age_text, emit, grid
from trinitylake.cli.plain_values import PlainGroup
from trinitylake.cli.rows import print_changed_rows
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.history import CommittedTransaction, LogEntry

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.object_history import ObjectChange
    from trinitylake.lakehouse.object_rollback import ObjectRollback

_ACTION_STYLES = {"created": "green", "restored": "green", "dropped": "red"}
SIGN_STYLES = {"+": "green", "-": "red", "~": "yellow"}
#: At most so many versions are described below a difference.
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
    before: Annotated[str, typer.Argument(help=f"A version: {REFERENCES}.")],
    after: Annotated[str | None, typer.Argument(help="A version; default: the latest.")] = None,
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="TABLE", help="Print the rows of this table that differ."),
    ] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the differences between two versions.

    + added, - removed, ~ changed.
    """
    lake = open_lakehouse(root, options)
    if rows is not None:
        print_changed_rows([("", lake.at(after).table(rows).changes(before, after, net=True))], as_json)
        return
    difference = lake.diff(lake.at(before).version, None if after is None else lake.at(after).version)
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
    version: Annotated[str, typer.Argument(help=f"The version to restore: {REFERENCES}.")],
    objects: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these tables, views and namespaces, by their names in that version.", show_default=False
        ),
    ] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Restore an older version, all objects or some.

    Creates a new version; the history is kept.
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
    identifier: Annotated[str, typer.Argument(help="Table, view or namespace, by its name in that version.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="VERSION",
            help=f"A version that contains it: {REFERENCES}; default: the last one.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="New name; a copy if the object still exists.")] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Restore a dropped object from an older version, by default as it was when it was dropped."""
    lake = open_lakehouse(root, options)
    objects = [identifier] if to is None else {identifier: to}
    version = at if at is not None else _last_version_with(lake, identifier, to)
    done = lake.rollback(version, objects=objects, message=message, author=author)
    _emit_rolled_back(done, [identifier], as_json)


def _last_version_with(lake: Lakehouse, identifier: str, to: str | None) -> int:
    """The last version that has an object. Raises `InvalidArgument` if that is the latest one, unless for a copy."""
    latest = lake.at()
    if latest._kind(identifier) is None:
        [newest] = lake.log(1, of=identifier)
        if newest.action != "dropped":
            raise InvalidArgument(f"{identifier} was not dropped: its name is {newest.name} now")
        return newest.version - 1
    if to is None:
        raise InvalidArgument(
            f"{identifier} exists: `rollback VERSION {identifier}` restores an older state, and --to makes a copy"
        )
    return latest.version


@command
def changes(
    root: Root,
    since: Annotated[str, typer.Argument(help=f"The last version that is already known: {REFERENCES}.")],
    rows: Annotated[bool, typer.Option("--rows", help="Print the rows that changed in each table.")] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print what each transaction changed since a version.

    Oldest first.
    """
    lake = open_lakehouse(root, options)
    if rows:
        entries = lake.changes(since, rows=True)
        tables = (table for entry in entries for table in entry.rows)
        print_changed_rows(((table.name or table.former_name or "", table.read()) for table in tables), as_json)
        return
    feed = list(lake.changes(since))
    picture = grid("version", "what happened", "changes", numbers=["version"])
    for one in feed:
        picture.add_row(str(one.version), transaction_text(one.transaction), Text(str(one.diff)))
    emit([asdict(one) for one in feed], picture if feed else Text("no change", "dim"), as_json)


@command
def history(
    root: Root,
    identifier: Annotated[
        str,
        typer.Argument(
            help="Table, view or namespace, by its current or last name.",
            autocompletion=object_names("table", "view", "namespace"),
        ),
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Newest changes to print; 0 prints all.")] = 20,
    before: Annotated[int | None, typer.Option("--before", help="Only versions before this one.")] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the versions that changed one object.

    Newest first, also under former names.
    """
    changes = open_lakehouse(root, options).log(limit or None, before=before, of=identifier)
    emit([asdict(change) for change in changes], _history_grid(changes), as_json)


tag = typer.Typer(cls=PlainGroup, no_args_is_help=True, help="Tags, which are named versions: create, drop, list.")
app.add_typer(tag, name="tag")

Name = Annotated[str, typer.Argument(help="Name of the tag, from A-Z a-z 0-9 . _ -")]


def create(
    root: Root,
    name: Name,
    at: At = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Tag a version, which is kept until the tag is dropped."""
    made = open_lakehouse(root, options).tags.create(name, at, message=message, author=author)
    emit(asdict(made), Text(f"tag {made.name} is version {made.version}"), as_json)


def drop(
    root: Root, name: Name, message: Message = "", author: Author = "", options: Options = None, as_json: Json = False
) -> None:
    """Drop a tag; its version then expires like any other."""
    open_lakehouse(root, options).tags.drop(name, message=message, author=author)
    emit({"name": name, "dropped": True}, Text(f"tag {name} was dropped"), as_json)


def ls(root: Root, options: Options = None, as_json: Json = False) -> None:
    """List the tags."""
    tags = open_lakehouse(root, options).tags.list()
    picture = grid("name", "version", "created", numbers=["version"])
    for one in tags:
        picture.add_row(Text(one.name), str(one.version), age_text(one.created_at))
    emit([asdict(one) for one in tags], picture if tags else Text("no tags", "dim"), as_json)


for function in (create, drop, ls):
    command(function, tag)


def _emit_rolled_back(done: ObjectRollback, objects: Sequence[str], as_json: bool) -> None:
    if done.names:
        text = Text(f"version {done.version} restores from version {done.as_of}: {', '.join(done.names)}")
    else:
        text = Text(f"nothing to do: {', '.join(objects)} did not change since version {done.as_of}")
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
        return Text.assemble(
            (f"rollback, was {entry.rollback_from}\n", "yellow"), transaction_text(entry.transactions[0])
        )
    if entry.problem:
        return Text(f"cannot be read: {entry.problem}", "red")
    if entry.version == 0:
        return Text("created", "dim")
    return Text("\n").join(transaction_text(transaction) for transaction in entry.transactions)


def transaction_text(transaction: CommittedTransaction | None) -> Text:
    """Message and summary of a transaction."""
    if transaction is None:
        return Text()
    summary = transaction.summary or ("" if transaction.message else f"transaction {transaction.id}")
    lines = [Text(transaction.message)] if transaction.message else []
    return Text("\n").join([*lines, *([Text(summary, "dim")] if summary else [])])


def _history_grid(changes: Sequence[ObjectChange]) -> Grid:
    picture = grid("version", "created", "what", "name", "author", "what happened", numbers=["version"])
    for change in changes:
        log = change.transaction
        what = change.action if change.rollback_from is None else f"{change.action} by a rollback"
        name = change.name if change.former_name is None else f"{change.former_name} → {change.name}"
        picture.add_row(
            Text(str(change.version), "bold cyan"),
            age_text(change.created_at),
            Text(what, _ACTION_STYLES.get(change.action, "yellow")),
            Text(name),
            Text(log.author if log is not None else ""),
            transaction_text(log),
        )
    return picture

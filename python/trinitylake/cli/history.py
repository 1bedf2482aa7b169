"""`log`, `diff`, `changes`, `rollback`, `undrop` and `tag`: versions of a lakehouse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.cli.command import REFERENCES, At, DryRun, Json, Lake, LogInfo, Output, command, group, object_names
from trinitylake.cli.output import age_text, counted, grid
from trinitylake.cli.rows import print_changed_rows
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.lakehouse.history import CommittedTransaction, LogEntry

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.object_history import ObjectChange
    from trinitylake.lakehouse.object_rollback import ObjectRollback

_ACTION_STYLES = {"created": "green", "restored": "green", "dropped": "red"}
SIGN_STYLES = {"+": "green", "-": "red", "~": "yellow"}
#: Maximum number of versions that are described below a difference.
SUMMARIES_MAX = 20
#: Maximum number of objects that are listed after a rollback.
CHANGES_MAX = 20


@command
def log(
    lake: Lake,
    limit: int = typer.Option(20, "--limit", "-n", min=0, help="Newest versions to print; 0 prints all."),
    since: str | None = typer.Option(None, "--since", help=f"Only versions after this one: {REFERENCES}."),
    until: str | None = typer.Option(None, "--until", help="Only versions up to this one."),
    before: int | None = typer.Option(None, "--before", help="Only versions before this number."),
    by: str = typer.Option("", "--author", help="Only versions of authors whose name contains this."),
    grep: str = typer.Option("", "--grep", help="Only versions whose message or summary contains this."),
    table: str | None = typer.Option(
        None,
        "--table",
        help="Only changes of this table, view or namespace, also under former names.",
        autocompletion=object_names("table", "view", "namespace"),
    ),
) -> Output:
    """Print the newest versions, newest first."""
    chosen: dict[str, Any] = {"before": before, "since": since, "until": until, "author": by, "grep": grep}
    if table is not None:
        changes = lake.log(limit or None, of=table, **chosen)
        return [asdict(change) for change in changes], _history_grid(changes)
    entries = lake.log(limit or None, of=None, **chosen)
    nothing = Text("no version matches", "dim")
    return [asdict(entry) for entry in entries], log_picture(entries) if entries else nothing


@command
def diff(
    lake: Lake,
    before: str = typer.Argument(..., help=f"A version: {REFERENCES}."),
    after: str | None = typer.Argument(None, help="A version; default: the latest."),
    rows: str | None = typer.Option(None, "--rows", metavar="TABLE", help="Print the rows of this table that differ."),
    as_json: Json = False,
) -> Output:
    """Print the differences between two versions.

    + added, - removed, ~ changed.
    """
    if rows is not None:
        print_changed_rows([("", lake.at(after).table(rows).changes(before, after, net=True))], as_json)
        return None
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
    return document, picture if difference else Text("no difference", "dim")


@command
def rollback(
    lake: Lake,
    log: LogInfo,
    version: str = typer.Argument(..., help=f"The version to restore: {REFERENCES}."),
    objects: list[str] | None = typer.Argument(
        None, help="Only these tables, views and namespaces, by their names in that version.", show_default=False
    ),
    dry_run: DryRun = False,
) -> Output:
    """Restore an older version, all objects or some.

    Creates a new version; the history is kept.
    """
    past, latest = lake.at(version), lake.version
    undone = _undone(lake, past.version, latest, objects or ())
    document: dict[str, Any] = {"version": None, "rolled_back_to": past.version, **undone}
    undoes = f"undoes {counted(undone['undone_versions'], 'version')}"
    if undone["undone_authors"]:
        undoes += f" by {', '.join(undone['undone_authors'])}"
    if objects:
        if missing := [name for name in objects if past._kind(name) is None]:
            raise ObjectNotFound(f"version {past.version} has no namespace, table or view {missing[0]}")
        text = Text(f"would restore {', '.join(objects)} from version {past.version}: {undoes}")
        if not dry_run:
            done = lake.rollback(past.version, objects=objects, **log)
            document |= asdict(done)
            text = _rolled_back_text(done, objects)
            text.append(f": {undoes}" if done.names else "")
        return document, text
    difference = lake.diff(latest, past.version)
    text = Text(f"would restore version {past.version}: {undoes}")
    if not dry_run:
        document["version"] = lake.rollback(past.version, **log)
        text = Text(f"version {document['version']} has the content of version {past.version}: {undoes}")
    lines = [text, *(Text(f"{sign} {change}", SIGN_STYLES[sign]) for sign, change in islice(difference, CHANGES_MAX))]
    if (others := len(list(difference)) - CHANGES_MAX) > 0:
        lines.append(Text(f"and {counted(others, 'other object')}, see diff {latest} {past.version}", "dim"))
    document["changes"] = [{"sign": sign, **change._asdict()} for sign, change in difference]
    return document, Text("\n").join(lines)


def _undone(lake: Lakehouse, target: int, latest: int, objects: Sequence[str]) -> dict[str, Any]:
    """The number of versions that a rollback to `target` undoes, and their authors, newest first."""
    entries: list[LogEntry | ObjectChange] = [
        change for name in objects for change in lake.log(None, of=name, since=target)
    ]
    if not objects and latest > target:
        entries = [*lake.log(latest - target, before=latest + 1)]
    authors = [one.author for entry in entries for one in entry.transactions if one.author]
    versions = {entry.version for entry in entries}
    return {"undone_versions": len(versions), "undone_authors": list(dict.fromkeys(authors))}


@command
def undrop(
    lake: Lake,
    log: LogInfo,
    identifier: str = typer.Argument(..., help="Table, view or namespace, by its name in that version."),
    at: str | None = typer.Option(
        None,
        "--at",
        metavar="VERSION",
        help=f"A version that contains it: {REFERENCES}; default: the last one.",
        show_default=False,
    ),
    to: str | None = typer.Option(
        None, "--to", help="New name, if another object has the name now; or to copy an object."
    ),
) -> Output:
    """Restore a dropped object from an older version, by default as it was when it was dropped."""
    # With a new name, also if it is the old one, an object that has another name now is copied.
    objects = {identifier: identifier if to is None else to}
    version = at if at is not None else _last_version_with(lake, identifier, to)
    done = lake.rollback(version, objects=objects, **log)
    return asdict(done), _rolled_back_text(done, [identifier])


def _last_version_with(lake: Lakehouse, identifier: str, to: str | None) -> int:
    """The last version with the dropped object, also if another object has its name now.

    If no object with this name was dropped, it is the latest version, from which `undrop --to` makes a copy.

    Raises `InvalidArgument` if an object with this name exists and `to` is None, or if the object was renamed.
    """
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
    from trinitylake.lakehouse.object_history import version_of_former_object

    former = version_of_former_object(lake._core, identifier)
    return latest.version if former is None else former


@command
def changes(
    lake: Lake,
    since: str = typer.Argument(..., help=f"The last version that is already known: {REFERENCES}."),
    rows: bool = typer.Option(False, "--rows", help="Print the rows that changed in each table."),
    as_json: Json = False,
) -> Output:
    """Print what each transaction changed since a version.

    Oldest first.
    """
    if rows:
        entries = lake.changes(since, rows=True)
        tables = (table for entry in entries for table in entry.rows)
        print_changed_rows(((table.name or table.former_name or "", table.read()) for table in tables), as_json)
        return None
    feed = list(lake.changes(since))
    picture = grid("version", "what happened", "changes", numbers=["version"])
    for one in feed:
        picture.add_row(str(one.version), transaction_text(one.transaction), Text(str(one.diff)))
    return [asdict(one) for one in feed], picture if feed else Text("no change", "dim")


Name = Annotated[str, typer.Argument(help="Name of the tag, from A-Z a-z 0-9 . _ -")]


def create(lake: Lake, log: LogInfo, name: Name, at: At = None) -> Output:
    """Tag a version, which is kept until the tag is dropped."""
    made = lake.tags.create(name, at, **log)
    return asdict(made), Text(f"tag {made.name} is version {made.version}")


def drop(lake: Lake, log: LogInfo, name: Name) -> Output:
    """Drop a tag; its version then expires like any other."""
    lake.tags.drop(name, **log)
    return {"name": name, "dropped": True}, Text(f"tag {name} was dropped")


def ls(lake: Lake) -> Output:
    """List the tags."""
    tags = lake.tags.list()
    picture = grid("name", "version", "created", numbers=["version"])
    for one in tags:
        picture.add_row(Text(one.name), str(one.version), age_text(one.created_at))
    return [asdict(one) for one in tags], picture if tags else Text("no tags", "dim")


group("tag", create, drop, ls)


def _rolled_back_text(done: ObjectRollback, objects: Sequence[str]) -> Text:
    if done.names:
        return Text(f"version {done.version} restores from version {done.as_of}: {', '.join(done.names)}")
    return Text(f"nothing to do: {', '.join(objects)} did not change since version {done.as_of}")


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

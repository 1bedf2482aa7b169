"""`history` and `undrop`: one object over time, and bringing it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.completion import object_names
from trinitylake.cli.history import told
from trinitylake.cli.output import age_text, emit, grid
from trinitylake.lakehouse.object_history import ObjectChange

_STYLES = {"created": "green", "restored": "green", "dropped": "red"}


@command
def history(
    root: Root,
    identifier: Annotated[
        str,
        typer.Argument(
            help="A table, view or namespace, as it is called now or was last.",
            autocompletion=object_names("table", "view", "namespace"),
        ),
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Newest changes to print; 0 prints all.")] = 20,
    before: Annotated[int | None, typer.Option("--before", help="Only versions before this one.")] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the versions that changed one object.

    The newest first, through renames.
    """
    changes = open_lakehouse(root, options).history(identifier, limit or None, before=before)
    emit([asdict(change) for change in changes], _picture(changes), as_json)


@command
def undrop(
    root: Root,
    identifier: Annotated[str, typer.Argument(help="The table, view or namespace, as it was called then.")],
    version: Annotated[int | None, typer.Option("--version", help="The version that has it as it should be.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", help="A time in ISO 8601 (local without a zone).")
    ] = None,
    snapshot: Annotated[str | None, typer.Option("--snapshot", help="The name of a snapshot, instead.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="Another name; a copy if the object is still there under its own.")
    ] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the log.")] = "",
    author: Annotated[str, typer.Option("--author", help="Who, for the log.")] = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Bring one object back as an earlier version has it.

    Whether it was dropped or changed since.
    """
    lake = open_lakehouse(root, options)
    done = lake.restore(
        identifier, version=version, timestamp=timestamp, snapshot=snapshot, to=to, message=message, author=author
    )
    if done.names:
        text = Text(f"version {done.version} has as of version {done.as_of}: {', '.join(done.names)}")
    else:
        text = Text(f"nothing to do: {identifier} is as version {done.as_of} has it")
    emit(asdict(done), text, as_json)


def _picture(changes: Sequence[ObjectChange]) -> Grid:
    picture = grid("version", "created", "what", "name", "author", "what happened", numbers=["version"])
    for change in changes:
        log = change.transaction
        what = change.action if change.rollback_from is None else f"{change.action} by a rollback"
        name = change.name if change.former_name is None else f"{change.former_name} → {change.name}"
        picture.add_row(
            Text(str(change.version), "bold cyan"),
            age_text(change.created_at),
            Text(what, _STYLES.get(change.action, "yellow")),
            Text(name),
            Text(log.author if log is not None else ""),
            told(log),
        )
    return picture

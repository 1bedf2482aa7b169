"""`history`: the versions that changed one object."""

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
    changes = open_lakehouse(root, options).log(limit or None, before=before, of=identifier)
    emit([asdict(change) for change in changes], _picture(changes), as_json)


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

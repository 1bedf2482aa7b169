"""`snapshot create|drop|ls`: versions with names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import Author, Json, Message, Options, Root, app, command, open_lakehouse
from trinitylake.cli.output import age_text, emit, grid
from trinitylake.cli.plain_values import PlainGroup

snapshot = typer.Typer(
    cls=PlainGroup, no_args_is_help=True, help="Versions with names: give one, take it back, list them."
)
app.add_typer(snapshot, name="snapshot")

Name = Annotated[str, typer.Argument(help="The name: of A-Z a-z 0-9 . _ -")]


def create(
    root: Root,
    name: Name,
    version: Annotated[int | None, typer.Option("--version", help="A version; the latest without it.")] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Give a version a name, which keeps it until the name is dropped."""
    made = open_lakehouse(root, options).snapshot(name, version=version, message=message, author=author)
    emit(asdict(made), Text(f"snapshot {made.name} is version {made.version}"), as_json)


def drop(
    root: Root, name: Name, message: Message = "", author: Author = "", options: Options = None, as_json: Json = False
) -> None:
    """Take a name back; its version expires as any other."""
    open_lakehouse(root, options).drop_snapshot(name, message=message, author=author)
    emit({"name": name, "dropped": True}, Text(f"snapshot {name} was dropped"), as_json)


def ls(root: Root, options: Options = None, as_json: Json = False) -> None:
    """Print the versions that have names."""
    named = open_lakehouse(root, options).snapshots()
    picture = grid("name", "version", "created", numbers=["version"])
    for one in named:
        picture.add_row(Text(one.name), str(one.version), age_text(one.created_at))
    emit([asdict(one) for one in named], picture if named else Text("no snapshot", "dim"), as_json)


for function in (create, drop, ls):
    command(function, snapshot)

"""`tag create|drop|ls`: named versions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import At, Author, Json, Message, Options, Root, app, command, open_lakehouse
from trinitylake.cli.output import age_text, emit, grid
from trinitylake.cli.plain_values import PlainGroup

tag = typer.Typer(cls=PlainGroup, no_args_is_help=True, help="Tags, which are named versions: create, drop, list.")
app.add_typer(tag, name="tag")

Name = Annotated[str, typer.Argument(help="The name: of A-Z a-z 0-9 . _ -")]


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

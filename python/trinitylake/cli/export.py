"""`export` and `restore`: copies of a lakehouse at another root."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import filesize
from rich.text import Text

import trinitylake
from trinitylake.cli.command import (
    At,
    Json,
    Options,
    Root,
    command,
    open_lakehouse,
    secret_key_values,
    storage_options,
)
from trinitylake.cli.output import emit
from trinitylake.cli.progress import progress
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.export import Mode

_Mode = Annotated[str, typer.Option("--mode", help='"minimal": one version; "full": all versions up to it.')]


@command
def export(
    root: Root,
    target: Annotated[str, typer.Argument(help="Where to: an empty place, or an earlier export of this lakehouse.")],
    at: At = None,
    mode: _Mode = "minimal",
    namespaces: Annotated[
        list[str] | None, typer.Option("--namespace", help="Only this namespace, and all in it; may be repeated.")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table or view; may be repeated.")
    ] = None,
    target_options: Annotated[
        list[str] | None,
        typer.Option("--target-option", metavar="KEY=VALUE", help="As --option, for the target."),
    ] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the log there.")] = "",
    author: Annotated[str, typer.Option("--author", help="Who, for the log there.")] = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Copy the lakehouse to another root.

    Again to the same one, only what changed since is copied.
    """
    lake = open_lakehouse(root, options)
    with progress("objects") as on_progress:
        done = lake.export(
            target,
            at,
            mode=_mode(mode),
            namespaces=namespaces or (),
            tables=tables or (),
            storage_options=secret_key_values("--target-option", target_options),
            message=message,
            author=author,
            progress=on_progress,
        )
    size = filesize.decimal(done.size_bytes)
    text = Text(f"{done.root} is at version {done.version}, which is version {done.source_version} of {lake.uri}")
    text.append(f"\n{done.files} files written, {size}; {done.present} were there", "dim")
    emit(asdict(done), text, as_json)


@command
def restore(
    root: Root,
    source: Annotated[str, typer.Argument(help="A backup that export made, or any other lakehouse.")],
    at: At = None,
    mode: _Mode = "full",
    source_options: Annotated[
        list[str] | None,
        typer.Option("--source-option", metavar="KEY=VALUE", help="As --option, for the backup."),
    ] = None,
    author: Annotated[str, typer.Option("--author", help="Who, for the log.")] = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Make a lakehouse at --root out of a backup.

    There must be none at --root.
    """
    with progress("objects") as on_progress:
        lake = trinitylake.restore(
            source,
            root,
            at,
            mode=_mode(mode),
            source_storage_options=secret_key_values("--source-option", source_options),
            storage_options=storage_options(options),
            author=author,
            progress=on_progress,
        )
    emit({"uri": lake.uri, "version": lake.version}, Text(f"{lake.uri} is at version {lake.version}"), as_json)


def _mode(text: str) -> Mode:
    if text == "minimal":
        return "minimal"
    if text == "full":
        return "full"
    raise InvalidArgument(f"--mode is minimal or full, not {text!r}")

"""`expire`: old versions go."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import filesize
from rich.text import Text

from trinitylake.cli.command import Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.output import emit
from trinitylake.lakehouse.history import Expired


@command
def expire(
    root: Root,
    before: Annotated[
        str | None,
        typer.Option("--before", help="All older than this version, date or time (ISO 8601, UTC without a zone)."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help='All older than this: "7 days", "36 h".', metavar="DURATION")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="At least so many versions stay.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Delete old versions: those that retention no longer keeps, or those that the options say.

    Snapshots stay, and so does what open saved transactions rest on. What only old versions reached is for `vacuum`.
    """
    oldest = int(before) if before is not None and before.isdecimal() else before
    gone = open_lakehouse(root, options).maintenance.expire(
        before=oldest, older_than=older_than, keep=keep, dry_run=dry_run, message=message, author=author
    )
    document = {
        "versions": list(gone),
        "size_bytes": gone.size_bytes,
        "oldest": gone.oldest,
        "kept_size_bytes": gone.kept_size_bytes,
        "dry_run": dry_run,
    }
    emit(document, Text(told(gone, dry_run)), as_json)


def told(gone: Expired, dry_run: bool) -> str:
    """What expired, in words."""
    if not gone:
        return f"nothing to expire: the oldest version is {gone.oldest}"
    span = f"version {gone[0]}" if len(gone) == 1 else f"{len(gone)} versions from {gone[0]} to {gone[-1]}"
    before, after = filesize.decimal(gone.size_bytes + gone.kept_size_bytes), filesize.decimal(gone.kept_size_bytes)
    verb = "would expire" if dry_run else "expired"
    return f"{span} {verb}; the oldest version is {gone.oldest}; root files before: {before}, after: {after}"

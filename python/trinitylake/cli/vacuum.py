"""`vacuum`: files that no version reaches any more."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake.cli.command import Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.output import counted, emit, grid, time_text
from trinitylake.cli.progress import counting
from trinitylake.lakehouse.vacuum import Files, Vacuumed

#: Tables and unknown files that are printed.
_MOST = 20


@command
def vacuum(
    root: Root,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="DURATION", help='Younger files stay, by the clock of the store: "1 day" by default.'
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Delete files that nothing kept reaches any more.

    No kept version, snapshot or open transaction. `expire` lets versions go.
    """
    with counting("looking") as on_progress:
        done = open_lakehouse(root, options).maintenance.vacuum(
            grace=grace, dry_run=dry_run, progress=on_progress, message=message, author=author
        )
    emit(asdict(done), picture(done), as_json)


def picture(done: Vacuumed) -> RenderableType:
    """What was deleted and kept, for people."""
    verb = "would be deleted" if done.dry_run else "deleted"
    parts: list[RenderableType] = [Text(f"{_told(done.total_deleted)} {verb}, {_told(done.total_kept)} kept")]
    kinds = grid("kind", verb, "size", "kept", "size", numbers=[verb, "size", "kept"])
    for kind in dict.fromkeys([*done.deleted, *done.kept]):
        gone, kept = done.deleted.get(kind, Files(0, 0)), done.kept.get(kind, Files(0, 0))
        sizes = filesize.decimal(gone.size_bytes), filesize.decimal(kept.size_bytes)
        kinds.add_row(kind, str(gone.files), sizes[0], str(kept.files), sizes[1])
    parts.append(kinds)
    if done.deleted_by_table:
        tables = grid("table folder", verb, "size", numbers=[verb, "size"])
        largest = sorted(done.deleted_by_table.items(), key=lambda item: -item[1].size_bytes)
        for folder, count in largest[:_MOST]:
            tables.add_row(Text(folder), str(count.files), filesize.decimal(count.size_bytes))
        parts.append(tables)
    if done.young.files:
        parts.append(Text(f"{_told(done.young)} younger than {time_text(done.before)} {_stay(done.young)}", "dim"))
    if done.foreign.files:
        parts.append(Text(f"{_told(done.foreign)} of external or federated tables {_stay(done.foreign)}", "dim"))
    if done.unknown.files:
        shown = "\n  ".join(done.unknown_paths[:_MOST])
        parts.append(Text(f"{_told(done.unknown)}, unknown, {_stay(done.unknown)}:\n  {shown}", "yellow"))
    return Group(*parts)


def _stay(count: Files) -> str:
    return "stays" if count.files == 1 else "stay"


def _told(count: Files) -> str:
    return f"{counted(count.files, 'file')} ({filesize.decimal(count.size_bytes)})"

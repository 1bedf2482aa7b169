"""`compact`: the tree built anew, or small files of tables put together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import filesize
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.output import emit, grid
from trinitylake.cli.progress import progress


@command
def compact(
    root: Root,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables whose small data files are put together; the tree without any.")
    ] = None,
    sort_by: Annotated[
        str | None, typer.Option("--sort-by", help="Of tables: write all files anew, sorted by this column.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Of the tree: even if there is little to gain.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of the tree: say how many nodes there would be, and do nothing.")
    ] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Build the tree of the lakehouse anew, or put small files of tables together. Older versions stay as they are."""
    lake = open_lakehouse(root, options)
    if not tables:
        if sort_by is not None:
            raise typer.BadParameter("--sort-by is about tables, and none is named")
        done = lake.compact(force=force, dry_run=dry_run, message="compact")
        version = f"version {done.version}" if done.version is not None else "nothing done"
        text = (
            f"{version}: {done.nodes_before} nodes, {done.nodes_after} {'now' if done.version is not None else 'then'}"
        )
        emit(asdict(done), Text(text), as_json)
        return
    if dry_run or force:
        raise typer.BadParameter("--dry-run and --force are about the tree, not about tables")
    results = {}
    for name in tables:
        with progress(name) as on_progress:
            maintenance = lake.table(name).maintenance
            results[name] = maintenance.compact(sort_by=sort_by, progress=lambda *at, to=on_progress: to(*at))
    picture = grid("table", "files before", "after", "bytes before", "after")
    for name, result in results.items():
        sizes = (filesize.decimal(result.bytes_removed), filesize.decimal(result.bytes_added))
        picture.add_row(Text(name), str(result.files_removed), str(result.files_added), *sizes)
    emit({name: result._asdict() for name, result in results.items()}, picture, as_json)

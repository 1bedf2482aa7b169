"""`compact`: the tree built anew, or small files of tables put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize
from rich.table import Table
from rich.text import Text

from trinitylake.cli.command import Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.completion import object_names
from trinitylake.cli.output import counted, emit, grid
from trinitylake.cli.progress import progress
from trinitylake.lakehouse.tree_compaction import TreeCompaction

if TYPE_CHECKING:
    from trinitylake.tables.compaction import CompactResult


@command
def compact(
    root: Root,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables whose small data files are put together; the tree without any.",
            autocompletion=object_names("table"),
        ),
    ] = None,
    sort_by: Annotated[
        str | None, typer.Option("--sort-by", help="Of tables: write all files anew, sorted by this column.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Of the tree: even if there is little to gain.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many nodes or files there would be, and do nothing.")
    ] = False,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Build the tree anew, or put small files of tables together.

    Older versions stay as they are.
    """
    lake = open_lakehouse(root, options)
    if not tables:
        if sort_by is not None:
            raise typer.BadParameter("--sort-by is about tables, and none is named")
        done = lake.maintenance.compact(force=force, dry_run=dry_run, message=message or "compact", author=author)
        emit(asdict(done), tree_told(done), as_json)
        return
    if force:
        raise typer.BadParameter("--force is about the tree, not about tables")
    results = {}
    for name in tables:
        with progress(name) as on_progress:
            maintenance = lake.table(name).maintenance
            results[name] = maintenance.compact(
                sort_by=sort_by,
                dry_run=dry_run,
                progress=lambda *at, to=on_progress: to(*at),
                message=message,
                author=author,
            )
    emit({name: result._asdict() for name, result in results.items()}, tables_told(results), as_json)


def tree_told(done: TreeCompaction) -> Text:
    """What became of the tree, for people."""
    before = counted(done.nodes_before, "node")
    if done.version is None:
        return Text(f"the tree stays: {before}, where {done.nodes_after} would do", "dim")
    return Text(f"the tree anew, version {done.version}: {before}, {done.nodes_after} now")


def tables_told(results: Mapping[str, CompactResult], before: str = "files before", after: str = "after") -> Table:
    """What became of tables, for people. How large files will be is not known before they are written."""
    headers = ["size before", *(["size after"] if any(one.bytes_added for one in results.values()) else [])]
    picture = grid("table", before, after, *headers, numbers=[before, after, *headers])
    for name, result in results.items():
        sizes = [filesize.decimal(result.bytes_removed), filesize.decimal(result.bytes_added)]
        picture.add_row(Text(name), str(result.files_removed), str(result.files_added), *sizes[: len(headers)])
    return picture

"""`verify`: whether all is there that a version consists of, and can be read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, command, storage_options
from trinitylake.cli.exit_codes import CORRUPT
from trinitylake.cli.output import counted, emit, grid
from trinitylake.cli.progress import progress
from trinitylake.lakehouse.verification import Verification
from trinitylake.lakehouse.verification import verify as verified


@command
def verify(
    root: Root,
    version: Annotated[int | None, typer.Option("--version", help="A version; the latest without it.")] = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files", help="Look for the files of managed tables, too: metadata, manifests, data files, statistics."
        ),
    ] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Read and check every node and every definition of a version. Ends with 5 if anything is wrong."""
    with progress("verifying") as on_progress:
        found = verified(
            root, version=version, files=files, progress=on_progress, storage_options=storage_options(options)
        )
    emit(asdict(found), _picture(found, files), as_json)
    if found.problems:
        raise typer.Exit(CORRUPT)


def _picture(found: Verification, files: bool) -> RenderableType:
    definitions = counted(found.definitions, "definition")
    read = f"version {found.version}: {counted(found.nodes, 'node')} and {definitions} read"
    looked_for = f", {counted(found.files, 'file')} of tables looked for" if files else ""
    summary = Text(f"{read}{looked_for}, {counted(len(found.problems), 'problem')}")
    table = grid("file", "problem")
    for problem in found.problems:
        table.add_row(Text(problem.path), Text(problem.message))
    return Group(summary, table) if found.problems else summary

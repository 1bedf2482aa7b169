"""`relocate`: a lakehouse that was moved or copied."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.output import counted, emit
from trinitylake.cli.progress import progress


@command
def relocate(
    root: Root,
    rewrite: Annotated[
        bool, typer.Option(help="Write the files of tables anew, so that other engines find what they name.")
    ] = True,
    former: Annotated[
        list[str] | None,
        typer.Option(help="Where a lakehouse lay that has never recorded its root; may be repeated."),
    ] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the log.")] = "",
    author: Annotated[str, typer.Option("--author", help="Who, for the log.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read everything and write nothing.")] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Record where the lakehouse lies, after it was moved or copied, and bring its tables along in one version."""
    lake = open_lakehouse(root, options)
    with progress("tables") as on_progress:
        done = lake.maintenance.relocate(
            rewrite=rewrite,
            former=former or (),
            dry_run=dry_run,
            message=message,
            author=author,
            progress=on_progress,
        )
    files = f"{counted(len(done.tables), 'table')}, {counted(done.files, 'file')}"
    if done.version is not None:
        text = Text(f"version {done.version} lies at {done.root}: {files} written anew")
    elif dry_run:
        text = Text(f"would record {done.root}, and write anew {files}")
    else:
        text = Text(f"nothing to do: the lakehouse lies at {done.root}, and so do its tables")
    for table in done.skipped:
        text.append(f"\nleft as it is: {table.name}: {table.reason}", "yellow")
    document = asdict(done) | {"skipped": [one._asdict() for one in done.skipped]}
    emit(document, text, as_json)

"""`export`, `restore` and `relocate`: a lakehouse at another root."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import filesize
from rich.text import Text

import trinitylake
from trinitylake.cli.command import (
    At,
    Author,
    DryRun,
    Json,
    Message,
    Options,
    Root,
    command,
    open_lakehouse,
    secret_key_values,
    storage_options,
)
from trinitylake.cli.output import counted, emit, progress
from trinitylake.lakehouse.export import Mode

_MODES = '"full" copies all versions up to the exported one, "minimal" only that one'
_Mode = Annotated[Mode, typer.Option("--mode", help=f"{_MODES}.")]


@command
def export(
    root: Root,
    target: Annotated[str, typer.Argument(help="An empty root, or an earlier export of this lakehouse.")],
    at: At = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode",
            help=f"{_MODES}. Default: that of the last export; else full, or minimal for some objects.",
            show_default=False,
        ),
    ] = None,
    namespaces: Annotated[
        list[str] | None, typer.Option("--namespace", help="Only this namespace and its objects, repeatable.")
    ] = None,
    tables: Annotated[list[str] | None, typer.Option("--table", help="Only this table or view, repeatable.")] = None,
    target_options: Annotated[
        list[str] | None, typer.Option("--target-option", metavar="KEY=VALUE", help="As --option, for the target.")
    ] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Copy the lakehouse to another root.

    An export to the same root again copies only changes.
    """
    lake = open_lakehouse(root, options)
    with progress("objects") as on_progress:
        done = lake.export(
            target,
            at,
            mode=mode,
            namespaces=namespaces or (),
            tables=tables or (),
            storage_options=secret_key_values("--target-option", target_options),
            message=message,
            author=author,
            progress=on_progress,
        )
    size = filesize.decimal(done.size_bytes)
    history = (
        f"with history: versions {done.history_since} to {done.version}"
        if done.history_since is not None
        else f"without history: only version {done.source_version}"
    )
    text = Text(f"copied {history}\n", "bold")
    text.append(f"{done.root} is at version {done.version}, which is version {done.source_version} of {lake.uri}", "")
    text.append(f"\n{done.files} files written, {size}; {done.present} existed", "dim")
    emit(asdict(done), text, as_json)


@command
def restore(
    root: Root,
    source: Annotated[str, typer.Argument(help="A backup from export, or any other lakehouse.")],
    at: At = None,
    mode: _Mode = "full",
    source_options: Annotated[
        list[str] | None, typer.Option("--source-option", metavar="KEY=VALUE", help="As --option, for the backup.")
    ] = None,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Create a lakehouse at --root from a backup.

    No lakehouse may exist at --root.
    """
    with progress("objects") as on_progress:
        lake = trinitylake.restore(
            source,
            root,
            at,
            mode=mode,
            source_storage_options=secret_key_values("--source-option", source_options),
            storage_options=storage_options(options),
            message=message,
            author=author,
            progress=on_progress,
        )
    emit({"uri": lake.uri, "version": lake.version}, Text(f"{lake.uri} is at version {lake.version}"), as_json)


@command
def relocate(
    root: Root,
    rewrite: Annotated[
        bool, typer.Option(help="Rewrite metadata of tables, so that other engines find their files.")
    ] = True,
    former: Annotated[
        list[str] | None, typer.Option(help="Former root of a lakehouse that never recorded its root, repeatable.")
    ] = None,
    message: Message = "",
    author: Author = "",
    dry_run: DryRun = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Record the new root of a lakehouse that was moved or copied.

    Locations in the metadata of its tables are rewritten in one version.
    """
    lake = open_lakehouse(root, options)
    with progress("tables") as on_progress:
        done = lake.maintenance.relocate(
            rewrite=rewrite, former=former or (), dry_run=dry_run, message=message, author=author, progress=on_progress
        )
    files = f"{counted(len(done.tables), 'table')}, {counted(done.files, 'file')}"
    if done.version is not None:
        text = Text(f"version {done.version} records {done.root}: {files} rewritten")
    elif dry_run:
        text = Text(f"would record {done.root} and rewrite {files}")
    else:
        text = Text(f"nothing to do: the lakehouse and its tables already record {done.root}")
    for table in done.skipped:
        text.append(f"\nskipped {table.name}: {table.reason}", "yellow")
    document = asdict(done) | {"skipped": [one._asdict() for one in done.skipped]}
    emit(document, text, as_json)

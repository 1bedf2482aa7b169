"""`export`, `restore`, `relocate` and `import`: copies of lakehouses and catalogs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import filesize
from rich.text import Text

import trinitylake
from trinitylake.cli.command import (
    At,
    DryRun,
    Lake,
    LogInfo,
    Options,
    Output,
    Root,
    command,
    open_lakehouse,
    secret_key_values,
    storage_options,
)
from trinitylake.cli.output import counted, progress
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.export import Mode

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_MODES = '"full" copies all versions up to the exported one, "minimal" only that one'
_Mode = Annotated[Mode, typer.Option("--mode", help=f"{_MODES}.")]


@command
def export(
    root: Root,
    log: LogInfo,
    target: str = typer.Argument(..., help="An empty root, or an earlier export of this lakehouse."),
    at: At = None,
    mode: Mode | None = typer.Option(
        None,
        "--mode",
        help=f"{_MODES}. Default: that of the last export; else full, or minimal for some objects.",
        show_default=False,
    ),
    namespaces: list[str] | None = typer.Option(
        None, "--namespace", help="Only this namespace and its objects, repeatable."
    ),
    tables: list[str] | None = typer.Option(None, "--table", help="Only this table or view, repeatable."),
    target_options: list[str] | None = typer.Option(
        None, "--target-option", metavar="KEY=VALUE", help="As --option, for the target."
    ),
    options: Options = None,
) -> Output:
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
            **log,
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
    return asdict(done), text


@command
def restore(
    root: Root,
    log: LogInfo,
    source: str = typer.Argument(..., help="A backup from export, or any other lakehouse."),
    at: At = None,
    mode: _Mode = "full",
    source_options: list[str] | None = typer.Option(
        None, "--source-option", metavar="KEY=VALUE", help="As --option, for the backup."
    ),
    options: Options = None,
) -> Output:
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
            **log,
            progress=on_progress,
        )
    return {"uri": lake.uri, "version": lake.version}, Text(f"{lake.uri} is at version {lake.version}")


@command
def relocate(
    lake: Lake,
    log: LogInfo,
    rewrite: bool = typer.Option(True, help="Rewrite metadata of tables, so that other engines find their files."),
    former: list[str] | None = typer.Option(
        None, help="Former root of a lakehouse that never recorded its root, repeatable."
    ),
    dry_run: DryRun = False,
) -> Output:
    """Record the new root of a lakehouse that was moved or copied.

    Locations in the metadata of its tables are rewritten in one version.
    """
    with progress("tables") as on_progress:
        done = lake.maintenance.relocate(
            rewrite=rewrite, former=former or (), dry_run=dry_run, **log, progress=on_progress
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
    return document, text


@command
def import_(
    lake: Lake,
    log: LogInfo,
    catalog: str = typer.Argument(..., help="Name of the catalog in PyIceberg's configuration."),
    properties: list[str] | None = typer.Option(
        None,
        "--property",
        metavar="KEY=VALUE",
        help="Property of the catalog, repeatable. KEY=@FILE and KEY=env:NAME as for --option.",
    ),
    namespaces: list[str] | None = typer.Option(
        None, "--namespace", help="Only this namespace and its objects, repeatable."
    ),
    existing: Literal["fail", "skip", "replace"] = typer.Option("fail", help="What to do if a table or view exists."),
    dry_run: DryRun = False,
) -> Output:
    """Import the objects of another Iceberg catalog in one version.

    No file is copied. Tables below the root become managed, all others external and read-only.
    """
    with progress("reading") as on_progress:
        done = lake.import_catalog(
            _catalog(catalog, secret_key_values("--property", properties)),
            namespaces=namespaces or None,
            existing=existing,
            **log,
            dry_run=dry_run,
            progress=on_progress,
        )
    objects = (("namespace", done.namespaces), ("table", done.tables), ("view", done.views))
    imported = ", ".join(counted(len(names), kind) for kind, names in objects)
    skipped = f"; {len(done.skipped)} existed" if done.skipped else ""
    if done.version is not None:
        text = f"version {done.version} has {imported} of {catalog}{skipped}"
    else:
        text = f"{'would import ' if dry_run else ''}{imported}{skipped}"
    return asdict(done), Text(text)


def _catalog(name: str, properties: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except (ValueError, ImportError) as error:
        raise InvalidArgument(f"cannot open the catalog {name!r}: {error}") from error

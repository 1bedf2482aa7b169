"""`import`: namespaces, tables and views of another catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from trinitylake.cli.command import (
    Author,
    DryRun,
    Json,
    Message,
    Options,
    Root,
    command,
    open_lakehouse,
    secret_key_values,
)
from trinitylake.cli.output import counted, emit, progress
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@command
def import_(
    root: Root,
    catalog: Annotated[str, typer.Argument(help="Name of the catalog in PyIceberg's configuration.")],
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="KEY=VALUE",
            help="Property of the catalog, repeatable. KEY=@FILE and KEY=env:NAME as for --option.",
        ),
    ] = None,
    namespaces: Annotated[
        list[str] | None, typer.Option("--namespace", help="Only this namespace and its objects, repeatable.")
    ] = None,
    existing: Annotated[
        Literal["fail", "skip", "replace"], typer.Option(help="What to do if a table or view exists.")
    ] = "fail",
    message: Message = "",
    author: Author = "",
    dry_run: DryRun = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Import the objects of another Iceberg catalog in one version.

    No file is copied. Tables below the root become managed, all others external and read-only.
    """
    lake = open_lakehouse(root, options)
    with progress("reading") as on_progress:
        done = lake.import_catalog(
            _catalog(catalog, secret_key_values("--property", properties)),
            namespaces=namespaces or None,
            existing=existing,
            message=message,
            author=author,
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
    emit(asdict(done), Text(text), as_json)


def _catalog(name: str, properties: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except (ValueError, ImportError) as error:
        raise InvalidArgument(f"cannot open the catalog {name!r}: {error}") from error

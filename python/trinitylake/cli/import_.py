"""`import`: the namespaces, tables and views of another catalog, in one version."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse, secret_key_values
from trinitylake.cli.output import emit
from trinitylake.cli.progress import progress
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@command
def import_(
    root: Root,
    catalog: Annotated[str, typer.Argument(help="The catalog's name, as PyIceberg's configuration has it.")],
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="KEY=VALUE",
            help="A property of the catalog; may be repeated. KEY=@FILE and KEY=env:NAME as for --option.",
        ),
    ] = None,
    namespaces: Annotated[
        list[str] | None, typer.Option("--namespace", help="Only this one and what is in it; may be repeated.")
    ] = None,
    existing: Annotated[
        Literal["fail", "skip", "replace"], typer.Option(help="What becomes of tables and views that exist.")
    ] = "fail",
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the log.")] = "",
    author: Annotated[str, typer.Option("--author", help="Who, for the log.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read everything and commit nothing.")] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Import what another Iceberg catalog has, in one version.

    Its namespaces, tables and views.

    Nothing is copied: tables below the root become managed, all others external and read-only.
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
    counted = ", ".join(
        f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
        for kind, names in (("namespace", done.namespaces), ("table", done.tables), ("view", done.views))
    )
    skipped = f"; {len(done.skipped)} existed" if done.skipped else ""
    if done.version is not None:
        text = f"version {done.version} has {counted} of {catalog}{skipped}"
    else:
        text = f"{'would import ' if dry_run else ''}{counted}{skipped}"
    emit(asdict(done), Text(text), as_json)


def _catalog(name: str, properties: dict[str, str]) -> Catalog:
    """Raises `InvalidArgument` for a catalog that is not configured, or not well."""
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except (ValueError, ImportError) as error:
        raise InvalidArgument(f"cannot open the catalog {name!r}: {error}") from error

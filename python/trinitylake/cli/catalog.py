"""`create`, `ls` and `show`: a lakehouse and its objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import trinitylake
from trinitylake.cli.command import At, Lake, Options, Output, Root, command, key_values, object_names, storage_options
from trinitylake.cli.output import grid, pairs, time_text
from trinitylake.errors import ObjectNotFound
from trinitylake.lakehouse.settings import DEFAULTS, default_isolation

if TYPE_CHECKING:
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.lakehouse.view import View
    from trinitylake.tables.table import Table


@command
def create(
    root: Root,
    name: str = typer.Option("", help="Display name."),
    order: int = typer.Option(DEFAULTS["order"], help="Maximum number of children of a tree node."),
    node_file_max_size_bytes: int = typer.Option(
        DEFAULTS["node_file_max_size_bytes"], help="Target size of a node, uncompressed."
    ),
    properties: list[str] | None = typer.Option(None, "--property", metavar="KEY=VALUE", help="Property, repeatable."),
    exist_ok: bool = typer.Option(False, "--exist-ok", help="No error if the lakehouse exists."),
    options: Options = None,
) -> Output:
    """Create a lakehouse."""
    lake = trinitylake.create(
        root,
        name=name,
        properties=key_values(properties),
        exist_ok=exist_ok,
        storage_options=storage_options(options),
        order=order,
        node_file_max_size_bytes=node_file_max_size_bytes,
    )
    document = {"uri": lake.uri, "name": lake.name, "version": lake.version}
    return document, Text(f"{lake.uri} is at version {lake.version}")


@command
def ls(
    lake: Lake,
    namespace: str | None = typer.Argument(
        None, help="A namespace; default: list all namespaces.", autocompletion=object_names("namespace")
    ),
    recursive: bool = typer.Option(False, "--recursive", "-r", help="Also nested namespaces and all objects."),
    at: At = None,
) -> Output:
    """List namespaces, or the objects in one."""
    reader = lake.at(at)
    exists = namespace is not None and reader.exists(namespace)
    document: dict[str, list[str]] = {"namespaces": reader.namespaces(namespace), "tables": [], "views": []}
    if recursive:
        within = {*document["namespaces"], *([namespace] if exists else [])}
        for kind, names in (("tables", reader.tables()), ("views", reader.views())):
            document[kind] = [name for name in names if namespace is None or name.rpartition(".")[0] in within]
    elif exists:
        document["tables"], document["views"] = reader.tables(namespace), reader.views(namespace)
    table = grid("kind", "name")
    for kind, names in document.items():
        for name in names:
            table.add_row(Text(kind[:-1], "dim"), Text(name))
    return document, table if table.row_count else Text("no objects", "dim")


@command
def show(
    lake: Lake,
    identifier: str | None = typer.Argument(
        None,
        help="Table, view or namespace; default: the lakehouse.",
        autocompletion=object_names("table", "view", "namespace"),
    ),
    at: At = None,
) -> Output:
    """Describe the lakehouse, or a table, view or namespace."""
    version = lake.at(at)
    if identifier is not None:
        document, picture = _described(version, identifier)
    else:
        definition = version.definition
        document = {
            "uri": lake.uri,
            "name": definition.name,
            "version": version.version,
            "created_at": version.created_at,
            **{setting: getattr(definition, setting) for setting in DEFAULTS if setting != "default_isolation"},
            "default_isolation": default_isolation(definition),
            "properties": dict(definition.properties),
        }
        picture = pairs(document | {"created_at": time_text(version.created_at)})
    return document, picture


def _described(reader: Reader, identifier: str) -> tuple[dict[str, Any], RenderableType]:
    match reader._kind(identifier):
        case "table":
            return _describe_table(reader.table(identifier))
        case "view":
            return _describe_view(reader.view(identifier))
        case "namespace":
            found = reader.namespace(identifier)
            document = {"kind": "namespace", "name": found.name, "id": found.id, "properties": found.properties}
            return document, pairs(document)
    raise ObjectNotFound(f"no namespace, table or view has the name {identifier!r}")


def _describe_table(table: Table) -> tuple[dict[str, Any], RenderableType]:
    from trinitylake.iceberg_storage.snapshot_counts import (  # PyIceberg, which `ls` does not need
        count_in,
        live_rows,
        summary_of,
    )
    from trinitylake.tables.partitioning_and_sorting import partition_expressions

    iceberg = table.iceberg
    schema = table.schema
    snapshot = iceberg.current_snapshot()
    summary = summary_of(snapshot)
    columns = [
        {"name": column.name, "type": str(column.type), "nullable": column.nullable, "doc": column.doc}
        for column in schema.columns
    ]
    facts = {
        "kind": "table",
        "name": table.name,
        "id": table.id,
        "type": table.type,
        "location": table.location,
        "metadata_location": table.iceberg.metadata_location,
        "partitions": partition_expressions(iceberg.spec(), iceberg.schema()),
        "primary_key": table.primary_key,
        "properties": table.properties,
        "snapshots": len(iceberg.metadata.snapshots),
        "rows": live_rows(summary) if snapshot else 0,
        "data_files": count_in(summary, "total-data-files") if snapshot else 0,
        "size_bytes": count_in(summary, "total-files-size") if snapshot else 0,
    }
    picture = grid("column", "type", "", "doc")
    for column in schema.columns:
        picture.add_row(
            Text(column.name), Text(str(column.type)), "" if column.nullable else "not null", Text(column.doc)
        )
    return facts | {"columns": columns}, Group(pairs(facts), "", picture)


def _describe_view(view: View) -> tuple[dict[str, Any], RenderableType]:
    document = {
        "kind": "view",
        "name": view.name,
        "id": view.id,
        "representations": view.representations,
        "default_namespace": view.default_namespace,
        "properties": view.properties,
    }
    from rich.syntax import Syntax  # slow to import

    facts = {name: value for name, value in document.items() if name != "representations"}
    texts = [
        part
        for dialect, sql in view.representations.items()
        for part in ("", Text(dialect, "bold"), Syntax(sql, "sql"))
    ]
    return document, Group(pairs(facts), *texts)

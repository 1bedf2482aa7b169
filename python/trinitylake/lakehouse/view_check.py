"""Checks that the tables that views read exist, and that no view reads the catalog of a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinitylake.base.qualified_names import full_name
from trinitylake.errors import InvalidArgument, InvalidName
from trinitylake.iceberg_storage.view_names import is_transaction_catalog
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.view import View
from trinitylake.tables.queries.parsed_query import Parts, parsed
from trinitylake.tables.queries.running import planning


def problems_of_views(lake: LakehouseVersion) -> Iterator[tuple[str, str]]:
    """The full name of each view with a problem, and the problem.

    DuckDB parses the SQL; dialects that it cannot parse are skipped. Raises `InvalidArgument` if DuckDB is not
    installed.
    """
    if not (names := lake.views()):
        return
    with planning("the check of views") as connection:
        for name in names:
            view = lake.view(name)
            for message in dict.fromkeys(
                message for sql in view.representations.values() for message in _problems(lake, view, connection, sql)
            ):
                yield name, message


def _problems(lake: LakehouseVersion, view: View, connection: Any, sql: str) -> Iterator[str]:
    try:
        references = parsed(connection, sql, is_open=True).references
    except InvalidArgument:
        return
    for reference in references:
        shown = ".".join(part for part in reference.parts if part)
        if any(map(is_transaction_catalog, reference.parts[:2])):
            yield f"it reads {shown}, in the catalog of a transaction that has ended: create the view again"
        elif not _exists(lake, reference.parts, view.default_namespace or view.namespace):
            yield f"it reads {shown}, and there is no such table or view: create it, or drop the view"


def _exists(lake: LakehouseVersion, parts: Parts, default_namespace: str) -> bool:
    """Whether a table or view with this name exists.

    The first of three parts can be a namespace or an engine's name of a catalog. If it is not a namespace, the table
    can be in another catalog, so the answer is True.
    """
    catalog, schema, name = parts
    if catalog and _kind(lake, full_name(catalog, schema)) is None and _kind(lake, schema) is None:
        return True
    namespaces = [full_name(catalog, schema), schema] if catalog else [schema or default_namespace]
    return any(_kind(lake, full_name(namespace, name)) in ("table", "view") for namespace in namespaces)


def _kind(lake: LakehouseVersion, name: str) -> str | None:
    try:
        return lake._kind(name)
    except InvalidName:
        return None

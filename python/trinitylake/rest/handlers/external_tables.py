"""Requests for external and federated tables, which wait for another service within limits (`outbound.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pyiceberg.exceptions import NoSuchTableError

from trinitylake.definitions import MANAGED, METADATA_LOCATION, TableDef, parse_table_def
from trinitylake.iceberg.namespaces import object_name
from trinitylake.iceberg_storage.federated_tables import CATALOG_PROPERTY

if TYPE_CHECKING:
    from trinitylake.rest.catalog.served_catalog import ServedCatalog
    from trinitylake.rest.request.call import Call

Result = TypeVar("Result")


def with_deadline(
    call: Call, catalog: ServedCatalog, identifier: tuple[str, ...], work: Callable[[], Result]
) -> Result:
    """Run `work` on a table, with a deadline if the table is outside of the lakehouse; returns its result.

    Raises the errors of `work` and of `Outbound.run`.
    """
    namespace, name = object_name(identifier, NoSuchTableError)
    data = catalog.definition(namespace, name)
    definition = None if data is None else parse_table_def(data)
    if definition is None or definition.table_type == MANAGED:
        return work()
    return call.service.outbound.run(peer_of(definition), work)


def peer_of(definition: TableDef) -> str:
    """The catalog or storage that a table outside of the lakehouse depends on."""
    properties = definition.format_properties
    if catalog := properties.get(CATALOG_PROPERTY):
        return f"the catalog {catalog!r} at {urlsplit(properties.get('uri', '')).hostname or 'its address'}"
    return f"the storage at {urlsplit(properties.get(METADATA_LOCATION, '')).netloc or 'this machine'}"

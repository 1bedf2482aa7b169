"""Import of another catalog: its namespaces, tables and views become one version of the lakehouse.

No file of a table is copied. A table whose metadata file is below the root becomes managed. Any other table becomes
external: it is read-only, and shows the state of the metadata file that the import found (format §9). A later import
with `existing="replace"` moves external tables to their newest metadata. Views are copied with their SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog

from trinitylake.base.qualified_names import Identifier, namespace_name
from trinitylake.definitions import serialize
from trinitylake.errors import InvalidArgument, ObjectAlreadyExists, RefusedObject, RegistrationFailed, TrinityLakeError
from trinitylake.lakehouse.bulk.definition_writer import READ_THREADS, ObjectRow
from trinitylake.lakehouse.bulk.registration import Progress, RegistrationOptions, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake import _core
    from trinitylake.lakehouse.handle import Handle

Existing = Literal["fail", "skip", "replace"]

SCHEMA = pa.schema(
    {
        "kind": pa.string(),
        "namespace": pa.string(),
        "name": pa.string(),
        "definition": pa.binary(),
        "metadata_location": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
    }
)


@dataclass(frozen=True)
class CatalogImport:
    """Result of an import.

    Attributes:
        version: the version with all imported objects; None after a dry run, or if there was nothing to import.
        namespaces, tables, views: full names of the imported objects, sorted.
        skipped: existing objects that were not changed, as "kind name", sorted.
    """

    version: int | None
    namespaces: list[str]
    tables: list[str]
    views: list[str]
    skipped: list[str]


def import_catalog(
    lake: Handle,
    catalog: Catalog,
    options: RegistrationOptions,
    namespaces: Iterable[Identifier] | None,
    existing: Existing,
    engine: SparkSession | None,
    progress: Progress | None,
) -> CatalogImport:
    """Run `Lakehouse.import_catalog`; `progress` is called with the numbers of read objects and of all objects."""
    if existing not in ("fail", "skip", "replace"):
        raise InvalidArgument(f'existing is {existing!r}: expected "fail", "skip" or "replace"')
    listed = list(_list(catalog, namespaces))
    skipped = _skipped(lake, listed, existing)
    wanted = [one for one, skip in zip(listed, skipped, strict=True) if not skip]
    rows, refused = _read(catalog, wanted, progress)
    if refused:
        raise RegistrationFailed.of(refused)
    version = None
    if rows:
        version = register(
            lake,
            pa.Table.from_pylist([row._asdict() for row in rows], schema=SCHEMA),
            replace(
                options,
                message=options.message or f"import of the catalog {catalog.name}",
                # The storage properties of the catalog are used for reading, and never stored.
                file_io_properties={**catalog.properties, **options.file_io_properties},
            ),
            engine,
        ).version
    rows.sort(key=lambda row: (row.namespace, row.name))
    names = {kind: [row.full_name for row in rows if row.kind == kind] for kind in _READERS}
    left = sorted(f"{one.kind} {one.full_name}" for one, skip in zip(listed, skipped, strict=True) if skip)
    return CatalogImport(version, names["namespace"], names["table"], names["view"], left)


def _list(catalog: Catalog, chosen: Iterable[Identifier] | None) -> Iterator[ObjectRow]:
    """List the objects in the catalog, or in the `chosen` namespaces at any depth. The rows have no definitions yet."""
    if chosen is None:
        waiting = list(catalog.list_namespaces())
    else:
        waiting = [tuple(namespace_name(one).split(".")) for one in chosen]
    seen: set[tuple[str, ...]] = set()
    while waiting:
        namespace = waiting.pop()
        if namespace in seen:
            continue
        seen.add(namespace)
        name = ".".join(namespace)
        yield ObjectRow("namespace", name, "")
        views = set(_views(catalog, namespace))
        yield from (ObjectRow("view", name, view) for view in sorted(views))
        # Some catalogs list views among the tables.
        tables = {identifier[-1] for identifier in catalog.list_tables(namespace)} - views
        yield from (ObjectRow("table", name, table) for table in sorted(tables))
        waiting += [child for child in catalog.list_namespaces(namespace) if child != namespace]


def _views(catalog: Catalog, namespace: tuple[str, ...]) -> list[str]:
    try:
        return [identifier[-1] for identifier in catalog.list_views(namespace)]
    except NotImplementedError:  # a catalog without views
        return []


def _skipped(lake: Handle, rows: list[ObjectRow], existing: Existing) -> list[bool]:
    """Mask of existing objects to leave unchanged: namespaces, and with `existing="skip"` also tables and views.

    Raises `ObjectAlreadyExists` if a table or view exists and `existing` is "fail".
    """
    version = lake.core.latest()
    exists = []
    for row in rows:
        # A name that is too long for a key raises an error here; it is reported later, with all other errors.
        try:
            exists.append(version.exists(cast("_core.Kind", row.kind), row.namespace, row.name))
        except TrinityLakeError:
            exists.append(False)
    taken = [row for row, there in zip(rows, exists, strict=True) if there and row.kind != "namespace"]
    if taken and existing == "fail":
        more = f", and {len(taken) - 1} more objects of the catalog" if len(taken) > 1 else ""
        raise ObjectAlreadyExists(f"{taken[0].kind} {taken[0].full_name} exists{more}: skip or replace them")
    return [there and (row.kind == "namespace" or existing == "skip") for row, there in zip(rows, exists, strict=True)]


def _read(
    catalog: Catalog, rows: list[ObjectRow], progress: Progress | None
) -> tuple[list[ObjectRow], list[RefusedObject]]:
    """Read the objects of `rows` in the catalog, in parallel.

    Returns the completed rows, and reports of the objects that cannot be read.
    """

    def read(row: ObjectRow) -> ObjectRow | RefusedObject:
        try:
            return _READERS[row.kind](catalog, row)
        except TrinityLakeError as error:
            return row.refused(error)
        except Exception as error:
            # The other catalog and its storage can raise any error; the errors of all objects are reported together.
            return RefusedObject(row.kind, row.full_name, "error", f"{type(error).__name__}: {error}")

    found: list[ObjectRow] = []
    refused: list[RefusedObject] = []
    with ThreadPoolExecutor(READ_THREADS) as pool:
        for done, one in enumerate(pool.map(read, rows), 1):
            if isinstance(one, RefusedObject):
                refused.append(one)
            else:
                found.append(one)
            if progress is not None:
                progress(done, len(rows))
    return found, refused


def _read_namespace(catalog: Catalog, row: ObjectRow) -> ObjectRow:
    properties = dict(catalog.load_namespace_properties(tuple(row.namespace.split("."))))
    # The location where the old catalog puts new tables: in a lakehouse the location follows from the root.
    properties.pop("location", None)
    return row._replace(properties={name: str(value) for name, value in properties.items()})


def _read_table(catalog: Catalog, row: ObjectRow) -> ObjectRow:
    table = catalog.load_table((*row.namespace.split("."), row.name))
    return row._replace(metadata_location=table.metadata_location)


def _read_view(catalog: Catalog, row: ObjectRow) -> ObjectRow:
    from trinitylake.iceberg_storage.view_metadata import view_definition

    view = catalog.load_view((*row.namespace.split("."), row.name))
    return row._replace(definition=serialize(view_definition(view.metadata)))


_READERS: dict[str, Callable[[Catalog, ObjectRow], ObjectRow]] = {
    "namespace": _read_namespace,
    "table": _read_table,
    "view": _read_view,
}

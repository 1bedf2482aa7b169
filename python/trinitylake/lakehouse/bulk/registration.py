"""Registration of many objects in one version.

A transaction writes its changes into the buffer of the root, which suits thousands of objects. A registration builds a
complete new tree, which suits millions. So it conflicts with every other commit since its base version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.base.pickling import StorageForTasks
from trinitylake.core import KeySizes
from trinitylake.errors import InvalidArgument, InvalidLocation, RefusedObject, RegistrationFailed, TransactionExpired
from trinitylake.lakehouse.bulk.definition_writer import (
    BATCH_OBJECTS,
    DEFINITION_PATH,
    OBJECT_KINDS,
    DefinitionWriter,
    ObjectRow,
    require_uncollected,
)
from trinitylake.lakehouse.bulk.engines import engine_module
from trinitylake.lakehouse.handle import retry_conflicts
from trinitylake.tables.input_rows import read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake import _core
    from trinitylake.lakehouse.handle import Handle

#: Columns of a table of objects: the required ones name an object, the optional ones give or describe its definition.
REQUIRED = ("kind", "namespace", "name")
OPTIONAL = ("location", "definition", "metadata_location", "properties")

#: Callback with the number of registered objects and the number of all objects.
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class RegistrationOptions:
    """Options of `Lakehouse.register`, under the same names."""

    message: str = ""
    author: str = ""
    replace: bool = False
    dry_run: bool = False
    file_io_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Registration:
    """The result of a registration.

    Attributes:
        version: the version with all registered objects; None after a dry run.
        namespaces, tables, views: the number of registered objects of each kind.
    """

    version: int | None
    namespaces: int
    tables: int
    views: int


def register(
    lake: Handle,
    objects: Any,
    options: RegistrationOptions,
    engine: SparkSession | None = None,
    progress: Progress | None = None,
) -> Registration:
    """Run `Lakehouse.register`; without an engine, `progress` is called with the numbers of done and of all objects."""
    if engine is not None:
        done: Registration = engine_module(engine, "registration").register(engine, lake, objects, options)
        return done
    since = lake.core.latest()
    table = read_objects(objects)
    if "location" in table.schema.names:
        _require_uncollected(lake, since, table)
    writer = definition_writer(lake, since, options.file_io_properties)
    if needs_definitions(table.schema.names):
        table = _with_locations(table, writer, options.dry_run, progress)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(table["kind"]).to_pylist()}
    counted = [counts.get(kind, 0) for kind in OBJECT_KINDS]
    table = table.select([*REQUIRED, "location"])
    version = retry_conflicts(
        lambda: lake.core.register(table, options.message, options.author, options.replace, options.dry_run, since)
    )
    return Registration(version, *counted)


def _require_uncollected(lake: Handle, since: _core.Version, table: pa.Table) -> None:
    """Raise `TransactionExpired` if a garbage collection before `since` may delete one of the given definition files.

    Files that version `since` references are safe. `core.register` checks for later garbage collections.
    """
    given = pc.drop_null(table["location"].cast(pa.string()).combine_chunks())
    try:
        require_uncollected(lake.core, since, given)
    except TransactionExpired:
        known = pa.RecordBatchReader.from_stream(since.scan()).read_all()["location"]
        require_uncollected(lake.core, since, given.filter(pc.invert(pc.is_in(given, known))))


def definition_writer(lake: Handle, since: _core.Version, file_io_properties: Mapping[str, str]) -> DefinitionWriter:
    """The writer of definitions for a registration whose base version is `since`."""
    return DefinitionWriter(
        StorageForTasks(lake.storage),
        KeySizes.of(lake.definition),
        lake.definition.file_path_max_size_bytes,
        since.number,
        dict(file_io_properties),
    )


def read_objects(objects: Any) -> pa.Table:
    """Convert objects to an Arrow table. Raises `InvalidArgument` for wrong columns, and `InvalidLocation`."""
    table = read_all(objects.toArrow() if hasattr(objects, "toArrow") else objects)
    check_columns(table.schema.names)
    if "location" in table.column_names:
        given = table.filter(pc.is_in(table["kind"].cast(pa.string()), pa.array(OBJECT_KINDS)))
        kinds = pc.replace_substring_regex(given["location"].cast(pa.large_string()), DEFINITION_PATH, r"\1")
        for bad in given.filter(pc.not_equal(kinds, given["kind"].cast(pa.large_string()))).slice(0, 1).to_pylist():
            raise InvalidLocation(
                f"location {bad['location']!r} is not the path of the definition file of a {bad['kind']}"
            )
    return table


def check_columns(names: list[str]) -> None:
    """Raise `InvalidArgument` if a required column is missing or a column is unknown."""
    if missing := [name for name in REQUIRED if name not in names]:
        raise InvalidArgument(f"the table `objects` lacks the columns {', '.join(missing)}")
    if unknown := [name for name in names if name not in (*REQUIRED, *OPTIONAL)]:
        raise InvalidArgument(f"unknown columns {', '.join(unknown)} in `objects`; optional: {', '.join(OPTIONAL)}")


def needs_definitions(names: list[str]) -> bool:
    """Whether definition files may have to be written: the columns differ from `REQUIRED` and `location`."""
    return set(names) != {*REQUIRED, "location"}


def _with_locations(table: pa.Table, writer: DefinitionWriter, dry_run: bool, progress: Progress | None) -> pa.Table:
    """Add the location of each object. Raises `RegistrationFailed` with all objects that cannot get one."""
    refused: list[RefusedObject] = []
    locations: list[str | None] = []
    for batch in table.to_batches(max_chunksize=BATCH_OBJECTS):
        rows = [ObjectRow.of(row) for row in batch.to_pylist()]
        # After the first error nothing will be registered, so the other objects are only checked.
        results = writer.check(rows) if dry_run or refused else writer.locate(rows)
        refused += [one for one in results if isinstance(one, RefusedObject)]
        locations += [one if isinstance(one, str) else "" for one in results]
        if progress is not None:
            progress(len(locations), table.num_rows)
    if refused:
        raise RegistrationFailed.of(refused)
    return table.select(REQUIRED).append_column("location", pa.array(locations, pa.string()))

"""Metadata of a lakehouse as data frames: its log, its objects and changes, the files of a table.

spark.read.format("trinitylake").option("root", uri).option("metadata", "log").load()
spark.read.format("trinitylake").option("root", uri).option("metadata", "files").load("nyc.flights")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.spark.filters import option_filter
from trinitylake.spark.options import Metadata, Options
from trinitylake.spark.task_errors import one_line_errors
from trinitylake.spark.types import spelled

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse

Row = tuple[Any, ...]

#: Columns of each table, with Spark's names of their types.
_COLUMNS: dict[Metadata, dict[str, str]] = {
    "log": {
        "version": "bigint",
        "created_at": "timestamp",
        "rollback_from": "bigint",
        "message": "string",
        "author": "string",
        "transactions": "array<struct<id: string, isolation: string, message: string, author: string, "
        "began_at_version: bigint, properties: map<string, string>>>",
    },
    "objects": {"kind": "string", "namespace": "string", "name": "string", "location": "string"},
    "changes": {"version": "bigint", "created_at": "timestamp", "change": "string", "kind": "string", "name": "string"},
    "count": {"rows": "bigint"},
    "files": {
        "content": "string",
        "file_path": "string",
        "file_format": "string",
        "spec_id": "int",
        "partition": "string",
        "record_count": "bigint",
        "file_size_in_bytes": "bigint",
        "snapshot_id": "bigint",
        "sequence_number": "bigint",
    },
}
_CONTENTS = ("data", "position deletes", "equality deletes")


def schema_of(metadata: Metadata) -> str:
    """The columns of a metadata table, in SQL's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in _COLUMNS[metadata].items())


@one_line_errors
class MetadataReader(DataSourceReader):
    """Reads one metadata table, in one task, from the version that was the latest when the query was planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        assert options.metadata is not None
        if options.txn is not None:
            raise InvalidArgument("metadata tables show committed versions: they cannot be read in a transaction")
        self._metadata = options.metadata
        self._options = options
        known = list(_COLUMNS[options.metadata])
        names = [spelled(name, known) for name in schema.fieldNames()]
        if unknown := [name for name in names if name not in known]:
            raise InvalidArgument(f"the metadata table has no column {unknown[0]!r}; it has {', '.join(known)}")
        self._positions = [known.index(name) for name in names]
        self._version = options.reading(options.open()).version

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """All rows of the metadata table."""
        rows: dict[Metadata, Callable[[Lakehouse], Iterator[Row]]] = {
            "log": self._log,
            "objects": self._objects,
            "changes": self._changes,
            "files": self._files,
            "count": self._count,
        }
        for row in rows[self._metadata](self._options.open()):
            yield tuple(row[position] for position in self._positions)

    def _log(self, lake: Lakehouse) -> Iterator[Row]:
        """One row for each kept version, the newest first."""
        for entry in lake.log(None, before=self._version + 1):
            transactions = [
                (one.id, one.isolation, one.message, one.author, one.began_at_version, one.properties)
                for one in entry.transactions
            ]
            yield entry.version, entry.created_at, entry.rollback_from, entry.message, entry.author, transactions

    def _objects(self, lake: Lakehouse) -> Iterator[Row]:
        """One row for each namespace, table and view; `location` is the path of the definition file."""
        version = lake.at(version=self._version)._state()
        for kind in ("namespace", "table", "view"):
            for row in version.list(kind).to_pylist():
                yield kind, row["namespace"], row["name"], row["location"]

    def _changes(self, lake: Lakehouse) -> Iterator[Row]:
        """One row for each object that a version added, removed or changed, in ascending order of versions."""
        since = self._options.since
        entries = [
            entry for entry in lake.log(None, before=self._version + 1) if since is None or entry.version > since
        ]
        for entry in reversed(entries):
            if entry.version == 0 or (since is None and entry is entries[-1]):
                continue  # there is no earlier version to compare with
            diff = lake.diff(entry.version - 1, entry.version)
            for change, objects in (("added", diff.added), ("removed", diff.removed), ("changed", diff.changed)):
                for one in objects:
                    yield entry.version, entry.created_at, change, one.kind, one.name

    def _count(self, lake: Lakehouse) -> Iterator[Row]:
        """One row with the number of a table's rows that match the option `filter`.

        Most files are counted from manifests. Only data files with deleted rows, and files in which only some rows may
        match, are opened.
        """
        table = lake.at(version=self._version).table(self._options.table_name)
        with translated(table.name):
            filter = option_filter(self._options.filter, table.iceberg.schema())
            yield (table.scan(filter=filter).iceberg.count(),)

    def _files(self, lake: Lakehouse) -> Iterator[Row]:
        """One row for each data and delete file of a table."""
        from trinitylake.iceberg_storage.data_files.partitioned_rows import partition_path
        from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
        from trinitylake.iceberg_storage.pyiceberg_patches import schema_with_sources

        iceberg = lake.at(version=self._version).table(self._options.table_name).iceberg
        snapshot = iceberg.current_snapshot()
        if snapshot is None:
            return
        specs, schema = iceberg.specs(), schema_with_sources(iceberg.metadata)
        for manifest in snapshot.manifests(iceberg.io):
            for entry in read_entries(iceberg.io, manifest):
                file = entry.data_file
                yield (
                    _CONTENTS[file.content.value],
                    file.file_path,
                    file.file_format.value,
                    manifest.partition_spec_id,
                    partition_path(specs[manifest.partition_spec_id], schema, file.partition),
                    file.record_count,
                    file.file_size_in_bytes,
                    entry.snapshot_id,
                    entry.sequence_number,
                )

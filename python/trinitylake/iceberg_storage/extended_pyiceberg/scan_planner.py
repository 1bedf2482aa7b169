"""Plans scans: finds the data files that may have rows that match a filter, and their delete files.

`row_filter.py` evaluates the filter on partition values and bounds. The residual filter of a file is `AlwaysTrue` if
they show that all of its rows match, otherwise the complete filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType

from trinitylake.iceberg_storage.column_summary import ANYTHING, ColumnSummary, of_manifest, of_metrics, of_partition
from trinitylake.iceberg_storage.data_files.equality_deletes import EqualityDeleteIndex
from trinitylake.iceberg_storage.data_files.row_lineage import PlannedFile
from trinitylake.iceberg_storage.delete_files import is_vector, referenced_data_file
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.name_mapping import columns_with_moved_names
from trinitylake.iceberg_storage.pyiceberg_patches import schema_with_sources
from trinitylake.iceberg_storage.row_filter import FALSE, TRUE, RowFilter, Summaries

#: Maximum number of manifests of one plan that are read in parallel.
_MAX_THREADS = 8


class PlanTooLarge(Exception):
    """Planning would evaluate more predicates and values than `max_looks` allows."""


class FilesOfFilter:
    """Tests whether files and manifests of a table may have rows that match a filter.

    Args:
        metadata: of the table, for its partition specs.
        filter: over the columns of `schema`, which is by default the current schema of the table. May be compiled.
        max_looks: maximum number of evaluated predicates and values; None for no limit.

    Attributes:
        residual: the filter for the rows of files that may also have other rows; `AlwaysTrue` for a compiled filter.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        filter: BooleanExpression | RowFilter,
        case_sensitive: bool = True,
        schema: Schema | None = None,
        max_looks: int | None = None,
    ) -> None:
        self.metadata = metadata
        columns = metadata.schema() if schema is None else schema
        self.residual: BooleanExpression = AlwaysTrue()
        if isinstance(filter, RowFilter):
            self.filter = filter
        else:
            self.filter, self.residual = RowFilter.of(filter, columns, case_sensitive), filter
        reliable = self.filter.field_ids - columns_with_moved_names(metadata)
        self._types: dict[int, IcebergType] = {id: columns.find_type(id) for id in reliable}
        self._fields: dict[int, list[tuple[int, PartitionField, IcebergType]]] = {}
        sources = schema_with_sources(metadata, columns)
        for spec in metadata.partition_specs:
            self._fields[spec.spec_id] = [
                (position, field, sources.find_type(field.source_id))
                for position, field in enumerate(spec.fields)
                if field.source_id in self._types
            ]
        self._looks_left = max_looks

    def of_file(self, file: DataFile) -> int:
        """The possible results of the filter for the rows of a data file. Raises `PlanTooLarge`."""
        if file.record_count == 0:
            return FALSE
        partition = self._of_fields(file.spec_id, file.partition, of_partition)

        def summary(id: int) -> ColumnSummary:
            return of_metrics(file, id, self._types[id]).and_also(partition(id)) if id in self._types else ANYTHING

        return self._outcomes(summary)

    def may_be_in_file(self, file: DataFile) -> bool:
        """Whether a data file may have rows that match."""
        return bool(self.of_file(file) & TRUE)

    def may_be_in_partition(self, file: DataFile) -> bool:
        """Whether the partition of a data file or delete file may have rows that match."""
        return bool(self._outcomes(self._of_fields(file.spec_id, file.partition, of_partition)) & TRUE)

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether a manifest may list files with rows that match; False if it lists only removed files."""
        if not (manifest.has_added_files() or manifest.has_existing_files()):
            return False
        if not self._fields.get(manifest.partition_spec_id) or not manifest.partitions:
            return True
        bounds = self._of_fields(manifest.partition_spec_id, manifest.partitions, of_manifest)
        return bool(self._outcomes(bounds) & TRUE)

    def _of_fields(self, spec_id: int, values: Any, summarize: Callable[..., ColumnSummary]) -> Summaries:
        """Summaries of the source columns of partition fields, from one value for each field."""

        def summary(id: int) -> ColumnSummary:
            found = ANYTHING
            for position, field, type in self._fields.get(spec_id, ()):
                if field.source_id == id and position < len(values):
                    found = found.and_also(summarize(field, type, values[position]))
            return found

        return summary

    def _outcomes(self, summary: Summaries) -> int:
        if self._looks_left is not None:
            self._looks_left -= self.filter.size
            if self._looks_left < 0:
                raise PlanTooLarge(
                    f"a filter of {self.filter.size} predicates and values is too large to be planned by the server "
                    "for so many files: plan the scan at the client"
                )
        known: dict[int, ColumnSummary] = {}

        def cached(id: int) -> ColumnSummary:
            if id not in known:
                known[id] = summary(id)
            return known[id]

        return self.filter.outcomes(cached)


def plan_files(
    io: FileIO,
    manifests: Iterable[ManifestFile],
    files: FilesOfFilter,
    is_wanted: Callable[[ManifestEntry], bool] = lambda entry: True,
) -> list[PlannedFile]:
    """The data files of manifests that may have rows that match, with their delete files.

    Args:
        manifests: of a snapshot, or some of them.

    Raises `PlanTooLarge`, and as `read_entries`.
    """
    read = _to_be_read([manifest for manifest in manifests if files.may_be_in(manifest)])
    if isinstance(io, LakehouseFileIO):
        io.read_ahead([(one.manifest_path, one.manifest_length) for one in read])

    def found(manifest: ManifestFile) -> list[tuple[ManifestEntry, int]]:
        entries = [entry for entry in read_entries(io, manifest) if is_wanted(entry)]
        if manifest.content == ManifestContent.DELETES:
            return [(entry, TRUE) for entry in entries]
        judged = ((entry, files.of_file(entry.data_file)) for entry in entries)
        return [(entry, outcomes) for entry, outcomes in judged if outcomes & TRUE]

    data: list[tuple[ManifestEntry, int]] = []
    deletes, equality_deletes = DeleteFileIndex(), EqualityDeleteIndex(files.metadata)
    vectors: dict[str, DataFile] = {}
    # Each plan has its own threads, because files outside of the lakehouse may block them.
    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        every_entry = [one for some in (pool.map if len(read) > 1 else map)(found, read) for one in some]
    for entry, outcomes in every_entry:
        file = entry.data_file
        if file.content == DataFileContent.DATA:
            data.append((entry, outcomes))
        elif file.content == DataFileContent.EQUALITY_DELETES:
            equality_deletes.add(file, entry.sequence_number or 0)
        elif is_vector(file) and (path := referenced_data_file(file)) is not None:
            vectors[path] = file
        else:
            deletes.add_delete_file(entry, partition_key=file.partition)

    def planned(entry: ManifestEntry, outcomes: int) -> PlannedFile:
        file, number = entry.data_file, entry.sequence_number or 0
        by_values = equality_deletes.of(file, number)
        if (vector := vectors.get(file.file_path)) is not None:  # a vector has all deleted positions of its data file
            by_position = {vector}
        else:
            by_position = deletes.for_data_file(number, file, partition_key=file.partition)
        every_delete = by_position | {one.file for one in by_values}
        residual = AlwaysTrue() if outcomes == TRUE else files.residual
        return PlannedFile(file, every_delete, residual, entry.sequence_number, by_values)

    return [planned(entry, outcomes) for entry, outcomes in data]


def _to_be_read(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """The manifests, without delete manifests that are older than all data manifests."""
    numbers = [manifest.min_sequence_number or 0 for manifest in manifests if manifest.content == ManifestContent.DATA]
    oldest = min(numbers, default=0)
    return [
        manifest
        for manifest in manifests
        if manifest.content == ManifestContent.DATA or (manifest.sequence_number or 0) >= oldest
    ]

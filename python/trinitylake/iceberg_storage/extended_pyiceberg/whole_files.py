"""Deleting from tables of format version 3: files all of whose rows go.

A file that keeps some of its rows would have to be written anew with the ids of those rows in it, or stay beside a
deletion vector. PyIceberg writes neither, so that is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import prune_columns
from pyiceberg.table import DataScan, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.extended_pyiceberg.functions import must_hold_only, record_batches_of
from trinitylake.iceberg_storage.extended_pyiceberg.manifest import manifest_lists, read_entries
from trinitylake.iceberg_storage.extended_pyiceberg.rewrite import RewriteFiles
from trinitylake.iceberg_storage.extended_pyiceberg.row_ids import referenced_data_file


class DeleteWholeFiles(RewriteFiles):
    """Produces a snapshot without the files all of whose rows match a filter.

    Args:
        isolation_operation: whose isolation level of the table applies when PyIceberg tries again.

    Raises `InvalidArgument` for a file of which some rows would stay, or one with deleted rows.
    """

    def __init__(
        self,
        transaction: Transaction,
        io: FileIO,
        added_files: dict[int, list[DataFile]],
        filter: BooleanExpression,
        case_sensitive: bool,
        snapshot_properties: dict[str, str],
        branch: str | None,
        isolation_operation: Operation,
    ) -> None:
        id = transaction.table_metadata.new_snapshot_id()
        super().__init__(transaction, io, added_files, Operation.DELETE, snapshot_properties, branch, id, {})
        self._isolation_operation = isolation_operation
        self.delete_by_predicate(filter, case_sensitive)
        for file in whole_files(transaction.table_metadata, io, self._parent_snapshot_id, filter, case_sensitive):
            self.delete_data_file(file)

    @property
    def is_needed(self) -> bool:
        """Whether there is any such file."""
        return bool(self._deleted_data_files)

    def _validate_concurrency(self) -> None:
        """As any delete: an append, which this class is made of, conflicts with nothing."""
        _SnapshotProducer._validate_concurrency(self)


def whole_files(
    metadata: TableMetadata, io: FileIO, snapshot_id: int | None, filter: BooleanExpression, case_sensitive: bool
) -> Iterable[DataFile]:
    """The data files of a snapshot all of whose rows match a filter. Raises as `DeleteWholeFiles` does."""
    if snapshot_id is None:
        return
    schema = metadata.schema()
    columns = prune_columns(schema, extract_field_ids(bind(schema, filter, case_sensitive)))
    matches_whole = must_hold_only(schema, filter, case_sensitive)
    deletes = _deletes_of(metadata, io, snapshot_id)
    scan = DataScan(metadata, io, row_filter=filter, case_sensitive=case_sensitive, snapshot_id=snapshot_id)
    for task in scan.plan_files():
        path = task.file.file_path
        has_deletes = bool(task.delete_files) and not deletes.isdisjoint({None, path})
        matching = None
        if not has_deletes and not matches_whole(task.file) and task.residual != AlwaysTrue():
            batches = record_batches_of(metadata, io, columns, filter, [task], {}, case_sensitive)
            matching = sum(batch.num_rows for batch in batches)
            if matching == 0:
                continue
        if has_deletes or matching not in (None, task.file.record_count):
            why = "has deleted rows" if has_deletes else "holds rows that would stay"
            raise InvalidArgument(
                f"the table has format version 3, and {path} {why}: of such tables only whole files are "
                "deleted or overwritten here, since rows that move would lose their ids. Choose whole partitions, or "
                "let an engine that writes deletion vectors do it, for instance Spark"
            )
        yield task.file


def _deletes_of(metadata: TableMetadata, io: FileIO, snapshot_id: int) -> set[str | None]:
    """The data files that have deleted rows in a snapshot; None for some that any file of a partition may have."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    manifests = () if snapshot is None else manifest_lists.read(io, snapshot.manifest_list)
    return {
        referenced_data_file(entry.data_file)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in read_entries(io, manifest)
    }

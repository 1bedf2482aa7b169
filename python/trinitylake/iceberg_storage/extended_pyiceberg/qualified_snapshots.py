"""PyIceberg's own snapshots, with a check of each data file that they add."""

from __future__ import annotations

import uuid
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import UpdateSnapshot

from trinitylake.iceberg_storage.locations import check_data_file
from trinitylake.iceberg_storage.manifests.manifest_consistency import FileCheck, SpecsAndSchemas


class QualifiedSnapshots(UpdateSnapshot):
    """Makes snapshots of a table.

    Adding a file raises `InvalidLocation` for a location that is not allowed (`locations.py`), and
    `InvalidArgument` for inconsistent metrics (`manifest_consistency.py`).
    """

    def __init__(
        self, transaction: Transaction, io: FileIO, branch: str | None, snapshot_properties: dict[str, str]
    ) -> None:
        super().__init__(transaction, io, branch, snapshot_properties)
        self._files = io

    def fast_append(self) -> Any:
        return self._checked(super().fast_append())

    def merge_append(self) -> Any:
        return self._checked(super().merge_append())

    def overwrite(self, commit_uuid: uuid.UUID | None = None) -> Any:
        return self._checked(super().overwrite(commit_uuid))

    def _checked(self, producer: Any) -> Any:
        add, metadata = producer.append_data_file, self._transaction.table_metadata
        check = FileCheck(metadata.spec(), SpecsAndSchemas.after(metadata, ()))

        def append_data_file(file: DataFile) -> Any:
            check_data_file(self._files, file)
            check.check(file)
            return add(file)

        producer.append_data_file = append_data_file
        return producer

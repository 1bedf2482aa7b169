"""What PyIceberg's plan of a scan lacks in format version 3: row ids, and which data file a deletion vector is of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from trinitylake.iceberg_storage.extended_pyiceberg.manifest import manifest_lists, read_entries
from trinitylake.iceberg_storage.extended_pyiceberg.row_ids import first_row_id_of_file, referenced_data_file


@dataclass
class ScannedFiles:
    """The files of a snapshot, by the path of the data file.

    Attributes:
        first_row_ids: of data files whose rows have ids.
        vectors: the deletion vector of a data file.
    """

    first_row_ids: dict[str, int] = field(default_factory=dict)
    vectors: dict[str, DataFile] = field(default_factory=dict)

    @classmethod
    def of(cls, io: FileIO, snapshot: Snapshot) -> ScannedFiles:
        """Read from the manifests of a snapshot."""
        found = cls()

        def live(manifest: ManifestFile) -> list[DataFile]:
            return [entry.data_file for entry in read_entries(io, manifest)]

        manifests = manifest_lists.read(io, snapshot.manifest_list)
        for manifest, files in zip(manifests, ExecutorFactory.get_or_create().map(live, manifests), strict=True):
            for file in files:
                if manifest.content == ManifestContent.DATA and (first := first_row_id_of_file(file)) is not None:
                    found.first_row_ids[file.file_path] = first
                elif is_vector(file) and (path := referenced_data_file(file)) is not None:
                    found.vectors[path] = file
        return found

    def deletes_of(self, task: FileScanTask) -> Iterable[DataFile]:
        """The files of deleted rows of a data file: its vector, which has all deleted positions, or others."""
        vector = self.vectors.get(task.file.file_path)
        others = [file for file in task.delete_files if not is_vector(file)]
        return others if vector is None else [vector, *(file for file in others if file.equality_ids)]


def is_vector(file: DataFile) -> bool:
    """Whether a file of deleted rows is a deletion vector."""
    return file.file_format == FileFormat.PUFFIN

"""Groups of data files that are rewritten together: files whose rows belong to one partition.

Rows are written with the current partition spec, so files are grouped by its partitions. After a change of
partitioning, files of several partitions may be merged into one. For a file of an older spec, only the values of fields
that both specs share are known. Files with the same known values form a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform

from trinitylake.iceberg_storage.data_files.file_sizes import SMALL_PART, grouped
from trinitylake.iceberg_storage.data_files.partitioned_rows import spelled
from trinitylake.iceberg_storage.delete_files import of_one_data_file

#: Maximum size of the files in a group whose rows are sorted together.
SORTED_GROUP_SIZE_BYTES = 128 << 20
#: A data file with more delete files is always rewritten.
MAX_DELETE_FILES = 10


class _Unknown:
    """A partition value that only the rows show."""


_UNKNOWN = _Unknown()


class Group(NamedTuple):
    """Files that are rewritten together.

    Attributes:
        tasks: the files, with their delete files.
        is_of_one_partition: whether all of their rows belong to one partition.
    """

    tasks: list[FileScanTask]
    is_of_one_partition: bool


class FileGroups:
    """Chooses files of a table and puts them into groups.

    Args:
        size: target size of the new files, in bytes.
        min_files: partitions with fewer small files are skipped, unless files have deleted rows.
        min_deleted_percent: a file with a smaller percentage of deleted rows counts as a file without deleted rows.
    """

    def __init__(self, metadata: TableMetadata, size: int, min_files: int, min_deleted_percent: int) -> None:
        self._spec_id = metadata.default_spec_id
        self._size = size
        self._min_files = min_files
        self._min_deleted_percent = min_deleted_percent
        current = metadata.spec()
        self._partitions = {spec.spec_id: _partition_under(current, spec) for spec in metadata.partition_specs}

    def of(self, tasks: Iterable[FileScanTask], is_sorted: bool) -> list[Group]:
        """Group the files that are small, have deleted rows or belong to another spec; with `is_sorted`, all files."""
        return self._split(self._by_partition(tasks, lambda task: is_sorted or self._is_to_be_written(task)), is_sorted)

    def again(self, tasks: Iterable[FileScanTask], is_sorted: bool) -> list[Group]:
        """Group files, including files that were just written, if merging reduces their number."""
        by_partition = self._by_partition(tasks, lambda task: self._is_small(task.file))
        fewer = {
            key: members
            for key, members in by_partition.items()
            if len(members) >= max(self._min_files, 2) and _size_bytes(members) <= self._size * (len(members) - 1)
        }
        return self._split(fewer, is_sorted)

    def _is_small(self, file: DataFile) -> bool:
        return file.file_size_in_bytes < SMALL_PART * self._size

    def _is_to_be_written(self, task: FileScanTask) -> bool:
        return self._is_small(task.file) or task.file.spec_id != self._spec_id or self._needs_deletes_applied(task)

    def _needs_deletes_applied(self, task: FileScanTask) -> bool:
        """Whether a file must be rewritten to apply its deletes."""
        # Always true if the number of deleted rows is unknown, as for equality deletes and for delete files of several
        # data files.
        own = of_one_data_file(task.delete_files)
        if len(own) < len(task.delete_files) or len(own) > MAX_DELETE_FILES:
            return True
        deleted = sum(file.record_count for file in own)
        return bool(own) and deleted * 100 >= self._min_deleted_percent * task.file.record_count

    def _by_partition(
        self, tasks: Iterable[FileScanTask], is_chosen: Callable[[FileScanTask], bool]
    ) -> dict[tuple[Hashable, ...], list[FileScanTask]]:
        by_partition: dict[tuple[Hashable, ...], list[FileScanTask]] = defaultdict(list)
        for task in tasks:
            if is_chosen(task):
                by_partition[self._partitions[task.file.spec_id](task.file)].append(task)
        return by_partition

    def _split(self, by_partition: dict[tuple[Hashable, ...], list[FileScanTask]], is_sorted: bool) -> list[Group]:
        # The limit is large enough to keep each thread busy, and for several files of the target size.
        limit = min(4 * self._size, SORTED_GROUP_SIZE_BYTES) if is_sorted else 4 * self._size
        groups: list[Group] = []
        for key, members in by_partition.items():
            if not is_sorted and len(members) < self._min_files and not any(map(self._needs_deletes_applied, members)):
                continue
            parts = list(grouped(members, lambda task: task.file.file_size_in_bytes, limit))
            if not is_sorted and len(parts) > 1 and len(parts[-1]) < self._min_files:
                few = parts.pop()  # a separate group would become a small file again
                parts[-1] += few
            groups += (Group(part, _UNKNOWN not in key) for part in parts)
        return groups


def _partition_under(current: PartitionSpec, spec: PartitionSpec) -> Callable[[DataFile], tuple[Hashable, ...]]:
    """Function that maps a file of `spec` to the known values of its partition under the current spec."""
    if spec.spec_id == current.spec_id:
        return lambda file: spelled(file.partition)
    places = {(field.source_id, str(field.transform)): place for place, field in enumerate(spec.fields)}
    known = [
        None if isinstance(field.transform, VoidTransform) else places.get((field.source_id, str(field.transform)), -1)
        for field in current.fields
    ]

    def partition(file: DataFile) -> tuple[Hashable, ...]:
        values = (*spelled(file.partition), _UNKNOWN)
        return tuple(None if place is None else values[place] for place in known)

    return partition


def _size_bytes(tasks: Sequence[FileScanTask]) -> int:
    return sum(task.file.file_size_in_bytes for task in tasks)

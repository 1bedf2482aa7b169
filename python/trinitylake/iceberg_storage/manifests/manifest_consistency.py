"""Consistency of manifests and data files of clients: whether partition values, metrics and counts agree.

Readers skip files by their partition values and by the bounds of their columns. If these contradict each other, the
filter of a query decides whether the query finds a row. DuckDB 1.5.5, for example, computes the day of a `timestamptz`
in the time zone of its session, and Iceberg in UTC.

The range of source values of a partition value must overlap the bounds of the source column. Bounds of strings may be
truncated, so they need not be values of rows. For the transform `bucket`, the partition value is checked only if both
bounds are equal. A column without bounds is not checked. Rows with NaN are in the partition NaN, other rows are not.

Readers compare the sequence numbers of a delete file and a data file, and writers drop delete files that are older than
every `min_sequence_number`. So no live file of a snapshot may be newer than the snapshot, or older than the minimum in
the manifest list.

Data files are not opened, and a data file that does not exist is not noticed (decision 0057).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyiceberg import types as iceberg
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddPartitionSpecUpdate, AddSchemaUpdate, TableUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, VoidTransform

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.column_summary import of_metrics, of_partition
from trinitylake.iceberg_storage.data_files.partitioned_rows import shown
from trinitylake.iceberg_storage.metadata_invariants import MAX_LONG

#: The lowest numbers of 32 and 64 bits. The truncation of numbers close to them is the lowest number.
_LOWEST = (-(2**31), -(2**63))
#: Engines cut bounds after 16 characters or more, so longer bounds may be equal although the values are not.
_WHOLE_TEXT_MAX_LENGTH = 15
#: Maximum number of rows per byte of a Parquet file: a page takes more than one byte and has at most 2^31 - 1 rows.
_MAX_ROWS_PER_BYTE = 2**31 - 1
#: Possible sizes of a bound in bytes. A widened column may have bounds of its former type. Java fails on other sizes.
_BOUND_SIZES: dict[type[iceberg.IcebergType], tuple[int, ...]] = {
    iceberg.BooleanType: (1,),
    iceberg.IntegerType: (4,),
    iceberg.LongType: (4, 8),
    iceberg.FloatType: (4,),
    iceberg.DoubleType: (4, 8),
    iceberg.DateType: (4,),
    iceberg.TimeType: (8,),
    iceberg.TimestampType: (4, 8),
    iceberg.TimestamptzType: (8,),
    iceberg.TimestampNanoType: (4, 8),
    iceberg.TimestamptzNanoType: (8,),
    iceberg.UUIDType: (16,),
}


class SpecsAndSchemas(NamedTuple):
    """The partition specs and schemas that the manifests of a commit may use."""

    specs: Mapping[int, PartitionSpec]
    schemas: Sequence[Schema]

    @classmethod
    def after(cls, metadata: TableMetadata | None, updates: Iterable[TableUpdate]) -> SpecsAndSchemas:
        """Specs and schemas of a table and of updates to it. `metadata` is None for a new table."""
        specs = {} if metadata is None else metadata.specs()
        schemas = [] if metadata is None else list(metadata.schemas)
        for update in updates:
            if isinstance(update, AddSchemaUpdate):
                schemas.append(update.schema_)
            elif isinstance(update, AddPartitionSpecUpdate):
                is_chosen = "spec_id" in update.spec.model_fields_set and update.spec.spec_id >= 0
                specs[update.spec.spec_id if is_chosen else max(specs, default=-1) + 1] = update.spec
        return cls(specs, schemas)

    def type_of(self, source_id: int) -> iceberg.PrimitiveType | None:
        """The type of a column in the newest schema that has it; None for a nested or unknown column."""
        for schema in reversed(self.schemas):
            if source_id in schema.field_ids:
                found: iceberg.IcebergType = schema.find_type(source_id)
                return found if isinstance(found, iceberg.PrimitiveType) else None
        return None

    def columns(self) -> dict[int, iceberg.PrimitiveType]:
        """The types of primitive top-level columns by id. The newest schema that has the column decides."""
        return {
            field.field_id: field.field_type
            for schema in self.schemas
            for field in schema.fields
            if isinstance(field.field_type, iceberg.PrimitiveType)
        }


class FileCheck:
    """Checks files of one partition spec, one after the other.

    `check` raises `InvalidArgument` for a file with contradictory fields, and for a data file that occurs twice.
    """

    def __init__(self, spec: PartitionSpec, known: SpecsAndSchemas, paths: set[str] | None = None) -> None:
        self._fields = [(field, known.type_of(field.source_id)) for field in spec.fields]
        self._columns = known.columns()
        self._paths: set[str] = set() if paths is None else paths

    def check(self, file: DataFile) -> None:
        path = file.file_path
        for count, what in ((file.record_count, "rows"), (file.file_size_in_bytes, "bytes")):
            if count is None or count < 0:
                raise InvalidArgument(f"file {path} has {count} {what}")
        for metric in ("value_counts", "null_value_counts", "nan_value_counts", "column_sizes"):
            for id, count in (getattr(file, metric) or {}).items():
                if not 0 <= count <= MAX_LONG:  # PyIceberg reads -1 as 2^64 - 1
                    raise InvalidArgument(f"file {path}: {metric} of column {id} is {count}, outside of 0 to 2^63 - 1")
        if not file.file_size_in_bytes:
            raise InvalidArgument(f"file {path} has 0 bytes, and a file of {file.file_format.value} has more")
        if any(offset > file.file_size_in_bytes for offset in file.split_offsets or ()):
            raise InvalidArgument(f"file {path} has {file.file_size_in_bytes} bytes, and a split offset after its end")
        _check_format(file)
        if is_delete(file):
            return
        if path in self._paths:
            raise InvalidArgument(f"file {path} is listed twice, so readers would return its rows twice")
        self._paths.add(path)
        _check_metrics(file, self._columns)
        for position, (field, type) in enumerate(self._fields):
            try:
                _check_value(field, type, file.partition[position], file)
            except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"file {path} has an impossible value of partition field {field.name}: {error}"
                ) from error


class ManifestCheck:
    """Checks the entries of one manifest, one after the other.

    Args:
        sequence_number: of the snapshot whose list names the manifest.
        known: the specs and schemas of the table.
        partition_ids: the ids of the partition fields in the manifest.
        paths: the live data files in the manifests of the snapshot that are already checked. `check` adds to them.

    Raises `InvalidArgument` for a contradiction, and for a partition spec that the table does not have.
    """

    def __init__(
        self,
        manifest: ManifestFile,
        sequence_number: int,
        known: SpecsAndSchemas,
        partition_ids: Sequence[int],
        paths: set[str] | None = None,
    ) -> None:
        self._manifest = manifest
        self._numbers = manifest.min_sequence_number or 0, sequence_number
        spec = known.specs.get(manifest.partition_spec_id)
        if spec is None:
            raise InvalidArgument(
                f"manifest {manifest.manifest_path} has partition spec {manifest.partition_spec_id}, "
                "which the table does not have"
            )
        ids = [field.field_id for field in spec.fields]
        if len(ids) != len(partition_ids) or (all(id >= 0 for id in ids) and list(partition_ids) != ids):
            raise InvalidArgument(
                f"manifest {manifest.manifest_path} has the partition fields {list(partition_ids)}, "
                f"and partition spec {spec.spec_id} has {ids}"
            )
        self._file_check = FileCheck(spec, known, paths)
        self._files: dict[ManifestEntryStatus, int] = dict.fromkeys(ManifestEntryStatus, 0)
        self._rows: dict[ManifestEntryStatus, int] = dict.fromkeys(ManifestEntryStatus, 0)

    def check(self, entry: ManifestEntry) -> None:
        file = entry.data_file
        self._files[entry.status] += 1
        self._rows[entry.status] += file.record_count
        if entry.status == ManifestEntryStatus.DELETED:
            return
        if is_delete(file) != (self._manifest.content == ManifestContent.DELETES):
            raise InvalidArgument(f"a manifest must not contain both data files and delete files: {file.file_path}")
        number, (least, most) = entry.sequence_number, self._numbers
        if number is None and entry.status == ManifestEntryStatus.ADDED:
            number = self._manifest.sequence_number
        if number is not None and not least <= number <= most:
            raise InvalidArgument(
                f"file {file.file_path} has the sequence number {number}, but its manifest has {least} as the minimum, "
                f"and its snapshot has the number {most}"
            )
        self._file_check.check(file)

    def check_counts(self) -> None:
        """Compare the counts in the manifest list with the checked entries. Must be called after the last entry."""
        manifest = self._manifest
        for status, files, rows in (
            (ManifestEntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
            (ManifestEntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
            (ManifestEntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
        ):
            for recorded, found, what in ((files, self._files[status], "files"), (rows, self._rows[status], "rows")):
                if recorded is not None and recorded != found:
                    raise InvalidArgument(
                        f"manifest {manifest.manifest_path} has {found} {status.name.lower()} {what}, "
                        f"but the manifest list records {recorded}"
                    )


def is_delete(file: DataFile) -> bool:
    """Whether a file lists deleted rows."""
    return file.content not in (None, DataFileContent.DATA)


def _check_format(file: DataFile) -> None:
    path, format = file.file_path, file.file_format
    ending = path.rpartition(".")[2].upper()
    if ending in FileFormat.__members__ and ending != format.name:
        raise InvalidArgument(
            f"file {path} has the format {format.value} in its manifest, but the suffix of another format"
        )
    if format == FileFormat.PUFFIN and not is_delete(file):
        raise InvalidArgument(f"file {path} is a data file, but Puffin files have no rows")
    if format == FileFormat.PARQUET and file.record_count > file.file_size_in_bytes * _MAX_ROWS_PER_BYTE:
        raise InvalidArgument(
            f"file {path} has {file.record_count} rows in {file.file_size_in_bytes} bytes, which is impossible"
        )


def _check_metrics(file: DataFile, columns: Mapping[int, iceberg.PrimitiveType]) -> None:
    """Check that the counts and bounds of the columns of a data file agree, because readers use them to skip files."""
    for id, count in (file.value_counts or {}).items():
        nulls = (file.null_value_counts or {}).get(id, 0)
        if nulls > count or (id in columns and count != file.record_count):
            raise InvalidArgument(
                f"file {file.file_path} has {file.record_count} rows, and {count} values of column {id}, of which "
                f"{nulls} are NULL"
            )
    for id, bound in (*(file.lower_bounds or {}).items(), *(file.upper_bounds or {}).items()):
        if not file.record_count:
            raise InvalidArgument(f"file {file.file_path} has 0 rows, and bounds of column {id}")
        sizes = _BOUND_SIZES.get(type(columns[id])) if id in columns else None
        if sizes is not None and len(bound) not in sizes:
            raise InvalidArgument(
                f"file {file.file_path} has a bound of {len(bound)} bytes for column {id}, whose type is {columns[id]}"
            )
    for id in (file.lower_bounds or {}).keys() & (file.upper_bounds or {}).keys() & columns.keys():
        column = of_metrics(file, id, columns[id])
        if not column.values:
            raise InvalidArgument(f"file {file.file_path} has bounds of column {id}, and only NULL or NaN in it")
        if isinstance(columns[id], iceberg.UUIDType):  # Java compares them as signed numbers
            continue
        if column.lower is not None and column.upper is not None and column.lower > column.upper:
            raise InvalidArgument(f"file {file.file_path} has a lower bound of column {id} above the upper bound")


def _check_value(field: PartitionField, type: iceberg.PrimitiveType | None, value: Any, file: DataFile) -> None:
    """Check the value of one partition field of a file against the metrics of its source column."""
    what = f"file {file.file_path} is in partition {field.name} = {value!r}"
    if isinstance(field.transform, VoidTransform):
        if value is not None:
            raise InvalidArgument(f"{what}, and the field has the transform void, which makes NULL of every value")
        return
    nulls = (file.null_value_counts or {}).get(field.source_id)
    if value is not None and nulls:
        raise InvalidArgument(f"{what}, and {nulls} rows have NULL in the source column")
    nans = (file.nan_value_counts or {}).get(field.source_id)
    if nans and not (isinstance(value, float) and math.isnan(value)):
        raise InvalidArgument(f"{what}, and {nans} rows have NaN in the source column")
    if isinstance(field.transform, BucketTransform) and not 0 <= (value or 0) < field.transform.num_buckets:
        raise InvalidArgument(f"{what}, and the field has {field.transform.num_buckets} buckets")
    if type is None:
        return
    column = of_metrics(file, field.source_id, type)
    lower, upper = column.lower, column.upper
    if lower is None or upper is None:
        return
    if value is None:
        raise InvalidArgument(f"{what}, and the source column has bounds, so it has values")
    partition = of_partition(field, type, value)
    if isinstance(field.transform, BucketTransform):
        if lower == upper and not _may_be_cut(type, lower) and not partition.has_bucket_of(lower):
            raise InvalidArgument(f"{what}, and the rows have the value {lower!r}, which is in another bucket")
        return
    if isinstance(type, iceberg.UUIDType) and lower != upper:
        return  # Java compares UUIDs as signed numbers
    if isinstance(type, iceberg.DoubleType):  # some decoders round partition values to 32 bits
        lower, upper = min(lower, _rounded(lower)), max(upper, _rounded(upper))
    is_truncated = not (isinstance(field.transform, TruncateTransform) and isinstance(value, int)) or (
        value % field.transform.width == 0 or value in _LOWEST
    )
    may_share = partition.values and partition.may_share(replace(column, lower=lower, upper=upper))
    if not (is_truncated and may_share):
        low, high = (shown(IdentityTransform(), type, bound) for bound in (column.lower, column.upper))
        raise InvalidArgument(
            f"{what}, and the source column has values from {low} to {high}: compute partition values as Iceberg does, "
            "times in UTC"
        )


def _may_be_cut(type: iceberg.PrimitiveType, bound: Any) -> bool:
    """Whether a bound may be truncated, or has a type for which PyIceberg's `bucket` differs from Iceberg's."""
    is_cut = isinstance(type, iceberg.StringType | iceberg.BinaryType) and len(bound) > _WHOLE_TEXT_MAX_LENGTH
    return is_cut or isinstance(type, iceberg.TimestampNanoType | iceberg.TimestamptzNanoType)


def _rounded(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)

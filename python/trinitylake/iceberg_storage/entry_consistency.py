"""Consistency of manifests that clients wrote: what one says of a file agrees with itself.

Readers skip files by their partition values and by the bounds of their columns. Where these contradict each other, a
query finds a row or not, depending on its filter. DuckDB 1.5.5 computes the day of a `timestamptz` in the time zone of
its session, for example, and Iceberg in UTC.

Partition values must lie between what their transform makes of the lower and of the upper bound of the column. Bounds
of texts may be cut off, so they are no more than bounds. Where both are equal, the column has one value, and `bucket`
is checked as well. A column without bounds, or with bounds that cannot be decoded, is not checked.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddPartitionSpecUpdate, AddSchemaUpdate, TableUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.metadata_invariants import MAX_LONG

_INTEGERS = (
    DateType,
    IntegerType,
    LongType,
    TimeType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)
_NANOS = (TimestampNanoType, TimestamptzNanoType)
_MICROS_OF_HOUR, _MICROS_OF_DAY = 3_600_000_000, 86_400_000_000
_EPOCH_YEAR = 1970
#: Engines cut texts off after 16 characters, if not after more. Those may be equal by that alone.
_WHOLE_TEXT_MAX_LENGTH = 15


class Layout(NamedTuple):
    """The partition specs and columns that manifests of a commit may be about."""

    specs: Mapping[int, PartitionSpec]
    schemas: Sequence[Schema]

    @classmethod
    def after(cls, metadata: TableMetadata | None, updates: Iterable[TableUpdate]) -> Layout:
        """Those of a table, None for a new one, and those that updates add to it."""
        specs = {} if metadata is None else metadata.specs()
        schemas = [] if metadata is None else list(metadata.schemas)
        for update in updates:
            if isinstance(update, AddSchemaUpdate):
                schemas.append(update.schema_)
            elif isinstance(update, AddPartitionSpecUpdate):
                is_chosen = "spec_id" in update.spec.model_fields_set and update.spec.spec_id >= 0
                specs[update.spec.spec_id if is_chosen else max(specs, default=-1) + 1] = update.spec
        return cls(specs, schemas)

    def type_of(self, source_id: int) -> PrimitiveType | None:
        """The type of a column in the newest schema that has it; None for one that is not primitive, or not there."""
        for schema in reversed(self.schemas):
            if source_id in schema.field_ids:
                found: IcebergType = schema.find_type(source_id)
                return found if isinstance(found, PrimitiveType) else None
        return None


class ManifestCheck:
    """Checks the entries of one manifest, one after the other.

    Raises `InvalidArgument` for what contradicts itself, and for a partition spec that the table does not have.
    """

    def __init__(self, manifest: ManifestFile, layout: Layout, partition_ids: Sequence[int]) -> None:
        self._manifest = manifest
        spec = layout.specs.get(manifest.partition_spec_id)
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
        self._fields = [(field, layout.type_of(field.source_id)) for field in spec.fields]
        self._files: dict[ManifestEntryStatus, int] = dict.fromkeys(ManifestEntryStatus, 0)
        self._rows: dict[ManifestEntryStatus, int] = dict.fromkeys(ManifestEntryStatus, 0)

    def check(self, entry: ManifestEntry) -> None:
        """Check one entry."""
        file, path = entry.data_file, entry.data_file.file_path
        self._files[entry.status] += 1
        self._rows[entry.status] += file.record_count
        if entry.status == ManifestEntryStatus.DELETED:
            return
        is_delete = file.content not in (None, DataFileContent.DATA)
        if is_delete != (self._manifest.content == ManifestContent.DELETES):
            raise InvalidArgument(f"data files and delete files have manifests of their own: {path}")
        for count, what in ((file.record_count, "rows"), (file.file_size_in_bytes, "bytes")):
            if count is None or count < 0:
                raise InvalidArgument(f"file {path} has {count} {what}")
        for counts in (file.value_counts, file.null_value_counts, file.nan_value_counts, file.column_sizes):
            if any(not 0 <= count <= MAX_LONG for count in (counts or {}).values()):  # PyIceberg reads -1 as 2^64 - 1
                raise InvalidArgument(f"file {path} counts less than nothing in a column")
        if is_delete:
            return
        for position, (field, type) in enumerate(self._fields):
            try:
                _check_value(field, type, file.partition[position], file)
            except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"file {path} has a value of partition field {field.name} that is none: {error}"
                ) from error

    def check_counts(self) -> None:
        """Check what the list of manifests says of this one, after its last entry."""
        manifest = self._manifest
        for status, files, rows in (
            (ManifestEntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
            (ManifestEntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
            (ManifestEntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
        ):
            for told, found, what in ((files, self._files[status], "files"), (rows, self._rows[status], "rows")):
                if told is not None and told != found:
                    raise InvalidArgument(
                        f"manifest {manifest.manifest_path} has {found} {status.name.lower()} {what}, "
                        f"and the list of manifests says {told}"
                    )


def _check_value(field: PartitionField, type: PrimitiveType | None, value: Any, file: DataFile) -> None:
    """Check the value of one partition field of a file against what the file says of the column."""
    transform, id = field.transform, field.source_id
    what = f"file {file.file_path} is in partition {field.name} = {value!r}"
    if isinstance(transform, VoidTransform):
        if value is not None:
            raise InvalidArgument(f"{what}, and nothing is made of the column")
        return
    nulls = (file.null_value_counts or {}).get(id)
    if value is not None and nulls:
        raise InvalidArgument(f"{what}, and {nulls} rows have no value there")
    bounds = [_decoded(type, (known or {}).get(id)) for known in (file.lower_bounds, file.upper_bounds)]
    if type is None or any(bound is None for bound in bounds):
        return
    if value is None:
        raise InvalidArgument(f"{what}, and the bounds of the column tell of values")
    lower, upper = bounds
    if isinstance(value, float) and math.isnan(value):
        return  # bounds tell nothing of NaN
    if (expected := _range(transform, type, lower, upper)) is None:
        return
    least, most = expected
    found = _comparable(type, value) if isinstance(transform, IdentityTransform | TruncateTransform) else value
    if not least <= found <= most:
        made = f"{least!r}" if least == most else f"{least!r} to {most!r}"
        raise InvalidArgument(
            f"{what}, and {transform} of its rows is {made}: compute partition values as Iceberg does, times in UTC"
        )


def _range(transform: Transform[Any, Any], type: PrimitiveType, lower: Any, upper: Any) -> tuple[Any, Any] | None:
    """What a transform makes of values from `lower` to `upper`; None where that is not known."""
    if isinstance(transform, BucketTransform):
        return _bucket(transform, type, lower) if lower == upper and not isinstance(type, _NANOS) else None
    if isinstance(type, UUIDType) and lower != upper:
        return None  # Java compares them as signed numbers
    made: Callable[[Any], Any]
    match transform:
        case IdentityTransform():
            if isinstance(type, DoubleType):  # some decoders round partition values to 32 bits
                return min(lower, _rounded(lower)), max(upper, _rounded(upper))
            return lower, upper
        case TruncateTransform(width=width):
            made = lambda value: _truncated(type, value, width)  # noqa: E731
        case DayTransform():
            made = lambda value: _days(type, value)  # noqa: E731
        case HourTransform():
            made = lambda value: _micros(type, value) // _MICROS_OF_HOUR  # noqa: E731
        case MonthTransform():
            made = lambda value: months_of(_days(type, value))  # noqa: E731
        case YearTransform():
            made = lambda value: months_of(_days(type, value)) // 12  # noqa: E731
        case _:
            return None
    return made(lower), made(upper)


def _decoded(type: PrimitiveType | None, data: bytes | None) -> Any:
    """A bound as something that can be compared: a number, or bytes. None for none, and for what is no such value."""
    if type is None or data is None:
        return None
    match type:
        case BooleanType() if len(data) == 1:
            return data[0] != 0
        case IntegerType() | DateType() if len(data) == 4:
            return int.from_bytes(data, "little", signed=True)
        case _ if isinstance(type, _INTEGERS) and len(data) in (4, 8):  # 4 before it was made wider
            return int.from_bytes(data, "little", signed=True)
        case FloatType() | DoubleType() if len(data) in (4, 8):
            number = struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
            return None if math.isnan(number) else number
        case DecimalType() if data:
            return int.from_bytes(data, "big", signed=True)
        case StringType() | BinaryType() | FixedType() | UUIDType():
            return data
    return None


def _comparable(type: PrimitiveType, value: Any) -> Any:
    """A partition value of a column's own type, as `_decoded` gives bounds."""
    match value:
        case Decimal():
            assert isinstance(type, DecimalType)
            return int(value.scaleb(type.scale))
        case str():
            return value.encode()
        case UUID():
            return value.bytes
    return value


def _truncated(type: PrimitiveType, value: Any, width: int) -> Any:
    if isinstance(type, StringType):
        return value.decode(errors="replace")[:width].encode()
    return value[:width] if isinstance(value, bytes) else value - value % width


def _bucket(transform: BucketTransform[Any], type: PrimitiveType, bound: Any) -> tuple[int, int] | None:
    value = bound
    if isinstance(bound, bytes):
        if len(bound) > _WHOLE_TEXT_MAX_LENGTH and not isinstance(type, UUIDType | FixedType):
            return None
        value = bound.decode(errors="replace") if isinstance(type, StringType) else bound
        value = UUID(bytes=bound) if isinstance(type, UUIDType) and len(bound) == 16 else value
    elif isinstance(type, DecimalType):
        value = Decimal(bound).scaleb(-type.scale)
    found = transform.transform(type)(value)
    return None if found is None else (found, found)


def _micros(type: PrimitiveType, value: int) -> int:
    return value // 1000 if isinstance(type, _NANOS) else value


def _days(type: PrimitiveType, value: int) -> int:
    return value if isinstance(type, DateType) else _micros(type, value) // _MICROS_OF_DAY


def months_of(days: int) -> int:
    """Months since 1970 of a day of the proleptic Gregorian calendar, of any year."""
    shifted = days + 719_468  # days since March 1st of the year 0, in eras of 400 years
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153  # from March on
    return (era * 400 + year_of_era - _EPOCH_YEAR) * 12 + month + 2


def _rounded(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)

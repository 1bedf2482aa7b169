"""Invariants of Iceberg table metadata, checked for every commit over REST or in Python.

Java's `TableMetadata` and `PartitionSpec` and iceberg-rust refuse to load a table that violates an invariant. PyIceberg
does not check most invariants when it applies updates, so its commits could make a table unreadable for other engines.

`check_schema`, `check_spec`, `check_order`, `check_ref` and `check_snapshot` check the content of one update, and
`check_metadata` checks the result. All raise `ValueError`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import pairwise
from uuid import UUID

from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
)

from trinitylake.definitions.sql_type_grammar import check_depth
from trinitylake.iceberg_storage.schema_compatibility import all_fields, check_evolution, parts_of
from trinitylake.iceberg_storage.table_properties import is_number

MAX_INTEGER = 2**31 - 1
MAX_LONG = 2**63 - 1
#: Maximum column id; larger ids belong to metadata columns.
MAX_COLUMN_ID = MAX_INTEGER - 200
MAX_DECIMAL_PRECISION = 38
#: Maximum distance of a new sequence number from the last one. Larger steps could reach the end of 64 bits.
MAX_SEQUENCE_GAP = MAX_INTEGER
#: Maximum number of rows that a snapshot adds, for the same reason.
MAX_ADDED_ROWS = 1 << 48
#: Maximum time by which an entry of a log may be older than the previous entry. Java, Rust and Go refuse larger
#: differences.
CLOCK_TOLERANCE_MILLIS = 60_000
#: Counters in the summary of a snapshot. Writers add their counts to the totals of the previous snapshot.
COUNTERS = frozenset(
    f"{prefix}-{counted}"
    for prefixes, counted in (
        (("total", "added", "deleted"), "data-files"),
        (("total", "added", "deleted"), "records"),
        (("total", "added", "removed"), "delete-files"),
        (("total", "added", "removed"), "position-deletes"),
        (("total", "added", "removed"), "equality-deletes"),
        (("total", "added", "removed"), "files-size"),
        (("added", "removed"), "position-delete-files"),
        (("added", "removed"), "equality-delete-files"),
    )
    for prefix in prefixes
)


_LARGEST_FLOAT = 3.4028234663852886e38
#: Python types of default values.
_PYTHON_TYPES: dict[type, type] = {
    iceberg.BooleanType: bool,
    iceberg.StringType: str,
    iceberg.DateType: date,
    iceberg.TimeType: time,
    iceberg.TimestampType: datetime,
    iceberg.TimestamptzType: datetime,
    iceberg.TimestampNanoType: int,
    iceberg.TimestamptzNanoType: int,
    iceberg.UUIDType: UUID,
    iceberg.BinaryType: bytes,
}


def check_schema(schema: Schema) -> None:
    """Check ids, types and levels of columns. PyIceberg checks their names."""
    _check_number(schema.schema_id, "the id of a schema", least=-1)
    for field in schema.fields:
        check_depth(parts_of(field.field_type), lambda part: parts_of(part.field_type))
    known: set[int] = set()
    for field in all_fields(schema.as_struct()):
        what = f"column {field.name!r}"
        _check_number(field.field_id, f"the id of {what}", most=MAX_COLUMN_ID)
        if field.field_id in known:
            raise ValueError(f"two columns have the id {field.field_id}")
        known.add(field.field_id)
        match field.field_type:
            case iceberg.FixedType(root=length):
                _check_number(length, f"the length of {what}", least=1)
            case iceberg.DecimalType(precision=precision, scale=scale):
                _check_number(precision, f"the precision of {what}", least=1, most=MAX_DECIMAL_PRECISION)
                _check_number(scale, f"the scale of {what}", most=precision)
            case iceberg.UnknownType() if field.required:
                raise ValueError(f"{what} has the type unknown, whose only value is NULL, and is required")
        for default in (field.initial_default, field.write_default):
            if default is not None and not _is_value(default, field.field_type):
                raise ValueError(
                    f"the default value {str(default)[:100]!r} of {what} is not a valid {field.field_type}"
                )


def _is_value(value: object, type: iceberg.IcebergType) -> bool:
    """Whether a value is a valid default of a type. Nested types can only have the default NULL."""
    match type:
        case iceberg.IntegerType() | iceberg.LongType():
            limit = 1 << (31 if isinstance(type, iceberg.IntegerType) else 63)
            return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        case iceberg.DecimalType(precision=precision, scale=scale):
            if not isinstance(value, Decimal) or not value.is_finite():
                return False
            return value.as_tuple().exponent == -scale and value.adjusted() < precision - scale
        case iceberg.FloatType() | iceberg.DoubleType():  # JSON has no infinity, and Java does not accept 1 for 1.0
            largest = _LARGEST_FLOAT if isinstance(type, iceberg.FloatType) else sys.float_info.max
            return isinstance(value, float) and -largest <= value <= largest
        case iceberg.FixedType(root=length):
            return isinstance(value, bytes) and len(value) == length
    return isinstance(value, _PYTHON_TYPES.get(type.__class__, ()))


def check_spec(spec: PartitionSpec, schemas: Sequence[Schema]) -> None:
    _check_number(spec.spec_id, "the id of a partition spec", least=-1)
    ids: set[int] = set()
    names: set[str] = set()
    derived: set[tuple[int, str]] = set()
    for field in spec.fields:
        what = f"partition field {field.name!r}"
        _check_number(field.field_id, f"the id of {what}")
        _check_transform(field.transform)
        if not field.name:
            raise ValueError(f"partition field {field.field_id} has no name")
        if "\0" in field.name:  # DuckDB ends its process when it reads a manifest with such a name
            raise ValueError(f"the name of {what} has the character U+0000")
        if field.name in names:
            raise ValueError(f"two partition fields have the name {field.name!r}")
        if field.field_id in ids:
            raise ValueError(f"two partition fields have the id {field.field_id}")
        if not any(field.source_id in schema.field_ids for schema in schemas):
            raise ValueError(f"{what} has the source column {field.source_id}, which the table does not have")
        # As in Iceberg for Java, `day` and `hour` of a column may coexist.
        key = (field.source_id, str(field.transform))
        if key in derived and not isinstance(field.transform, VoidTransform):
            raise ValueError(f"{what} repeats another partition field: column {field.source_id} by {field.transform}")
        ids.add(field.field_id)
        names.add(field.name)
        derived.add(key)


def check_field_ids(spec: PartitionSpec, others: Iterable[PartitionSpec]) -> None:
    """Check that a field id has the same meaning in all partition specs, because readers merge specs by these ids."""
    known = {field.field_id: field for other in others for field in other.fields}
    for field in spec.fields:
        other = known.get(field.field_id)
        if other is not None and not _is_same_field(field, other):
            raise ValueError(
                f"partition field {field.name!r} has the id {field.field_id} of partition field {other.name!r}"
            )


def check_order(order: SortOrder, schemas: Sequence[Schema]) -> None:
    _check_number(order.order_id, "the id of a sort order", least=-1)
    for field in order.fields:
        _check_transform(field.transform)
        if not any(field.source_id in schema.field_ids for schema in schemas):
            raise ValueError(f"the sort order needs column {field.source_id}, which the table does not have")


def check_ref(update: SetSnapshotRefUpdate) -> None:
    """Check the retention of a branch or tag, and that `main` is a branch."""
    if update.type == "tag":
        if update.ref_name == MAIN_BRANCH:
            raise ValueError(f"{MAIN_BRANCH} must be a branch, not a tag")
        if update.min_snapshots_to_keep is not None or update.max_snapshot_age_ms is not None:
            raise ValueError(
                "a tag keeps one snapshot: min-snapshots-to-keep and max-snapshot-age-ms are for branches only"
            )
    if update.min_snapshots_to_keep is not None:
        _check_number(update.min_snapshots_to_keep, "min-snapshots-to-keep", least=1)
    for age in (update.max_snapshot_age_ms, update.max_ref_age_ms):
        if age is not None and age <= 0:
            raise ValueError(f"the maximum age of a branch or tag must be more than 0 ms, not {age} ms")


def check_snapshot(snapshot: Snapshot, metadata: TableMetadata) -> None:
    """Check a snapshot that is added to a table: its ids, its sequence number and its summary."""
    id = snapshot.snapshot_id
    _check_number(id, "the id of a snapshot", least=1, most=MAX_LONG)  # -1 stands for no snapshot
    if snapshot.parent_snapshot_id == id:
        raise ValueError(f"snapshot {id} is its own parent")
    if snapshot.schema_id is not None and metadata.schema_by_id(snapshot.schema_id) is None:
        raise ValueError(f"snapshot {id} has schema {snapshot.schema_id}, which the table does not have")
    number, following = snapshot.sequence_number or 0, metadata.next_sequence_number()
    # As in Iceberg for Java, a snapshot without a parent (of a replaced table) may have a sequence number that older
    # metadata used.
    least = following if snapshot.parent_snapshot_id is not None else min(following, 1)
    if not least <= number <= (following and following + MAX_SEQUENCE_GAP):  # in format version 1 all numbers are 0
        raise ValueError(f"snapshot {id} has sequence number {number}, but the next one of the table is {following}")
    if snapshot.summary is None:
        raise ValueError(f"snapshot {id} has no summary with its operation")
    for name, value in snapshot.summary.additional_properties.items():
        if not isinstance(value, str):  # Java and iceberg-rust accept only strings
            raise ValueError(f"the summary of snapshot {id} has {name} = {value!r}, which is not text")
        if name in COUNTERS and not is_number(value, MAX_LONG):
            raise ValueError(f"the summary of snapshot {id} has {name} = {value[:100]!r}, which is not a count")


def check_metadata(metadata: TableMetadata, base: TableMetadata | None = None) -> None:
    """Check complete metadata. Parts that `base` shares are skipped, because they are already checked."""
    if base is None or any(
        getattr(metadata, name) is not getattr(base, name)
        for name in (
            *("schemas", "partition_specs", "sort_orders", "default_spec_id", "current_schema_id"),
            *("last_column_id", "last_partition_id"),
        )
    ):
        _check_columns(metadata)
    if base is not None and (metadata.current_schema_id, metadata.current_snapshot_id) != (
        base.current_schema_id,
        base.current_snapshot_id,
    ):
        check_evolution(metadata, base)
    if base is None or any(
        getattr(metadata, name) is not getattr(base, name)
        for name in ("snapshots", "refs", "snapshot_log", "current_snapshot_id")
    ):
        check_history(metadata)


def _check_columns(metadata: TableMetadata) -> None:
    for ids, what in (
        ([one.schema_id for one in metadata.schemas], "schemas"),
        ([one.spec_id for one in metadata.partition_specs], "partition specs"),
        ([one.order_id for one in metadata.sort_orders], "sort orders"),
    ):
        if len(set(ids)) < len(ids):
            raise ValueError(f"two {what} of the table have one id: {sorted(ids)}")
    check_defaults(metadata)
    # With a lower number, a new column would get the id of a former column, and its values in existing files.
    columns = {id for one in metadata.schemas for id in one.field_ids}
    fields = {field.field_id for one in metadata.partition_specs for field in one.fields}
    for used, last, what in (
        (columns, metadata.last_column_id, "last-column-id"),
        (fields, metadata.last_partition_id, "last-partition-id"),
    ):
        if last is not None and max(used, default=0) > last:
            raise ValueError(f"the table has the id {max(used)}, but its {what} is {last}")
    schema = metadata.schema()
    for field in (one for spec in metadata.partition_specs for one in spec.fields):
        # Java binds all partition specs, not only the default spec, to the current schema.
        if field.source_id not in schema.field_ids:
            continue
        type = schema.find_type(field.source_id)
        if not isinstance(field.transform, UnknownTransform) and not field.transform.can_transform(type):
            raise ValueError(f"partition field {field.name!r}: {field.transform} does not apply to the type {type}")
        if _column_id(schema, field.name) not in (None, field.source_id):
            raise ValueError(
                f"partition field {field.name!r} has the name of a column, but is not the identity of that column"
            )
    for field in metadata.spec().fields:
        named = _column_id(schema, field.name)
        if schema.find_column_name(field.source_id) is None:
            # In format version 1, the partition field of a dropped column remains as `void`, also in a replaced table.
            # Another column may have its name.
            if isinstance(field.transform, VoidTransform):
                continue
            raise ValueError(
                f"partition field {field.name!r} needs column {field.source_id}, which the current schema does not have"
            )
        may_share = isinstance(field.transform, IdentityTransform | VoidTransform) and named == field.source_id
        if named is not None and not may_share:
            raise ValueError(
                f"partition field {field.name!r} has the name of a column, but is not the identity of that column"
            )


def check_defaults(metadata: TableMetadata) -> None:
    """Check that the current schema, spec and order exist. Otherwise PyIceberg would raise `StopIteration`."""
    if metadata.current_schema_id not in {one.schema_id for one in metadata.schemas}:
        raise ValueError(f"the table has no schema {metadata.current_schema_id}, its current-schema-id")
    if metadata.default_spec_id not in {one.spec_id for one in metadata.partition_specs}:
        raise ValueError(f"the table has no partition spec {metadata.default_spec_id}, its default-spec-id")
    if metadata.default_sort_order_id not in {one.order_id for one in metadata.sort_orders}:
        raise ValueError(f"the table has no sort order {metadata.default_sort_order_id}, its default-sort-order-id")


def check_history(metadata: TableMetadata) -> None:
    """Check snapshots, their parents, the log of current snapshots, branches and tags."""
    parents = {one.snapshot_id: one.parent_snapshot_id for one in metadata.snapshots}
    if len(parents) < len(metadata.snapshots):
        raise ValueError("two snapshots of the table have one id")
    check_parents(metadata.snapshots)
    last_number = metadata.next_sequence_number() - 1 if metadata.format_version > 1 else 0
    for snapshot in metadata.snapshots:
        if (snapshot.sequence_number or 0) > last_number:
            raise ValueError(
                f"snapshot {snapshot.snapshot_id} has sequence number {snapshot.sequence_number}, "
                f"but the last-sequence-number of the table is {last_number}"
            )
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in parents:
            raise ValueError(f"{name!r} points to snapshot {ref.snapshot_id}, which the table does not have")
    main = metadata.refs.get(MAIN_BRANCH)
    if (None if main is None else main.snapshot_id) != metadata.current_snapshot_id:
        raise ValueError(
            f"current-snapshot-id is {metadata.current_snapshot_id}, but {MAIN_BRANCH} is at another snapshot"
        )
    times = [*(entry.timestamp_ms for entry in metadata.snapshot_log), metadata.last_updated_ms]
    for earlier, later in pairwise(times):
        if later < earlier - CLOCK_TOLERANCE_MILLIS:
            raise ValueError(f"the snapshot log is not in order of time: it goes back from {earlier} to {later} ms")


def check_parents(snapshots: Iterable[Snapshot]) -> None:
    """Check in linear time that no snapshot is its own ancestor."""
    parents = {one.snapshot_id: one.parent_snapshot_id for one in snapshots}
    ends: set[int] = set()
    for id in parents:
        path: dict[int, None] = {}
        following: int | None = id
        while following is not None and following in parents and following not in ends:
            if following in path:
                raise ValueError(f"snapshot {following} is its own ancestor")
            path[following] = None
            following = parents[following]
        ends.update(path)


def _column_id(schema: Schema, name: str) -> int | None:
    try:
        return schema.find_field(name).field_id
    except ValueError:
        return None


def _is_same_field(one: PartitionField, other: PartitionField) -> bool:
    """Whether two partition fields with the same id are equal. A removed field of format version 1 becomes `void`."""
    voids = isinstance(one.transform, VoidTransform) or isinstance(other.transform, VoidTransform)
    return one.source_id == other.source_id and (voids or one.transform == other.transform)


def _check_transform(transform: Transform[object, object]) -> None:
    match transform:
        case BucketTransform(num_buckets=number):
            _check_number(number, "the number of buckets", least=1)
        case TruncateTransform(width=width):
            _check_number(width, "a width to truncate to", least=1)


def _check_number(number: int, what: str, least: int = 0, most: int = MAX_INTEGER) -> None:
    if not least <= number <= most:
        raise ValueError(f"{what} must be a number from {least} to {most}, not {number}")

"""Numbers that every reader of Iceberg can read.

Ids, widths and lengths have 32 bits in Iceberg, and Python has no limit. A table with a larger one, or with what
Iceberg for Java refuses when it reads, could be loaded by nobody but Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.transforms import BucketTransform, Transform, TruncateTransform
from pyiceberg.types import FixedType, IcebergType, ListType, MapType, NestedField, StructType

MAX_INTEGER = 2**31 - 1
#: Of columns; larger ones are those of metadata columns.
MAX_COLUMN_ID = MAX_INTEGER - 200


def check_schema(schema: Schema) -> None:
    """Raises `ValueError` for ids that are no 32 bits, reserved, or there twice, and for lengths that are none."""
    _check(schema.schema_id, "the id of a schema")
    known: set[int] = set()
    for field in _fields(schema.as_struct()):
        _check(field.field_id, f"the id of column {field.name!r}", most=MAX_COLUMN_ID)
        if field.field_id in known:
            raise ValueError(f"two columns have the id {field.field_id}")
        known.add(field.field_id)
        if isinstance(field.field_type, FixedType):
            _check(field.field_type.root, f"the length of column {field.name!r}")


def check_spec(spec: PartitionSpec) -> None:
    """Raises `ValueError` for ids that are no 32 bits, and for transforms that nobody can compute."""
    _check(spec.spec_id, "the id of a partition spec")
    for field in spec.fields:
        _check(field.field_id, f"the id of partition field {field.name!r}")
        _check_transform(field.transform)


def check_order(order: SortOrder) -> None:
    """Raises `ValueError` for an id that is no 32 bits or is that of no order, and for transforms as in a spec."""
    _check(order.order_id, "the id of a sort order")
    if not order.order_id and order.fields:
        raise ValueError("the sort order 0 is that of tables without an order: it has no fields")
    for field in order.fields:
        _check_transform(field.transform)


def check_ref(update: SetSnapshotRefUpdate) -> None:
    """Raises `ValueError` for a branch or tag that keeps what is no age or number, and for a tag named `main`."""
    if update.type == "tag":
        if update.ref_name == MAIN_BRANCH:
            raise ValueError(f"{MAIN_BRANCH} is a branch, and not a tag")
        if update.min_snapshots_to_keep is not None or update.max_snapshot_age_ms is not None:
            raise ValueError("a tag keeps one snapshot: it has neither min-snapshots-to-keep nor max-snapshot-age-ms")
    if update.min_snapshots_to_keep is not None:
        _check(update.min_snapshots_to_keep, "min-snapshots-to-keep", least=1)
    for age in (update.max_snapshot_age_ms, update.max_ref_age_ms):
        if age is not None and age <= 0:
            raise ValueError(f"an age that branches and tags keep is more than nothing, not {age} ms")


def _fields(type: IcebergType) -> Iterator[NestedField]:
    rest = [type]
    while rest:
        match rest.pop():
            case StructType(fields=found):
                children = list(found)
            case ListType() as one:
                children = [one.element_field]
            case MapType() as one:
                children = [one.key_field, one.value_field]
            case _:
                continue
        yield from children
        rest += [child.field_type for child in children]


def _check_transform(transform: Transform[object, object]) -> None:
    match transform:
        case BucketTransform(num_buckets=number):
            _check(number, "the number of buckets", least=1)
        case TruncateTransform(width=width):
            _check(width, "a width to truncate to", least=1)


def _check(number: int, what: str, least: int = 0, most: int = MAX_INTEGER) -> None:
    if not least <= number <= most:
        raise ValueError(f"{what} is a number from {least} to {most}, not {number}")

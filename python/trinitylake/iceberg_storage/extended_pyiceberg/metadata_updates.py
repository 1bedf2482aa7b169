"""Applies updates to table metadata with PyIceberg's code, without copying all of the metadata.

In addition to PyIceberg:

- Format version 3. The property `format-version` upgrades a table, as in Iceberg's Java library.
- The ids of schemas, partition specs and sort orders are assigned here, because a client may omit them and does not
  know which ids other clients use (they are read-only in the REST specification). If the table has an equal object, its
  id is used. If a client chose another id, this id stands for the assigned id in the rest of its commit.
- Times of snapshots ascend: a snapshot is never older than the table, and never in the future of this host. Java, Rust
  and Go refuse a snapshot log whose times decrease by more than a minute, as they can if the clocks of hosts differ.
- The result satisfies the invariants in `metadata_invariants.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from pyiceberg.partitioning import INITIAL_PARTITION_SPEC_ID, PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table import update as iceberg
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import INITIAL_SORT_ORDER_ID, UNSORTED_SORT_ORDER_ID, SortOrder

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage import metadata_invariants
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import check_schemas, indexed, upgraded
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE, fits
from trinitylake.iceberg_storage.snapshot_retention import without

Identified = TypeVar("Identified", Schema, PartitionSpec, SortOrder)

_FORMAT_VERSIONS = ("1", "2", "3")
#: The id that stands for the object that the commit added last.
LAST_ADDED = -1
#: The id of a partition field whose id is not assigned yet.
NO_FIELD_ID = -1


class AssignedIds:
    """The ids of the schemas, partition specs or sort orders of one table, or of the schemas or versions of one view.

    Attributes:
        known: all ids.
        last_added: the id of the object that was added last.
    """

    def __init__(self, known: Iterable[tuple[str, int]], first: int) -> None:
        self._ids: dict[str, int] = {}
        self._next = first
        self.known: set[int] = set()
        for content, id in known:
            self.known.add(id)
            self._ids.setdefault(content, id)
            self._next = max(self._next, id + 1)
        self._given: dict[int, int] = {}
        self.last_added: int | None = None

    def give(self, content: str, chosen: int | None = None, default: int | None = None) -> tuple[int, bool]:
        """The id of the object with this content, and whether the object is new.

        Args:
            content: JSON of the object without its id.
            chosen: the id that the client chose, if any.
            default: the id of a new object, instead of the next number.
        """
        is_new = content not in self._ids
        if is_new:
            self._ids[content] = id = self._next if default is None else default
            self._next = max(self._next, id + 1)
            self.known.add(id)
        self.last_added = id = self._ids[content]
        if chosen is not None:
            self._given[chosen] = id
        return id, is_new

    def given(self, chosen: int) -> int:
        """The assigned id for an id that the client chose, or for `LAST_ADDED`."""
        if chosen == LAST_ADDED and self.last_added is not None:
            return self.last_added
        return self._given.get(chosen, chosen)

    @property
    def is_as_chosen(self) -> bool:
        """Whether all objects have the ids that the client chose."""
        return all(chosen in (id, LAST_ADDED) for chosen, id in self._given.items())


class MetadataBuilder:
    """Applies updates one by one. `metadata` is the result so far, an immutable value."""

    def __init__(self, base: TableMetadata) -> None:
        self.base = base
        self.metadata = base
        self._context = iceberg._TableMetadataUpdateContext()
        self._ids: dict[str, AssignedIds] = {}  # by the attribute that holds the id

    def apply(self, update: iceberg.TableUpdate) -> None:
        """Apply one update. Raises `ValueError`, or its subclass `InvalidArgument`, for an invalid update."""
        if isinstance(update, iceberg.SetPropertiesUpdate) and TableProperties.FORMAT_VERSION in update.updates:
            properties = dict(update.updates)
            self.apply(_upgrade_to(properties.pop(TableProperties.FORMAT_VERSION), self.metadata.format_version))
            update = iceberg.SetPropertiesUpdate(updates=properties)
        if isinstance(update, iceberg.UpgradeFormatVersionUpdate) and update.format_version == ROW_IDS_SINCE:
            self.metadata = upgraded(self.metadata)
            return
        applied = self._prepared(update)
        if applied is None:
            return
        before = self.metadata
        after = iceberg._apply_table_update(applied, before, self._context)
        if isinstance(applied, iceberg.RemoveSnapshotsUpdate):
            # PyIceberg would also remove the parent ids of later snapshots, so that they look like first snapshots, and
            # would leave gaps in the log of current snapshots.
            heads = {"refs": after.refs, "current_snapshot_id": after.current_snapshot_id}
            after = without(before, set(applied.snapshot_ids)).model_copy(update=heads)
        self.metadata = indexed(after)
        if isinstance(before, TableMetadataV1) or isinstance(self.metadata, TableMetadataV1):
            return
        # A snapshot without parent may have a lower one.
        if self.metadata.last_sequence_number < before.last_sequence_number:
            self.metadata = self.metadata.model_copy(update={"last_sequence_number": before.last_sequence_number})

    def _prepared(self, update: iceberg.TableUpdate) -> iceberg.TableUpdate | None:
        """The update that PyIceberg applies; None if the update has no effect. Raises as `apply` does."""
        match update:
            case iceberg.RemoveSnapshotsUpdate():  # retention may have removed some of the snapshots
                present = {one.snapshot_id for one in self.metadata.snapshots}
                ids = [id for id in update.snapshot_ids if id in present]
                return iceberg.RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}) if ids else None
            case iceberg.RemovePropertiesUpdate():  # properties may be absent, or named twice
                there = [name for name in dict.fromkeys(update.removals) if name in self.metadata.properties]
                return iceberg.RemovePropertiesUpdate(removals=there) if there else None
            case iceberg.AddSnapshotUpdate():
                return iceberg.AddSnapshotUpdate(snapshot=self._checked_snapshot(update.snapshot))
            case iceberg.AddSchemaUpdate():
                return self._new_schema(update)
            case iceberg.AddPartitionSpecUpdate():
                return self._new_spec(update)
            case iceberg.AddSortOrderUpdate():
                return self._new_order(update)
            case iceberg.SetCurrentSchemaUpdate(schema_id=id) if "schema_id" in self._ids:
                return iceberg.SetCurrentSchemaUpdate.model_validate({"schema-id": self._ids["schema_id"].given(id)})
            case iceberg.SetDefaultSpecUpdate(spec_id=id) if "spec_id" in self._ids:
                return iceberg.SetDefaultSpecUpdate.model_validate({"spec-id": self._ids["spec_id"].given(id)})
            case iceberg.SetDefaultSortOrderUpdate(sort_order_id=id) if "order_id" in self._ids:
                return iceberg.SetDefaultSortOrderUpdate.model_validate(
                    {"sort-order-id": self._ids["order_id"].given(id)}
                )
            case iceberg.SetSnapshotRefUpdate():
                metadata_invariants.check_ref(update)
            case iceberg.RemovePartitionSpecsUpdate() if self.metadata.snapshots:
                raise ValueError(
                    "partition specs of a table with snapshots cannot be removed, because files may use them"
                )
            case iceberg.RemoveSchemasUpdate():
                written = {one.schema_id for one in self.metadata.snapshots}
                if used := [id for id in update.schema_ids if id in written]:
                    raise ValueError(f"schema {used[0]} cannot be removed, because a snapshot uses it")
            case (
                iceberg.SetStatisticsUpdate(statistics=file)
                | iceberg.SetPartitionStatisticsUpdate(partition_statistics=file)
            ):
                if self.metadata.snapshot_by_id(file.snapshot_id) is None:
                    raise ValueError(f"statistics of snapshot {file.snapshot_id}, which the table does not have")
        return update

    def _new_schema(self, update: iceberg.AddSchemaUpdate) -> iceberg.AddSchemaUpdate | None:
        metadata_invariants.check_schema(update.schema_)
        schema = self._if_new(update.schema_, "schema_id", self.metadata.schemas, 0)
        return None if schema is None else iceberg.AddSchemaUpdate(schema=schema)

    def _new_spec(self, update: iceberg.AddPartitionSpecUpdate) -> iceberg.AddPartitionSpecUpdate | None:
        known = self.metadata.partition_specs
        spec = self._with_field_ids(update.spec)
        metadata_invariants.check_spec(spec, self.metadata.schemas)
        if (new := self._if_new(spec, "spec_id", known, INITIAL_PARTITION_SPEC_ID)) is None:
            return None
        metadata_invariants.check_field_ids(spec, known)
        return iceberg.AddPartitionSpecUpdate(spec=new)

    def _if_new(
        self, one: Identified, id_name: str, known: Sequence[Identified], first: int, default: int | None = None
    ) -> Identified | None:
        """The object with its assigned id; None if the table already has an equal object."""
        if id_name not in self._ids:
            self._ids[id_name] = AssignedIds(((_content(one, id_name), getattr(one, id_name)) for one in known), first)
        chosen = getattr(one, id_name) if id_name in one.model_fields_set else None
        id, is_new = self._ids[id_name].give(_content(one, id_name), chosen, default)
        return one.model_copy(update={id_name: id}) if is_new else None

    def _with_field_ids(self, spec: PartitionSpec) -> PartitionSpec:
        """Assign ids to fields without id: the id of an older field with the same source and transform, or a new id."""
        if all(field.field_id != NO_FIELD_ID for field in spec.fields):
            return spec
        known = {
            (field.source_id, str(field.transform)): field.field_id
            for other in self.metadata.partition_specs
            for field in other.fields
        }
        last = max(
            self.metadata.last_partition_id or 0, PARTITION_FIELD_ID_START - 1, *(f.field_id for f in spec.fields)
        )
        fields = []
        for field in spec.fields:
            if field.field_id == NO_FIELD_ID:
                id = known.get((field.source_id, str(field.transform)), last + 1)
                last = max(last, id)
                field = field.model_copy(update={"field_id": id})
            fields.append(field)
        return spec.model_copy(update={"fields": tuple(fields)})

    def _new_order(self, update: iceberg.AddSortOrderUpdate) -> iceberg.AddSortOrderUpdate | None:
        metadata_invariants.check_order(update.sort_order, self.metadata.schemas)
        default = None if update.sort_order.fields else UNSORTED_SORT_ORDER_ID
        known = self.metadata.sort_orders
        order = self._if_new(update.sort_order, "order_id", known, INITIAL_SORT_ORDER_ID, default)
        return None if order is None else iceberg.AddSortOrderUpdate.model_validate({"sort-order": order})

    def _checked_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the assigned id of its schema, and a time that fits the table.

        Raises `StaleSnapshot` if its sequence number or row ids were computed from older metadata, and `ValueError` if
        it is invalid.
        """
        metadata = self.metadata
        if "spec_id" in self._ids and not self._ids["spec_id"].is_as_chosen:  # its manifests have the chosen ids
            raise StaleSnapshot("a partition spec gets another id than the writer of this snapshot chose for it")
        changes: dict[str, int] = {}
        if snapshot.schema_id is not None and "schema_id" in self._ids:
            changes["schema_id"] = self._ids["schema_id"].given(snapshot.schema_id)
        is_new_table = not self.base.schemas  # a new table may get older snapshots of another table
        earliest = metadata.snapshots[-1].timestamp_ms if metadata.snapshots else 0
        if not is_new_table:
            earliest = max(earliest, metadata.last_updated_ms)
        changes["timestamp_ms"] = max(earliest, min(snapshot.timestamp_ms, _now_millis()))
        if any(getattr(snapshot, name) != value for name, value in changes.items()):
            snapshot = snapshot.model_copy(update=changes)
        _check_counted(snapshot, metadata)
        metadata_invariants.check_snapshot(snapshot, metadata)
        return snapshot

    def build(self) -> TableMetadata:
        """Check the result and set its time. Raises `ValueError` and PyIceberg's `ValidationError`."""
        result = self.metadata
        if result is self.base:
            return result
        result = _with_ordered_log(result)
        latest = max(self.base.last_updated_ms, *(entry.timestamp_ms for entry in result.snapshot_log[-1:]), 0)
        if result.last_updated_ms <= latest:
            result = result.model_copy(update={"last_updated_ms": max(_now_millis(), latest)})
        if result.schemas is not self.base.schemas:
            check_schemas(result, self.base.schemas)
        if not _has_same_columns(result, self.base):
            metadata_invariants.check_defaults(result)
            result.spec().check_compatible(result.schema())
            result.sort_order().check_compatible(result.schema())
        metadata_invariants.check_metadata(result, self.base)
        return result


def _with_ordered_log(metadata: TableMetadata) -> TableMetadata:
    """The metadata with a log of snapshots in ascending order of time."""
    log = metadata.snapshot_log
    if all(earlier.timestamp_ms <= later.timestamp_ms for earlier, later in pairwise(log)):
        return metadata
    times = accumulate((entry.timestamp_ms for entry in log), max)
    ordered = [
        entry if entry.timestamp_ms == time else entry.model_copy(update={"timestamp_ms": time})
        for entry, time in zip(log, times, strict=True)
    ]
    return metadata.model_copy(update={"snapshot_log": ordered})


def _content(one: Schema | PartitionSpec | SortOrder, id_name: str) -> str:
    return one.model_dump_json(exclude={id_name})


def _has_same_columns(one: TableMetadata, other: TableMetadata) -> bool:
    return (
        one.schemas is other.schemas
        and one.partition_specs is other.partition_specs
        and one.sort_orders is other.sort_orders
        and one.current_schema_id == other.current_schema_id
        and one.default_spec_id == other.default_spec_id
        and one.default_sort_order_id == other.default_sort_order_id
    )


def _upgrade_to(version: str, present: int) -> iceberg.UpgradeFormatVersionUpdate:
    """The update for the property `format-version`. Raises `InvalidArgument` for a lower or unknown version."""
    if version not in _FORMAT_VERSIONS or int(version) < present:
        raise InvalidArgument(
            f"the table has format version {present}. The property format-version can upgrade it to one of "
            f"{', '.join(_FORMAT_VERSIONS)}, not to {version[:100]!r}"
        )
    return iceberg.UpgradeFormatVersionUpdate.model_validate({"format-version": int(version)})


def apply_updates(base: TableMetadata, updates: Sequence[iceberg.TableUpdate]) -> TableMetadata:
    """`base` with all updates applied. The result shares its unchanged parts with `base`."""
    builder = MetadataBuilder(base)
    for update in updates:
        builder.apply(update)
    return builder.build()


class StaleSnapshot(ValueError):
    """The sequence number or row id of a snapshot is outdated, for example after a commit to another branch.

    The snapshot must be produced again.
    """


def _check_counted(snapshot: Snapshot, metadata: TableMetadata) -> None:
    """Raise `StaleSnapshot` or `ValueError` if the sequence number or the row ids of a new snapshot are wrong."""
    if isinstance(metadata, TableMetadataV1):
        return
    number = snapshot.sequence_number
    # A snapshot without a parent replaces the table, so its sequence number is not compared with files of other
    # snapshots.
    if (number or 0) <= metadata.last_sequence_number and snapshot.parent_snapshot_id is not None:
        raise StaleSnapshot(
            f"Cannot add snapshot with sequence number {number} older than last sequence number "
            f"{metadata.last_sequence_number}"
        )
    if not isinstance(metadata, TableMetadataV3):
        return
    if snapshot.first_row_id is not None and not fits(snapshot, metadata):
        raise StaleSnapshot(
            f"Cannot add a snapshot with first row id {snapshot.first_row_id}: the table's next-row-id is "
            f"{metadata.next_row_id}"
        )
    if snapshot.added_rows is None:
        raise ValueError("Cannot add snapshot without added rows: next-row-id grows by their number")
    if not 0 <= snapshot.added_rows <= metadata_invariants.MAX_ADDED_ROWS:
        raise ValueError(f"Cannot add snapshot with {snapshot.added_rows} added rows")


def _now_millis() -> int:
    return time.time_ns() // 1_000_000

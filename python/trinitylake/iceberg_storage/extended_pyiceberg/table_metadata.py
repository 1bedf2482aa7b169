"""Extended table metadata: an index of snapshots, and serialization of format version 3."""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from typing import Any
from uuid import UUID

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import (
    TableMetadata,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
    new_table_metadata,
)
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.types import IcebergType, ListType, MapType, StructType

import trinitylake.iceberg_storage.pyiceberg_patches  # noqa: F401  # for all metadata
from trinitylake.base.json_memory_size import count_values
from trinitylake.iceberg_storage import metadata_invariants

#: The next row id of a table that has no rows with ids.
INITIAL_ROW_ID = 0
#: Additional attributes of metadata objects: the size of their JSON text, and of the memory that they take.
_SIZE, _PARSED_SIZE = "_json_size_bytes", "_parsed_size_bytes"
#: Upper bound of the memory of a JSON value, including indexes: a column of type map takes 5.7 KB for 17 values.
_VALUE_SIZE_BYTES = 350


class _SnapshotIndex:
    """Mixin with an index of the snapshots by id, which is built when it is first needed."""

    snapshots: list[Snapshot]

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        return self._by_id().get(snapshot_id)

    def snapshot_ids(self) -> Set[int]:
        return self._by_id().keys()

    def _by_id(self) -> dict[int, Snapshot]:
        index: tuple[list[Snapshot], dict[int, Snapshot]] = self.__dict__.get("_index") or ([], {})
        if index[0] is not self.snapshots:
            index = self.__dict__["_index"] = self.snapshots, {one.snapshot_id: one for one in self.snapshots}
        return index[1]


class IndexedMetadata(_SnapshotIndex, TableMetadataV2):
    """Metadata of format version 2."""


class IndexedMetadataV3(_SnapshotIndex, TableMetadataV3):
    """Metadata of format version 3, which PyIceberg can read, but not write."""

    def model_dump_json(  # type: ignore[override]
        self, exclude_none: bool = True, exclude: set[str] | None = None, by_alias: bool = True, **kwargs: Any
    ) -> str:
        """JSON text. PyIceberg's own method supports only the earlier format versions."""
        return IcebergBaseModel.model_dump_json(self, exclude_none, exclude, by_alias, **kwargs)


def indexed(metadata: TableMetadata) -> TableMetadata:
    """The same metadata with an index of snapshots by id. Metadata of format version 1 is returned unchanged."""
    if type(metadata) is TableMetadataV2:
        return IndexedMetadata.model_construct(metadata.model_fields_set, **metadata.__dict__)
    if type(metadata) is TableMetadataV3:
        metadata = IndexedMetadataV3.model_construct(metadata.model_fields_set, **metadata.__dict__)
        if metadata.next_row_id is None and not metadata.snapshots:  # PyIceberg does not set it for a new table
            metadata = metadata.model_copy(update={"next_row_id": INITIAL_ROW_ID})
    return metadata


def snapshot_ids(metadata: TableMetadata) -> Set[int]:
    if isinstance(metadata, _SnapshotIndex):
        return metadata.snapshot_ids()
    return {one.snapshot_id for one in metadata.snapshots}


def json_size_bytes(metadata: TableMetadata) -> int:
    """Size of the JSON text of the metadata; 0 if unknown. For a changed copy, the size of the original."""
    return int(metadata.__dict__.get(_SIZE, 0))


def parsed_size_bytes(metadata: TableMetadata) -> int:
    """Upper bound of the memory that the metadata takes, in bytes; 0 if unknown."""
    return int(metadata.__dict__.get(_PARSED_SIZE, 0))


def sized(metadata: TableMetadata, text: bytes) -> TableMetadata:
    """Record the sizes of metadata by its JSON text. Returns the metadata."""
    metadata.__dict__[_SIZE] = len(text)
    metadata.__dict__[_PARSED_SIZE] = len(text) + _VALUE_SIZE_BYTES * count_values(text)
    return metadata


def sized_as(metadata: TableMetadata, other: TableMetadata) -> TableMetadata:
    metadata.__dict__[_SIZE], metadata.__dict__[_PARSED_SIZE] = other.__dict__[_SIZE], other.__dict__[_PARSED_SIZE]
    return metadata


def upgraded(metadata: TableMetadata) -> TableMetadata:
    """Upgrade metadata to format version 3. The next snapshot assigns row ids to all rows.

    Raises `ValueError` for metadata of a format version other than 1, 2 or 3.
    """
    if metadata.format_version not in (1, 2, 3):
        raise ValueError(f"format version {metadata.format_version} cannot be upgraded to 3")
    if metadata.format_version == 3:
        return metadata
    values = {name: metadata.__dict__[name] for name in TableMetadataV3.model_fields if name in metadata.__dict__}
    values |= {"format_version": 3, "next_row_id": INITIAL_ROW_ID}
    values.setdefault("last_sequence_number", 0)  # format version 1 has no sequence numbers
    return IndexedMetadataV3.model_construct(**values)


#: Properties that Iceberg's Java library sets in each new table. Without them, Spark and Flink compress with gzip.
NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


def new_table(
    schema: Schema,
    partition_spec: PartitionSpec,
    sort_order: SortOrder,
    location: str,
    properties: Mapping[str, str],
    table_uuid: UUID,
) -> TableMetadata:
    """The metadata of a new, empty table, with new column ids and the default values of the schema.

    PyIceberg's own function omits the default values. Raises `ValueError` for a schema, spec or order that Iceberg, or
    the format version in the properties, does not support.
    """
    given = {**NEW_TABLE_PROPERTIES, **properties}
    metadata = indexed(new_table_metadata(schema, partition_spec, sort_order, location, given, table_uuid=table_uuid))
    fresh = metadata.schema()
    struct = with_defaults(fresh.as_struct(), schema.as_struct())
    if struct != fresh.as_struct():
        assert isinstance(struct, StructType)
        ids = fresh.identifier_field_ids
        metadata = metadata.model_copy(
            update={"schemas": [Schema(*struct.fields, schema_id=fresh.schema_id, identifier_field_ids=ids)]}
        )
    check_schemas(metadata)
    metadata_invariants.check_schema(metadata.schema())
    metadata_invariants.check_spec(metadata.spec(), metadata.schemas)
    metadata_invariants.check_order(metadata.sort_order(), metadata.schemas)
    metadata_invariants.check_metadata(metadata)
    return metadata


def empty_table_metadata() -> TableMetadata:
    """The metadata to which the updates that create a table are applied."""
    return TableMetadataV1.model_construct(last_column_id=-1, schema=Schema())


def check_schemas(metadata: TableMetadata, known: Container[Schema] = ()) -> None:
    """Raise `ValueError` for a schema that is not in `known` and needs a later format version."""
    for schema in metadata.schemas:
        if schema not in known:
            _check_format_version(schema, metadata)


def _check_format_version(schema: Schema, metadata: TableMetadata) -> None:
    schema.check_format_version_compatibility(metadata.format_version)
    if metadata.format_version >= 3:
        return
    for id in schema.field_ids:
        field = schema.find_field(id)
        if field.initial_default is not None or field.write_default is not None:
            raise ValueError(
                f"column {schema.find_column_name(id)} has a default value, which needs format version 3, and the "
                f"table has {metadata.format_version}: upgrade it, or create it with the property format-version"
            )


def with_defaults(fresh: IcebergType, given: IcebergType) -> IcebergType:
    """Copy the default values of a type to the same type with new ids."""
    match fresh, given:
        case StructType(), StructType():
            return StructType(
                *(
                    new.model_copy(
                        update={
                            "field_type": with_defaults(new.field_type, old.field_type),
                            "initial_default": old.initial_default,
                            "write_default": old.write_default,
                        }
                    )
                    for new, old in zip(fresh.fields, given.fields, strict=True)
                )
            )
        case ListType(), ListType():
            return fresh.model_copy(update={"element_type": with_defaults(fresh.element_type, given.element_type)})
        case MapType(), MapType():
            return fresh.model_copy(update={"value_type": with_defaults(fresh.value_type, given.value_type)})
    return fresh

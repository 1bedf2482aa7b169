"""The part of Iceberg's metadata that a definition repeats, for readers that do not open the metadata (format §6).

The format has types that Iceberg lacks, such as smallint and varchar(3). A column keeps its declared type until its
Iceberg type changes.
"""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform

from trinitylake.definitions import MANIFEST_LIST, METADATA_LOCATION, Column, Schema, SortKey, TableDef, Type
from trinitylake.errors import CorruptFile, InvalidArgument


def metadata_path(definition: TableDef, name: str) -> str:
    """The metadata file of a managed table, below the root. Raises `CorruptFile` if the definition has none."""
    path = definition.format_properties.get(METADATA_LOCATION, "")
    if not path:
        raise CorruptFile(f"the definition of the managed table {name} names no metadata file")
    return path


def name_metadata(definition: TableDef, path: str, manifest_list: str = "") -> None:
    """Set the metadata file, and the manifest list of the current snapshot, in a managed table's definition.

    Both are paths below the root, so that a scan fetches both files at the same time. `manifest_list` is "" if there is
    no snapshot or its list is unknown.
    """
    definition.format_properties[METADATA_LOCATION] = path
    if manifest_list:
        definition.format_properties[MANIFEST_LIST] = manifest_list
    else:
        definition.format_properties.pop(MANIFEST_LIST, None)


def with_primary_key(schema: Schema, primary_key: tuple[str, ...]) -> Schema:
    """`schema` with these columns as its primary key, which makes them required. Raises `InvalidArgument`."""
    if not primary_key:
        return schema
    if missing := [name for name in primary_key if name not in schema.names]:
        raise InvalidArgument(f"the primary key names columns that the schema does not have: {', '.join(missing)}")
    columns = [replace(column, nullable=False) if column.name in primary_key else column for column in schema.columns]
    return Schema(columns, primary_key)


def describe(definition: TableDef, metadata: TableMetadata, declared: Schema | None = None) -> None:
    """Update schema, primary key and sort keys of a definition from Iceberg metadata, in place.

    `declared` is a schema with types that Iceberg lacks, by default the schema in the definition.
    """
    current = metadata.schema()
    if declared is None:
        declared = Schema.from_definition(definition.schema)
    described = Schema.from_iceberg(current)
    counterparts = _Counterparts(declared.columns)
    columns = [_keep_declared(column, counterparts.of(column)) for column in described.columns]
    definition.schema.CopyFrom(Schema(columns).to_definition())
    # The declared order of the primary key stays: Iceberg has only a set of field ids.
    keys = [name for name in declared.primary_key or definition.primary_keys if name in described.primary_key]
    keys += [name for name in described.primary_key if name not in keys]
    definition.primary_keys[:] = keys
    order = next((one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id), None)
    del definition.sort_keys[:]
    for field in order.fields if order is not None else ():
        if isinstance(field.transform, IdentityTransform) and (name := current.find_column_name(field.source_id)):
            definition.sort_keys.append(
                SortKey(
                    column=name,
                    descending=field.direction == SortDirection.DESC,
                    nulls_last=field.null_order == NullOrder.NULLS_LAST,
                )
            )


class _Counterparts:
    """Columns as they were declared, found by their ids, which survive renames, or by name before ids are assigned."""

    def __init__(self, declared: tuple[Column, ...]) -> None:
        self._by_id = {one.id: one for one in reversed(declared) if one.id}
        self._by_name = {one.name: one for one in reversed(declared) if not one.id}

    def of(self, column: Column) -> Column | None:
        return self._by_id.get(column.id) or self._by_name.get(column.name)


def _keep_declared(column: Column, declared: Column | None) -> Column:
    if declared is None:
        return column
    type = column.type
    if type.children and type.kind == declared.type.kind:
        counterparts = _Counterparts(declared.type.children)
        children = tuple(_keep_declared(child, counterparts.of(child)) for child in type.children)
        type = replace(type, children=children)
    elif not declared.type.children and _same_in_iceberg(type, declared.type):
        type = declared.type
    return replace(column, type=type, properties=declared.properties)


def _same_in_iceberg(one: Type, other: Type) -> bool:
    schema = Schema([Column("one", one, id=1), Column("other", other, id=2)]).to_iceberg()
    return schema.fields[0].field_type == schema.fields[1].field_type

"""Finds columns of data files without field ids by the name mapping of the table, as Iceberg for Java does.

Metrics and partition values in a manifest have the field ids of the time when the file was added. If another column got
the name later (`p` was renamed to `q`, and a new `p` was added), the values in the file belong to the new column, but
the metrics have the id of the former column. So these metrics are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyiceberg.schema import index_name_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField

#: Keys of the metadata that Arrow gives a column of a Parquet or ORC file with a field id.
_FIELD_ID = frozenset({b"PARQUET:field_id", b"iceberg.id"})


def columns_with_moved_names(metadata: TableMetadata) -> frozenset[int]:
    """The ids of columns with a present or former name that the name mapping does not assign to the column."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return frozenset()
    id_of = dict(_names(mapping.root))
    return frozenset(
        id for schema in metadata.schemas for id, name in index_name_by_id(schema).items() if id_of.get(name) != id
    )


def _names(fields: Sequence[MappedField], prefix: str = "") -> Iterator[tuple[str, int | None]]:
    for field in fields:
        for name in field.names:
            yield prefix + name, field.field_id
            yield from _names(field.fields, f"{prefix}{name}.")


def columns_with_ids(columns: Iterable[pa.Field], mapping: Sequence[MappedField]) -> list[pa.Field]:
    """The columns and fields of a file that have an id.

    If a column in the file has a field id, only columns with a field id are returned. Otherwise the name mapping
    decides which columns have an id.
    """
    columns = list(columns)
    if own := [one for one in columns if one.metadata and not one.metadata.keys().isdisjoint(_FIELD_ID)]:
        return own
    by_name = {name: one for one in mapping if one.field_id is not None for name in one.names}
    return [one.with_type(_mapped(one.type, by_name[one.name].fields)) for one in columns if one.name in by_name]


def _mapped(kind: pa.DataType, mapping: Sequence[MappedField]) -> pa.DataType:
    parts = {name: one.fields for one in mapping for name in one.names}
    if pa.types.is_struct(kind):
        return pa.struct(columns_with_ids(kind, mapping))
    if pa.types.is_map(kind):
        fields = zip((kind.key_field, kind.item_field), ("key", "value"), strict=True)
        return pa.map_(*(field.with_type(_mapped(field.type, parts.get(name, ()))) for field, name in fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return pa.large_list(element.with_type(_mapped(element.type, parts.get("element", ()))))
    return kind

"""Columns whose metrics a name mapping makes unreliable.

The columns of a data file without field ids are found by name, with the name mapping of the table. Metrics and
partition values have the field ids of the day on which the file was added. If a name moved to another column since
(`p` was renamed to `q`, and a new `p` was added), the file's values belong to the new column, as Iceberg's Java reads
them too, but its metrics still belong to the former one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyiceberg.schema import index_name_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField


def columns_with_moved_names(metadata: TableMetadata) -> frozenset[int]:
    """The ids of columns that had a name which the name mapping gives to another column, or to none."""
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

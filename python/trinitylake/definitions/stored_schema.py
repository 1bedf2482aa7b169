"""Lossless conversion of columns to and from definition files (format §6).

Values for which the message has no field are stored in properties of the column.
"""

from __future__ import annotations

from trinitylake.definitions import trinitylake_pb2 as proto
from trinitylake.definitions.sql_types import TYPE_KINDS, Column, Type
from trinitylake.errors import UnsupportedVersion

#: Keys of `Column.properties` for values without a field in the message.
DOC_PROPERTY = "doc"
ICEBERG_TYPE_PROPERTY = "iceberg-type"


def column_to_proto(column: Column) -> proto.Column:
    """The message of a column and its nested columns."""
    type = column.type
    message = proto.Column(
        id=column.id,
        name=column.name,
        type=TYPE_KINDS.index(type.kind),  # type: ignore[arg-type]
        nullable=column.nullable,
        properties=column.properties,
        length=type.length,
        precision=type.precision,
        scale=type.scale,
    )
    if column.doc:
        message.properties[DOC_PROPERTY] = column.doc
    if type.iceberg:
        message.properties[ICEBERG_TYPE_PROPERTY] = type.iceberg
    children = [column_to_proto(child) for child in type.children]
    if type.kind == "struct":
        message.struct_fields.extend(children)
    elif type.kind == "list":
        message.list_element.CopyFrom(children[0])
    elif type.kind == "map":
        message.map_key.CopyFrom(children[0])
        message.map_value.CopyFrom(children[1])
    return message


def column_from_proto(message: proto.Column) -> Column:
    """The inverse of `column_to_proto`.

    Raises `UnsupportedVersion` for an unknown type, `InvalidArgument` for an invalid column.
    """
    if not 0 <= message.type < len(TYPE_KINDS):
        raise UnsupportedVersion(
            f"column {message.name!r} has the type number {message.type}, which this library does not know"
        )
    kind = TYPE_KINDS[message.type]
    properties = dict(message.properties)
    doc = properties.pop(DOC_PROPERTY, "")
    iceberg = properties.pop(ICEBERG_TYPE_PROPERTY, "")
    children: list[proto.Column] = []
    if kind == "struct":
        children = list(message.struct_fields)
    elif kind == "list" and message.HasField("list_element"):
        children = [message.list_element]
    elif kind == "map" and message.HasField("map_key") and message.HasField("map_value"):
        children = [message.map_key, message.map_value]
    type = Type(
        kind,
        length=message.length,
        precision=message.precision,
        scale=message.scale,
        children=tuple(column_from_proto(child) for child in children),
        iceberg=iceberg,
    )
    return Column(message.name, type, message.nullable, doc, id=message.id, properties=properties)

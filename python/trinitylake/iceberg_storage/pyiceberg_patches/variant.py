"""Adds the primitive type `variant` of format version 3 to PyIceberg, which cannot load metadata with this type.

Importing this module patches PyIceberg's parser of type names for the whole process. This library cannot read or write
the values of such a column; engines that know the type can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

NAME = "variant"


class VariantType(PrimitiveType):
    """Iceberg's type `variant`, a value of any type."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        return 3


def variants_in(schema: Schema) -> list[str]:
    """The names of columns that are variants or contain variants."""
    return [field.name for field in schema.fields if any(_variants(field.field_type))]


def without_variants(schema: Schema) -> Schema:
    """The columns of a schema that Arrow has types for."""
    unreadable = variants_in(schema)
    return Schema(*(one for one in schema.fields if one.name not in unreadable)) if unreadable else schema


def _variants(type: IcebergType) -> Iterator[VariantType]:
    match type:
        case VariantType():
            yield type
        case StructType():
            for field in type.fields:
                yield from _variants(field.field_type)
        case ListType():
            yield from _variants(type.element_type)
        case MapType():
            yield from _variants(type.key_type)
            yield from _variants(type.value_type)


def _register_variant() -> None:
    by_name: Any = IcebergType.handle_primitive_type

    def named(value: Any, handler: Any) -> IcebergType:
        return VariantType() if value == NAME else by_name(value, handler)

    IcebergType.handle_primitive_type = staticmethod(named)  # type: ignore[method-assign, assignment]
    for nested, parts in ((ListType, ("element", "element_type")), (MapType, ("value", "value_type"))):
        nested.__init__ = _with_types(nested.__init__, parts)  # type: ignore[method-assign]


def _with_types(make: Any, parts: tuple[str, ...]) -> Any:
    def made(self: Any, *args: Any, **data: Any) -> None:
        make(self, *args, **data | {part: VariantType() for part in parts if data.get(part) == NAME})

    return made


_register_variant()
assert isinstance(NestedField(1, NAME, NAME).field_type, VariantType)

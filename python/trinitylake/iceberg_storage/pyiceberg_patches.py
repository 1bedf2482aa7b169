"""Changes to PyIceberg for the whole process, and its private functions under public names.

- Avro: doubles are decoded with 64 bits, because PyIceberg's compiled decoder reads 32-bit floats, and nanoseconds as
  numbers (apache/iceberg-python, `avro/decoder_fast.pyx`, `utils/schema_conversion.py`).
- Default values of `timestamp_ns` and `timestamptz_ns` in JSON. In memory such a value is the number of nanoseconds
  since 1970 (`conversions.py`).
- A partition field whose source column was dropped may have the name of another column (`partitioning.py`,
  `validate_partition_name`).
- The primitive type `variant` of format version 3. Its values are neither read nor written here (`types.py`).
- Private functions (listed in `extended_pyiceberg`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field
from pyiceberg import partitioning
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import DoubleReader, Reader
from pyiceberg.catalog import _ENV_CONFIG
from pyiceberg.conversions import from_json, to_json
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import TableVersion
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from trinitylake.iceberg_storage.datetime_text import units_since_epoch

if TYPE_CHECKING:
    import pyarrow as pa

_DOUBLE = struct.Struct("<d")
_avro_to_iceberg = AvroSchemaConversion.avro_to_iceberg


def _read(self: DoubleReader, decoder: BinaryDecoder) -> float:
    (value,) = _DOUBLE.unpack(decoder.read(_DOUBLE.size))
    return float(value)


def _with_numbers(avro_schema: Any) -> Any:
    match avro_schema:
        case {"logicalType": "timestamp-nanos"}:
            return "long"
        case dict():
            return {name: _with_numbers(value) for name, value in avro_schema.items()}
        case list():
            return [_with_numbers(value) for value in avro_schema]
    return avro_schema


def _converted(self: AvroSchemaConversion, avro_schema: dict[str, Any]) -> Schema:
    return _avro_to_iceberg(self, _with_numbers(avro_schema))


DoubleReader.read = _read  # type: ignore[method-assign]
AvroSchemaConversion.avro_to_iceberg = _converted  # type: ignore[method-assign]
_reader: Reader = DoubleReader()  # type: ignore[no-untyped-call]
assert _reader.read(new_decoder(_DOUBLE.pack(0.1))) == 0.1


def _from_json(type: IcebergType, value: Any) -> int:
    return units_since_epoch(value, type) if isinstance(value, str) else int(value)


def _to_json(type: IcebergType, value: Any) -> str:
    return f"{np.datetime64(value, 'ns')}{'+00:00' if isinstance(type, TimestamptzNanoType) else ''}"


converters: tuple[tuple[Any, Any], ...] = (from_json, _from_json), (to_json, _to_json)
for generic, converter in converters:
    for nanoseconds in (TimestampNanoType, TimestamptzNanoType):
        generic.register(nanoseconds, converter)


def schema_with_sources(metadata: TableMetadata, schema: Schema | None = None) -> Schema:
    """A schema, by default the current one, with the source columns of all partition specs.

    Dropped columns are appended as optional fields under names that no column has. Only their types matter.
    """
    current = metadata.schema() if schema is None else schema
    known = set(current.field_ids)
    dropped = {field.source_id for spec in metadata.partition_specs for field in spec.fields} - known
    if not dropped:
        return current
    fields = [NestedField(id, f"dropped:{id}", _last_type(metadata, id), required=False) for id in sorted(dropped)]
    return Schema(*current.fields, *fields, schema_id=current.schema_id)


_validate_partition_name = partitioning.validate_partition_name


def _name_of_present_source(
    field_name: str, partition_transform: Any, source_id: int, schema: Schema, partition_names: set[str]
) -> None:
    """PyIceberg's check of the name of a partition field. A field whose source column was dropped is not checked."""
    # Another column may have the name of such a field.
    if source_id in schema.field_ids:
        _validate_partition_name(field_name, partition_transform, source_id, schema, partition_names)


partitioning.validate_partition_name = _name_of_present_source


def _last_type(metadata: TableMetadata, id: int) -> IcebergType:
    for schema in sorted(metadata.schemas, key=lambda one: one.schema_id, reverse=True):
        if id in schema.field_ids:
            return schema.find_type(id)
    return UnknownType()


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


def check_columns_fit(schema: Schema, columns: pa.Schema, format_version: TableVersion) -> None:
    """Raises `ValueError`, with PyIceberg's table of differences, for columns that do not fit a schema."""
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    _check_pyarrow_schema_compatible(schema, columns, format_version=format_version)


def configuration_at_start(catalog_name: str) -> dict[str, Any]:
    """PyIceberg's configuration of a catalog as of the start of the process, which `load_catalog` uses."""
    return dict(_ENV_CONFIG.get_catalog_config(catalog_name) or {})

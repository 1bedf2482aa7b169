"""Makes PyIceberg decode doubles in Avro files with 64 bits, and nanoseconds as numbers.

PyIceberg's compiled decoder reads a double as a 32-bit float, so the partition value 0.1 becomes another number
(apache/iceberg-python, `avro/decoder_fast.pyx`, `read_double`). PyIceberg also refuses manifests of tables that are
partitioned by a `timestamp_ns` (`utils/schema_conversion.py`, `timestamp-nanos`).
"""

from __future__ import annotations

import struct
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import DoubleReader, Reader
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

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

"""PyIceberg reads doubles in Avro files with all of their 64 bits.

Its compiled decoder returns a 32-bit float, so a partition value of 0.1 was another number when it was read back
(apache/iceberg-python, `avro/decoder_fast.pyx`, `read_double`).
"""

from __future__ import annotations

import struct

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import DoubleReader, Reader

_DOUBLE = struct.Struct("<d")


def _read(self: DoubleReader, decoder: BinaryDecoder) -> float:
    (value,) = _DOUBLE.unpack(decoder.read(_DOUBLE.size))
    return float(value)


DoubleReader.read = _read  # type: ignore[method-assign]
_reader: Reader = DoubleReader()  # type: ignore[no-untyped-call]
assert _reader.read(new_decoder(_DOUBLE.pack(0.1))) == 0.1

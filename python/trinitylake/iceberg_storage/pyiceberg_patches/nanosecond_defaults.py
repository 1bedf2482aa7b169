"""JSON of default values of `timestamp_ns` and `timestamptz_ns`, which PyIceberg cannot read or write.

Without this patch, a table with such a default cannot be loaded. In memory the value is the number of nanoseconds since
1970.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.conversions import from_json, to_json
from pyiceberg.types import IcebergType, TimestampNanoType, TimestamptzNanoType

from trinitylake.iceberg_storage.datetime_text import units_since_epoch


def _from_json(type: IcebergType, value: Any) -> int:
    return units_since_epoch(value, type) if isinstance(value, str) else int(value)


def _to_json(type: IcebergType, value: Any) -> str:
    import numpy as np

    return f"{np.datetime64(value, 'ns')}{'+00:00' if isinstance(type, TimestamptzNanoType) else ''}"


converters: tuple[tuple[Any, Any], ...] = (from_json, _from_json), (to_json, _to_json)
for generic, converter in converters:
    for nanoseconds in (TimestampNanoType, TimestamptzNanoType):
        generic.register(nanoseconds, converter)

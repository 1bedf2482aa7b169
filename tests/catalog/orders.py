"""The table that the behaviour tests write: three columns, of which the second identifies a row, and two rows."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

SCHEMA = Schema(
    NestedField(1, "name", StringType(), required=False),
    NestedField(2, "id", LongType(), required=True),
    NestedField(3, "paid", BooleanType(), required=False),
    identifier_field_ids=[2],
)

ROWS = pa.table({"name": ["ann", "bob"], "id": [1, 2], "paid": [True, None]}, schema=SCHEMA.as_arrow())

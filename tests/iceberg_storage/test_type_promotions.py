"""Commits accept only changes of a column's type that readers of the existing files support."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.schema_projection import project
from trinitylake.iceberg_storage.schema_compatibility import can_read

VALUES: dict[str, Any] = {
    "boolean": True,
    "int": 7,
    "long": 7,
    "float": 1.5,
    "double": 1.5,
    "decimal(9, 2)": Decimal("1.25"),
    "decimal(18, 2)": Decimal("1.25"),
    "decimal(18, 3)": Decimal("1.250"),
    "date": dt.date(2020, 2, 2),
    "time": dt.time(1, 2),
    "timestamp": dt.datetime(2020, 2, 2),
    "timestamptz": dt.datetime(2020, 2, 2, tzinfo=dt.UTC),
    "timestamp_ns": dt.datetime(2020, 2, 2),
    "string": "a",
    "binary": b"a",
    "fixed[1]": b"a",
    "fixed[16]": bytes(16),
    "uuid": uuid.UUID(int=0).bytes,
}
#: Changes that PyIceberg's reader supports, but the specification does not allow.
ONLY_READ = {
    ("string", "binary"),
    ("binary", "string"),
    ("fixed[16]", "uuid"),
    ("decimal(9, 2)", "decimal(18, 3)"),
    ("decimal(18, 2)", "decimal(18, 3)"),
    ("decimal(18, 3)", "decimal(18, 2)"),
}


def schema(type: str) -> Schema:
    return Schema(NestedField(1, "a", parsed(type), required=False))


def parsed(type: str) -> IcebergType:
    field = NestedField.model_validate({"id": 1, "name": "a", "type": type.replace(" ", ""), "required": False})
    return field.field_type


@pytest.mark.parametrize(("written", "wanted"), list(itertools.product(VALUES, VALUES)))
def test_accepted_types_are_the_readable_ones(written: str, wanted: str) -> None:
    """A change of a column's type is accepted only if scans can read the old files afterwards; dates cannot become
    timestamps."""
    present = arrow_schema(schema(written))
    rows = pa.RecordBatch.from_arrays([pa.array([VALUES[written], None], present[0].type)], schema=present)
    if not can_read(parsed(written), parsed(wanted)):
        if (written, wanted) not in ONLY_READ:
            with pytest.raises(ResolveError):
                project(rows, schema(written), schema(wanted))
        return
    read = project(rows, schema(written), schema(wanted)).column(0)
    assert read.type == arrow_schema(schema(wanted))[0].type
    assert read.to_pylist() == pa.array([VALUES[wanted], None], read.type).to_pylist()

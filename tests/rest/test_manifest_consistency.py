"""A commit whose manifests contradict themselves is refused.

DuckDB 1.5.5 computed the day of a `timestamptz` in the time zone of its session. The server accepted the commit, and no
reader found the row by its timestamp: the partition value contradicted the bounds.
"""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, NestedField

import trinitylake as tl
from manifests_by_hand import manifest_of, new_snapshot_id, snapshot_of
from rest.client import Client, running
from rest.test_duckdb import attached
from trinitylake.iceberg_storage.column_summary import _day_of_month
from trinitylake.iceberg_storage.manifests.manifest_consistency import FileCheck, ManifestCheck, SpecsAndSchemas
from trinitylake.iceberg_storage.manifests.manifest_file import entries_in_turn

UTC = datetime.UTC


def at(*parts: int, tz: datetime.tzinfo | None = None) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=tz)


#: Values of each type. Some are the first or last value of a day, year or bucket, also before 1970.
VALUES: dict[str, list[Any]] = {
    "int": [0, -1, 7, 2**31 - 1, -(2**31) + 8],
    "bigint": [0, -1, 7, 2**63 - 1, -(2**63) + 8],
    "float": [0.5, -0.25, 1e30, math.nan],
    "double": [0.1, -0.1, 1e300, math.nan],
    "decimal(9, 2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("1234567.89")],
    "date": [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2024, 2, 29)],
    "timestamp": [at(1969, 12, 31, 23, 59, 59, 999999), at(1970, 1, 1), at(2024, 12, 31, 23, 30)],
    "timestamptz": [at(1969, 12, 31, 23, 59, 59, tz=UTC), at(2024, 1, 1, tz=UTC), at(2024, 12, 31, 23, 30, tz=UTC)],
    "string": ["", "a", "äöü", "a" * 40, "\U0001f600x"],
    "binary": [b"", b"\xff", b"abc" * 20],
    "boolean": [True, False],
}
NUMBERS = ["identity", "bucket(4)", "truncate(10)"]
DAYS = ["identity", "bucket(4)", "day", "month", "year"]
TRANSFORMS: dict[str, list[str]] = {
    **dict.fromkeys(("int", "bigint", "decimal(9, 2)"), NUMBERS),
    **{key: ["identity"] for key in ("float", "double", "boolean")},
    "date": DAYS,
    **{key: [*DAYS, "hour"] for key in ("timestamp", "timestamptz")},
    "string": ["identity", "bucket(4)", "truncate(2)"],
    "binary": ["identity", "bucket(4)"],
}
CASES = [(type, transform) for type, transforms in TRANSFORMS.items() for transform in transforms]


def expression(transform: str) -> str:
    name, _, argument = transform.rstrip(")").partition("(")
    if name == "identity":
        return "k"
    return f"{name}({argument}, k)" if argument else f"{name}(k)"


def entries_of(table: Any, manifest: ManifestFile) -> tuple[list[int], list[ManifestEntry]]:
    with entries_in_turn(table.io, manifest) as (ids, entries):
        return ids, list(entries)


@pytest.mark.parametrize(("type", "transform"), CASES)
def test_partition_values_as_iceberg_computes_them_are_accepted_and_others_refused(
    lake: tl.Lakehouse, type: str, transform: str
) -> None:
    lake.create_namespace("shop")
    table = lake.create_table("shop.t", {"k": type, "n": "int"}, partition_spec=[expression(transform)])
    table.append([{"k": value, "n": number} for number, value in enumerate([*VALUES[type], None])])
    iceberg = table.iceberg
    layout = SpecsAndSchemas.after(iceberg.metadata, [])
    checked = 0
    for manifest in iceberg.current_snapshot().manifests(iceberg.io):
        ids, entries = entries_of(iceberg, manifest)
        check = ManifestCheck(manifest, 1, layout, ids)
        for entry in entries:
            check.check(entry)
            value = entry.data_file.partition[0]
            bounds = [(known or {}).get(1) for known in (entry.data_file.lower_bounds, entry.data_file.upper_bounds)]
            wrong = [] if value is None or bounds[0] is None else [None]
            is_known = not transform.startswith("bucket") or bounds[0] == bounds[1]
            if wrong and is_known and isinstance(value, int) and not isinstance(value, bool):
                wrong += [value + 1, value - 1]
            if transform.startswith("bucket") and value is not None:
                wrong += [-1, 4]  # the numbers of buckets are 0 to 3
            for other in wrong:
                entry.data_file.partition[0] = other
                with pytest.raises(tl.InvalidArgument):
                    ManifestCheck(manifest, 1, layout, ids).check(entry)
                checked += 1
                entry.data_file.partition[0] = value
        check.check_counts()
    assert checked


@pytest.mark.parametrize(
    ("value", "nans", "bound", "is_accepted"),
    [
        (1.0, 0, 1.0, True),
        (1.0, None, 1.0, True),
        (1.0, 1, 1.0, False),
        (None, 1, None, False),
        (math.nan, 2, None, True),
        (math.nan, 2, math.nan, True),
        (math.nan, 1, 1.0, False),
        (math.nan, None, 1.0, False),
    ],
)
def test_partition_values_contradict_neither_nan_counts_nor_bounds(
    value: float | None, nans: int | None, bound: float | None, is_accepted: bool
) -> None:
    """A file whose partition value contradicts its NaN counts or bounds is refused. A filter found either both rows or
    neither of a file with 1.0 and NaN."""
    schema = Schema(NestedField(1, "f", DoubleType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "f"))
    bounds = None if bound is None else {1: struct.pack("<d", bound)}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="x.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(value),
        record_count=2,
        file_size_in_bytes=9,
        nan_value_counts=None if nans is None else {1: nans},
        lower_bounds=bounds,
        upper_bounds=bounds,
    )
    check = FileCheck(spec, SpecsAndSchemas({0: spec}, [schema]))
    if is_accepted:
        check.check(file)
        return
    with pytest.raises(tl.InvalidArgument, match="the source column"):
        check.check(file)


def test_first_days_of_months_are_those_of_the_calendar() -> None:
    epoch = datetime.date(1970, 1, 1)
    for month in range(12 * (1 - 1970), 12 * (9999 - 1970)):
        first = datetime.date(1970 + month // 12, month % 12 + 1, 1)
        assert _day_of_month(month) == (first - epoch).days


@pytest.fixture
def events(lake: tl.Lakehouse) -> tl.Lakehouse:
    """An empty table that is partitioned by day."""
    lake.create_namespace("shop")
    lake.create_table("shop.events", {"id": "int", "at": "timestamptz"}, partition_spec=["day(at)"])
    return lake


@pytest.mark.parametrize(("zone", "is_accepted"), [("UTC", True), ("America/New_York", False)])
def test_days_of_a_session_with_a_time_zone_are_refused(events: tl.Lakehouse, zone: str, is_accepted: bool) -> None:
    insert = "INSERT INTO lake.shop.events VALUES (1, '2024-01-02 03:00:00+00')"
    with running(events) as server, attached(server) as connection:
        connection.execute(f"SET TimeZone = '{zone}'")
        if is_accepted:
            connection.execute(insert)
        else:
            with pytest.raises(duckdb.Error, match="times in UTC"):
                connection.execute(insert)
    found = events.table("shop.events").scan(filter="at = '2024-01-02T03:00:00+00:00'").to_arrow().num_rows
    assert found == int(is_accepted)


Change = dict[str, Any]
BAD_FILES: dict[str, tuple[Change, str]] = {
    "rows below nothing": ({"record_count": -1}, "has -1 rows"),
    "bytes below nothing": ({"file_size_in_bytes": -5}, "has -5 bytes"),
    "counts below nothing": ({"null_value_counts": {1: -1}}, "outside of 0 to 2^63 - 1"),
    "a day of other bounds": (
        {
            "partition": Record(19_000),
            "lower_bounds": {2: (86_400_000_000 * 19_001).to_bytes(8, "little")},
            "upper_bounds": {2: (86_400_000_000 * 19_001).to_bytes(8, "little")},
        },
        "2022-01-09",
    ),
    "no bytes": ({"file_size_in_bytes": 0}, "has 0 bytes"),
    "a split behind the end": ({"split_offsets": [4, 2**40]}, "a split offset after its end"),
    "fewer values than rows": ({"value_counts": {1: 0}}, "has 1 rows, and 0 values of column 1"),
    "more NULLs than values": ({"value_counts": {1: 1}, "null_value_counts": {1: 5}}, "of which 5 are NULL"),
    "bounds without values": (
        {
            "value_counts": {1: 1},
            "null_value_counts": {1: 1},
            "lower_bounds": {1: bytes(4)},
            "upper_bounds": {1: bytes(4)},
        },
        "only NULL or NaN",
    ),
    "bounds the wrong way round": (
        {"lower_bounds": {1: (9).to_bytes(4, "little")}, "upper_bounds": {1: bytes(4)}},
        "above the upper bound",
    ),
    "a format of another name": ({"file_format": FileFormat.AVRO}, "the suffix of another format"),
    "more rows than its bytes": ({"record_count": 10**15}, "which is impossible"),
    "a bound of another length": ({"lower_bounds": {1: b"\1"}}, "a bound of 1 bytes for column 1"),
    "no rows and bounds": ({"record_count": 0, "lower_bounds": {1: bytes(4)}}, "has 0 rows, and bounds"),
    "a day and no time": ({"null_value_counts": {2: 1}}, "have NULL"),
}


#: Positions of fields in the records of a manifest list.
COUNTS = {"added_files_count": 7, "existing_files_count": 8, "added_rows_count": 10}
IN_LIST = {"partition_spec_id": 2, "sequence_number": 4, "min_sequence_number": 5, **COUNTS}


def committed(lake: tl.Lakehouse, http_client: Client, *files: DataFile, **changes: int) -> Any:
    """Append files like a client that writes a manifest for each file and the manifest list. Returns the response."""
    table = lake.table("shop.events").iceberg
    id = new_snapshot_id()
    manifests = [manifest_of(table, table.location(), id, file) for file in files]
    for name, value in changes.items():
        manifests[0][IN_LIST[name]] = value
    snapshot = snapshot_of(table, table.location(), id, manifests)
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot.model_dump(by_alias=True, exclude_none=True, mode="json")},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
    ]
    return http_client("POST", "/v1/namespaces/shop/tables/events", {"requirements": [], "updates": updates})


def file_in(lake: tl.Lakehouse, **changes: Any) -> DataFile:
    of_day = {
        "partition": Record(19_000),
        "record_count": 1,
        "file_size_in_bytes": 1,
        "file_format": FileFormat.PARQUET,
    }
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{lake.table('shop.events').iceberg.location()}/data/x.parquet",
        spec_id=0,
        **{**of_day, **changes},
    )


def test_file_that_contradicts_itself_is_refused(events: tl.Lakehouse, http_client: Client) -> None:
    for what in BAD_FILES:
        changes, message = BAD_FILES[what]
        version = events.version
        assert message in committed(events, http_client, file_in(events, **changes)).bad_request, what
        assert events.version == version, what


def test_file_that_a_commit_adds_twice_is_refused(events: tl.Lakehouse, http_client: Client) -> None:
    assert "listed twice" in committed(events, http_client, file_in(events), file_in(events)).bad_request


@pytest.mark.parametrize("name", COUNTS)
def test_manifest_list_with_wrong_counts_is_refused(events: tl.Lakehouse, http_client: Client, name: str) -> None:
    assert "the manifest list records 7" in committed(events, http_client, file_in(events), **{name: 7}).bad_request


@pytest.mark.parametrize("name", ["sequence_number", "min_sequence_number"])
def test_file_with_the_sequence_number_of_a_later_snapshot_is_refused(
    events: tl.Lakehouse, http_client: Client, name: str
) -> None:
    """A manifest with a sequence number above that of its snapshot is refused. With the number 99, the delete files of
    the next 98 snapshots would not apply to its rows; as a minimum of 99, Iceberg's Java would drop the delete files of
    the table."""
    assert "sequence number" in committed(events, http_client, file_in(events), **{name: 99}).bad_request


def test_manifest_of_an_unknown_spec_is_refused(events: tl.Lakehouse, http_client: Client) -> None:
    assert "has partition spec 9" in committed(events, http_client, file_in(events), partition_spec_id=9).bad_request


def test_manifest_that_cannot_be_read_is_refused(events: tl.Lakehouse, http_client: Client) -> None:
    """A manifest that cannot be read is refused from every principal. Otherwise the table would be unreadable."""
    table = events.table("shop.events").iceberg
    id = new_snapshot_id()
    manifest = manifest_of(table, table.location(), id, file_in(events))
    Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"Obj\x01 and no more")
    snapshot = snapshot_of(table, table.location(), id, [manifest])
    added = snapshot.model_dump(by_alias=True, exclude_none=True, mode="json")
    body = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": added}]}
    assert "cannot be read" in http_client("POST", "/v1/namespaces/shop/tables/events", body).bad_request

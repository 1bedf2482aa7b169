"""A plan takes linear time in the values of its filter and the columns of its table.

A filter of 100,000 values and a table of 20,000 columns took 20 seconds each: residuals were computed for each file,
and columns were searched linearly. Work is counted in steps, not in time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, In, Not, NotIn, Or
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import LongType, NestedField

import trinitylake as tl
from rest.client import Client
from rest.shop import ROWS
from rest.test_request_costs import steps
from trinitylake.iceberg import table_writing
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import PlanTooLarge
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.rest.handlers import plan_filter, scan_planning
from trinitylake.tables import table_definition


def calls(work: Callable[[], object]) -> int:
    """The number of function calls of `work` in this thread, including comparisons of built-in types."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def scan_of(lake: tl.Lakehouse, n_partitions: int, filter: BooleanExpression) -> ReadAheadScan:
    """A scan of a table with `n_partitions` partitions, each with one file."""
    name = f"shop.t{n_partitions}"
    if name not in lake.tables("shop"):
        rows = pa.table({"id": pa.array(range(n_partitions), pa.int64()), "x": pa.array(range(n_partitions))})
        lake.create_table(name, rows, partition_spec="id").append(rows)
    scan = lake.table(name).iceberg.scan(row_filter=filter)
    assert isinstance(scan, ReadAheadScan)
    return scan


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.create_namespace("shop")
    return lake


@pytest.mark.parametrize("kind", [In, NotIn])
def test_a_plan_takes_linear_time_in_the_values_of_its_filter(shop: tl.Lakehouse, kind: Any) -> None:
    def work(n: int) -> int:
        scan = scan_of(shop, 8, kind("id", set(range(-n, 4))))
        return calls(lambda: list(scan.plan_files()))

    work(10)
    once, twice = work(2000), work(4000)
    assert twice <= 2.5 * once, (once, twice)


def test_a_plan_does_not_evaluate_all_values_for_each_file(shop: tl.Lakehouse) -> None:
    def work(n_partitions: int) -> int:
        scan = scan_of(shop, n_partitions, In("id", set(range(-3000, 100))))
        return calls(lambda: list(scan.plan_files()))

    work(4)
    few, many = work(8), work(32)
    assert many <= 1.5 * few, (few, many)


FILTERS: list[BooleanExpression] = [
    In("id", {1, 3, 5}),
    NotIn("id", {1, 3}),
    In("x", {1, 2, 9}),
    And(In("id", {1, 2}), GreaterThan("x", 1)),
    Or(EqualTo("id", 3), And(EqualTo("x", 5), Not(EqualTo("id", 4)))),
    Not(Or(In("id", {0, 1}), EqualTo("x", 7))),
    And(GreaterThan("id", 2), GreaterThan("x", 100)),
]


@pytest.mark.parametrize("spec", [None, "id", "bucket(3, id)", ["truncate(4, id)", "x"]], ids=str)
def test_a_plan_has_all_files_with_matching_rows(lake: tl.Lakehouse, spec: Any) -> None:
    lake.create_namespace("shop")
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "x": pa.array(range(10), pa.int64())})
    table = lake.create_table("shop.t", rows, partition_spec=spec)
    table.append(rows.slice(0, 5))
    table.append(rows.slice(5))
    for filter in FILTERS:
        scan = table.iceberg.scan(row_filter=filter)
        planned = {task.file.file_path for task in scan.plan_files()}
        theirs = DataScan(table.iceberg.metadata, table.iceberg.io, row_filter=filter)
        assert planned <= {task.file.file_path for task in theirs.plan_files()}, filter
        matches = RowFilter.of(filter, table.iceberg.schema())
        assert sorted(scan.to_arrow()["id"].to_pylist()) == matches.matching(rows)["id"].to_pylist(), filter


def test_a_plan_with_too_many_evaluations_is_refused(shop: tl.Lakehouse) -> None:
    filter = In("id", set(range(100)))
    assert len(list(scan_of(shop, 16, filter).bounded(101 * 17).plan_files())) == 16
    with pytest.raises(PlanTooLarge, match="plan the scan at the client"):
        list(scan_of(shop, 16, filter).bounded(101 * 16).plan_files())


def in_json(n: int) -> dict[str, Any]:
    return {"type": "in", "term": "id", "values": list(range(n))}


def any_of(n: int) -> dict[str, Any]:
    """A filter of `n` comparisons as a balanced tree."""
    if n == 1:
        return {"type": "eq", "term": "id", "value": 1}
    return {"type": "or", "left": any_of(n // 2), "right": any_of(n - n // 2)}


@pytest.mark.parametrize(("make", "span"), [(in_json, False), (in_json, True), (any_of, True)])
def test_a_filter_that_is_too_large_is_400(http_client: Client, shop: tl.Lakehouse, make: Any, span: bool) -> None:
    table = shop.create_table("shop.orders", ROWS)
    table.append(ROWS)
    first = table.iceberg.metadata.current_snapshot_id
    table.append(ROWS)
    more = {"start-snapshot-id": first, "end-snapshot-id": table.iceberg.metadata.current_snapshot_id} if span else {}
    limit = plan_filter.MAX_VALUES
    path = "/v1/namespaces/shop/tables/orders/plan"
    assert http_client("POST", path, {"filter": make(min(limit, 3000) - 1), **more}).code == 200
    assert "plan the scan at the client" in http_client("POST", path, {"filter": make(limit + 1), **more}).bad_request


def test_the_size_of_residual_filters_is_limited(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total size of residual filters in a plan is limited. The response has one for each file, so a filter of a
    kilobyte can become gigabytes."""
    table = shop.create_table("shop.orders", ROWS)
    for _ in range(6):
        table.append(ROWS)
    monkeypatch.setattr(scan_planning, "MAX_RESIDUALS_SIZE_BYTES", 20_000)
    path = "/v1/namespaces/shop/tables/orders/plan"
    assert http_client("POST", path, {"filter": in_json(100)}).code == 200
    answer = http_client("POST", path, {"filter": in_json(2000)})
    assert (answer.code, answer.error) == (400, "BadRequestException")


def test_a_change_takes_linear_time_in_the_columns(shop: tl.Lakehouse) -> None:
    def wide(n: int, id: int) -> Schema:
        return Schema(
            *(NestedField(one, f"c{one}", LongType(), required=False) for one in range(1, n + 1)), schema_id=id
        )

    def work(n: int) -> int:
        shop.create_table(f"shop.wide{n}", wide(n, 0))
        with shop.transaction() as txn:
            updates = (AddSchemaUpdate(schema=wide(n + 1, 1)), SetCurrentSchemaUpdate(schema_id=-1))

            def change() -> None:
                table_writing.commit_table(txn, "shop", f"wide{n}", (), updates)
                txn._staged_tables.write()

            return steps(change, table_definition.__file__)

    work(50)
    once, twice = work(500), work(1000)
    assert twice <= 2.5 * once, (once, twice)

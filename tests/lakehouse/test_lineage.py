"""OpenLineage events of a transaction contain its inputs and outputs, for every statement."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.facet_v2 import parent_run
from openlineage.client.serde import Serde
from openlineage.client.transport import Transport

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog
from trinitylake.lineage import recorded

ROWS = {"id": [1, 2, 3]}


class Collected(Transport):
    """Collects the events instead of sending them."""

    kind = "collected"

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: Any) -> None:
        self.events.append(json.loads(Serde.to_json(event)))


@pytest.fixture
def sent() -> Collected:
    return Collected()


@pytest.fixture
def client(sent: Collected) -> OpenLineageClient:
    return OpenLineageClient(transport=sent)


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """The tables `shop.a`, with rows, `shop.b` and `shop.c`."""
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        for name in "abc":
            txn.create_table(f"shop.{name}", {"id": "bigint"}, primary_key="id")
        txn.table("shop.a").append(ROWS)
    return lake


def names(event: dict[str, Any]) -> tuple[list[str], list[str]]:
    return [one["name"] for one in event["inputs"]], [one["name"] for one in event["outputs"]]


def test_inputs_are_read_tables_and_outputs_written_ones(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected
) -> None:
    with recorded(shop, shop.transaction(), client, job="j") as txn:
        txn.table("shop.c")  # opened, but not changed
        txn.table("shop.b").append(txn.table("shop.a").scan())
    assert [event["eventType"] for event in sent.events] == ["START", "COMPLETE"]
    assert names(sent.events[1]) == (["shop.a"], ["shop.b"])
    assert sent.events[1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_a_table_that_is_scanned_and_written_is_both(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected
) -> None:
    with recorded(shop, shop.transaction(), client, job="j") as txn:
        table = txn.table("shop.a")
        table.overwrite(table.scan(filter="id > 1").to_arrow())
        txn.table("shop.b").upsert(ROWS)  # an upsert reads keys, which is not an input
    assert names(sent.events[1]) == (["shop.a"], ["shop.a", "shop.b"])


def test_created_tables_are_no_inputs_and_dropped_ones_are_marked(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected
) -> None:
    with recorded(shop, shop.transaction(), client, job="j") as txn:
        txn.create_table("shop.new", {"id": "bigint"}).append(ROWS)
        assert txn.table("shop.new").scan().count() == 3
        assert txn.table("shop.a").scan().count() == 3
        txn.drop_table("shop.a")
        txn.create_view("shop.v", "SELECT 1")
    complete = sent.events[1]
    assert names(complete)[0] == ["shop.a"]
    happened = {
        one["name"]: one["facets"]["lifecycleStateChange"]["lifecycleStateChange"] for one in complete["outputs"]
    }
    assert happened == {"shop.new": "CREATE", "shop.v": "CREATE", "shop.a": "DROP"}


def test_reads_through_pyiceberg_are_inputs(shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected) -> None:
    """Reads through PyIceberg are inputs, although an engine that uses the catalog of a transaction calls no reading
    method of this library."""
    with recorded(shop, shop.transaction(), client, job="j") as txn:
        catalog = TrinityLakeCatalog(transaction=txn)
        rows = catalog.load_table("shop.a").scan().to_arrow()
        catalog.load_table("shop.b").append(rows)
    assert names(sent.events[1]) == (["shop.a"], ["shop.b"])


def test_only_the_transactions_own_writes_are_its_outputs(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected
) -> None:
    """Only the transaction's own writes are its outputs, not concurrent appends to the same table."""
    with recorded(shop, shop.transaction(), client, job="j") as txn:
        txn.table("shop.b").append({"id": [7]})
        shop.table("shop.b").append(ROWS)
        shop.table("shop.c").append(ROWS)
    [output] = sent.events[1]["outputs"]
    assert output["name"] == "shop.b"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert output["facets"]["version"]["datasetVersion"] == str(shop.version)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\u202eevil", "a.b", "..", 'quo"te', "[red]", "%s {0}"])
def test_summaries_escape_names_of_tables(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected, name: str
) -> None:
    """A table with a dot in its name is among the inputs and outputs of an event."""
    with shop.transaction() as txn:
        txn.create_table(("shop", name), {"id": "bigint"}).append(ROWS)
    with recorded(shop, shop.transaction(message=name), client, job=name) as txn:
        assert txn.table(("shop", name)).scan().count() == 3
        txn.table(("shop", name)).append(ROWS)
    [read], [written] = sent.events[-1]["inputs"], sent.events[-1]["outputs"]
    assert read["name"] == written["name"] == f"shop.{name}"
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert [field["name"] for field in read["facets"]["schema"]["fields"]] == ["id"]


@pytest.mark.parametrize("at_commit", [False, True])
def test_a_failure_has_no_outputs(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected, at_commit: bool
) -> None:
    def fail() -> None:
        with recorded(shop, shop.transaction(), client, job="j") as txn:
            txn.table("shop.b").append(txn.table("shop.a").scan())
            if not at_commit:
                raise ZeroDivisionError
            txn.add_check(lambda _: False)

    with pytest.raises(tl.CheckFailed if at_commit else ZeroDivisionError):
        fail()
    failed = sent.events[-1]
    assert failed["eventType"] == "FAIL"
    assert names(failed) == (["shop.a"], [])
    assert "Traceback" in failed["run"]["facets"]["errorMessage"]["stackTrace"]


def test_retried_task_has_the_same_run_id(shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected) -> None:
    for _ in range(2):
        with recorded(shop, shop.transaction(id="nightly"), client, job="j") as txn:
            txn.table("shop.b").append(ROWS)
    assert len({event["run"]["runId"] for event in sent.events}) == 1
    assert names(sent.events[1]) == names(sent.events[3]) == ([], ["shop.b"])
    assert shop.table("shop.b").scan().count() == 3
    with recorded(shop, shop.transaction(id="another"), client, job="j"):
        pass
    assert len({event["run"]["runId"] for event in sent.events}) == 2
    assert names(sent.events[-1]) == ([], [])


def test_run_has_the_run_of_the_orchestrator_as_parent(
    shop: tl.Lakehouse, client: OpenLineageClient, sent: Collected
) -> None:
    above = parent_run.ParentRunFacet(
        parent_run.Run("01939e8a-0000-7000-8000-000000000000"), parent_run.Job("airflow", "dag.task")
    )
    with recorded(shop, shop.transaction(), client, job="j", parent=above):
        pass
    assert sent.events[0]["run"]["facets"]["parent"]["job"]["name"] == "dag.task"

"""What one request may cost: its work grows with its size and no faster, and what it weighs is bounded.

- A warehouse of 3 KB of `access-key` repeated stopped the server for 14 seconds: a regular expression over messages,
  whose time grew with the third power of their length.
- A reader grew the server from 192 MB to 1.66 GB by reports of metrics, for good: 64 KiB of JSON become 1.5 MB of
  objects. Eight bodies of 15 MB took 1.25 GB.
- Each page of a list listed everything again, and each part of a plan was planned anew.

Work is counted and not timed, so that a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import ROWS
from trinitylake.rest import RestServer, redaction
from trinitylake.rest.errors import RestError
from trinitylake.rest.redaction import without_secrets
from trinitylake.rest.request import body as bodies
from trinitylake.rest.request.body import BodiesAtWork
from trinitylake.rest.security.principals import Grant, Role
from trinitylake.rest.state import metrics_reports
from trinitylake.rest.state.metrics_reports import MetricsReports
from trinitylake.rest.state.planned_scans import PlannedScans


def steps(work: Callable[[], object], module: str) -> int:
    """How many bytecodes of a module the work takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != module:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


SEEDS = [
    "access-key",
    "access-key=",
    "access_key-",
    "secret",
    "-",
    "=",
    ":'",
    "a=",
    "token='",
    "bearer ",
    "bearer bearer: ",
    "x-amz-",
    "x-amz-a=b&",
    " ",
    "password \" : '",
    "sig=sig=",
    "é",
    "credential=%20;",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_work_for_a_message_grows_with_its_length(seed: str) -> None:
    def work(length: int) -> int:
        text = (seed * length)[:length]
        return steps(lambda: without_secrets(text), redaction.__file__)

    once, twice = work(2000), work(4000)
    assert twice <= 2.5 * once, (once, twice)


def test_a_message_is_read_up_to_a_limit() -> None:
    text = "access-key" * 100_000
    found = without_secrets(text)
    assert len(found) < redaction.MESSAGE_MAX_LENGTH + 100
    assert found.endswith("more characters")


def test_no_regular_expression_reads_messages() -> None:
    assert "import re" not in Path(redaction.__file__).read_text()


def test_a_warehouse_that_looks_like_secrets_is_refused_at_once(http_client: Client) -> None:
    answer = http_client("GET", "/v1/config?warehouse=" + "access-key" * 3000)
    assert answer.code == 404
    assert http_client("GET", "/v1/config?warehouse=@snapshot/password%3Dhunter2").body["error"]["message"].count("***")


def test_the_work_for_a_grant_grows_with_the_name() -> None:
    from trinitylake.rest.security import principals

    grant = Grant(Role.READER, "*".join("a" * 20) + "*b.t")

    def work(length: int) -> int:
        return steps(lambda: grant.fits(("a" * length, "t")), principals.__file__)

    assert work(4000) <= 2.5 * work(2000)


def test_reports_weigh_what_their_bytes_do(lake: tl.Lakehouse) -> None:
    store = MetricsReports()
    values = [[] for _ in range(20_000)]  # 60 KB of JSON, 1.4 MB of lists
    for _ in range(400):
        store.add(("shop", "orders"), {"report-type": "scan", "values": values})
    kept = store.list()
    assert all(isinstance(data, bytes) for _, data in kept)
    assert sum(len(data) for _, data in kept) <= metrics_reports.MAX_REPORTS_SIZE_BYTES
    assert 0 < len(kept) < 400


def test_reports_are_told_as_they_were_sent(http_client: Client, lake: tl.Lakehouse) -> None:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS)
    sent = {"report-type": "scan-report", "filter": {"type": "true"}, "metrics": {"a": 1.5}, "text": 'é"\\'}
    path = "/v1/namespaces/shop/tables/orders/metrics"
    assert [http_client("POST", path, {**sent, "n": number}).code for number in range(3)] == [204] * 3
    reports = http_client("GET", "/trinitylake/v1/metrics").body["reports"]
    assert [one["report"] for one in reports] == [{**sent, "n": number} for number in range(3)]
    assert {tuple(one["table"]) for one in reports} == {("shop", "orders")}


@pytest.mark.parametrize("value", [b"{},", b"[],", b"1,", b'"":1,'])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    http_client: Client, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    def parse(*arguments: object, **options: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr("trinitylake.rest.request.call.Call.parsed", parse)
    text = value * 300_000
    body = b"{" + text + b'"x":1}' if value.startswith(b'"') else b"[" + text + b"1]"
    answer = http_client("POST", "/v1/namespaces", body)
    assert (answer.code, answer.error) == (413, "RequestTooLargeException")


def test_one_principal_does_not_fill_the_memory_with_bodies() -> None:
    """At most so many bytes of large bodies are at work; who waits too long is told; small ones never wait."""

    async def work(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bodies, "_WAIT_SECONDS", 0.05)
        at_work, large = BodiesAtWork(), 15 << 20
        async with at_work.taken("ana", large):
            with pytest.raises(RestError, match="too many large"):
                await at_work.taken("ana", large).__aenter__()
            async with at_work.taken("ana", 1000), at_work.taken("bob", large), at_work.taken("cid", large):
                with pytest.raises(RestError, match="too many large"):
                    await at_work.taken("dan", large).__aenter__()
        async with at_work.taken("ana", large):
            pass
        waiting = asyncio.create_task(_enter(at_work, "ana", large))
        async with asyncio.timeout(5):
            assert await waiting
        assert not at_work._size_bytes

    async def _enter(at_work: BodiesAtWork, who: str, size: int) -> bool:
        async with at_work.taken(who, size):
            return True

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(work(monkeypatch))


def test_bodies_are_at_work_as_long_as_their_request(
    server: RestServer, http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    at_work = server._app._bodies
    monkeypatch.setattr(
        "trinitylake.rest.resources.namespaces.checked_namespace",
        lambda parts: seen.append(at_work._size_bytes.total()) or tuple(parts),
    )
    body = {"namespace": ["a"], "properties": {"note": "x" * 100_000}}
    assert http_client("POST", "/v1/namespaces", body).code == 200
    assert seen == [len(json.dumps(body))]
    assert not at_work._size_bytes


@pytest.fixture
def many(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Three thousand views and as many more in the next namespace, in leaves of five."""
    with lake.transaction() as txn:
        for namespace in ("shop", "shop2"):
            txn.create_namespace(namespace)
            for number in range(1500):
                txn.create_view(f"{namespace}.v{number:04d}", "SELECT 1")
    return lake


def test_a_page_reads_what_it_shows(http_client: Client, many: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    from trinitylake import core

    decode = core.decode_keys

    def counted(keys: Any, config: Any = None) -> pa.RecordBatch:
        nonlocal taken
        taken += len(keys)
        return decode(keys, config)

    monkeypatch.setattr("trinitylake.rest.state.listing.core.decode_keys", counted)
    monkeypatch.setattr("trinitylake.iceberg.catalog.TrinityLakeCatalog.list_views", None)  # all of them
    token, names, costs = "", [], []
    while token is not None:
        taken = 0
        page = http_client("GET", f"/v1/namespaces/shop/views?pageSize=100&pageToken={token}").body
        names += [one["name"] for one in page["identifiers"]]
        token = page["next-page-token"]
        costs.append(taken)
    assert names == [f"v{number:04d}" for number in range(1500)]
    assert max(costs) <= 101, costs


def test_a_page_of_a_namespace_that_is_not_there_is_404(http_client: Client, many: tl.Lakehouse) -> None:
    assert http_client("GET", "/v1/namespaces/none/views?pageSize=10").code == 404
    assert http_client("GET", "/v1/namespaces/shop/tables?pageSize=10").body["identifiers"] == []
    assert http_client("GET", "/v1/namespaces/shop/views?pageSize=10&pageToken=djk5OTk=").body["identifiers"] == []


def test_what_follows_in_a_plan_is_not_planned_again(
    http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trinitylake.rest.resources import scan_planning

    lake.create_namespace("shop")
    table = lake.create_table("shop.orders", ROWS)
    for _ in range(7):
        table.append(ROWS)
    monkeypatch.setattr(scan_planning, "MAX_FILES", 2)
    scan, planned, lock = scan_planning._scan, 0, threading.Lock()

    def counted(*arguments: Any) -> Any:
        nonlocal planned
        with lock:
            planned += 1
        return scan(*arguments)

    monkeypatch.setattr(scan_planning, "_scan", counted)
    path = "/v1/namespaces/shop/tables/orders"

    def all_files(plans_kept: bool) -> list[str]:
        answer = http_client("POST", f"{path}/plan", {}).body
        found = [one["data-file"]["file-path"] for one in answer["file-scan-tasks"]]
        while answer["plan-tasks"]:
            if not plans_kept:
                monkeypatch.setattr(PlannedScans, "get", lambda *_: None)
            answer = http_client("POST", f"{path}/tasks", {"plan-task": answer["plan-tasks"][0]}).body
            found += [one["data-file"]["file-path"] for one in answer["file-scan-tasks"]]
        return found

    kept = all_files(True)
    assert (planned, len(kept), len(set(kept))) == (1, 7, 7)
    assert all_files(False) == kept  # another server, or one that has forgotten it
    assert planned == 5

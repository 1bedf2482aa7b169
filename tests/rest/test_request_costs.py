"""A request takes linear time in its size, and bounded memory.

- A warehouse of 3 KB of repeated `access-key` stopped the server for 14 seconds: a regular expression took cubic time.
- Metrics reports of one reader grew the server from 192 MB to 1.66 GB. Eight bodies of 15 MB took 1.25 GB.
- Each page of a list read the whole list, and each part of a plan planned the whole scan.

Work is counted in steps, not in time, so that the load of the machine has no influence.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import ROWS
from trinitylake.rest import RestServer, secret_redaction, server_metrics
from trinitylake.rest.catalog.plan_cache import PlanCache
from trinitylake.rest.secret_redaction import without_secrets
from trinitylake.rest.security.authorization import Grant, Role
from trinitylake.rest.server_metrics import MetricsReports


def steps(work: Callable[[], object], module: str) -> int:
    """The number of bytecodes of a module that `work` executes."""
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
    "bearer token ",
    "bearer token is not ",
    "bearer ' ",
    "x-amz-",
    "x-amz-a=b&",
    " ",
    "password \" : '",
    "sig=sig=",
    "é",
    "credential=%20;",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_redaction_takes_linear_time(seed: str) -> None:
    def work(length: int) -> int:
        text = (seed * length)[:length]
        return steps(lambda: without_secrets(text), secret_redaction.__file__)

    once, twice = work(2000), work(4000)
    assert twice <= 2.5 * once, (once, twice)


def test_a_long_message_is_cut() -> None:
    text = "access-key" * 100_000
    found = without_secrets(text)
    assert len(found) < secret_redaction.MESSAGE_MAX_LENGTH + 100
    assert found.endswith("more characters")


def test_patterns_of_redaction_repeat_without_limit_at_their_end_only() -> None:
    """A pattern of redaction may have an unlimited repetition only at its end. With two of them, the time for a
    client's message would be quadratic."""
    module = vars(secret_redaction).values()
    quoted = [one for value in module if isinstance(value, dict) for one in value.values()]
    patterns = [one for one in (*module, *quoted) if isinstance(one, re.Pattern)]
    assert len(patterns) >= 5
    for pattern in patterns:
        unlimited = [one for one in re.finditer(r"(?<!\\)[+*](?![^\[]*\])|\{\d+,\}", pattern.pattern)]
        assert all(one.end() == len(pattern.pattern) for one in unlimited), pattern.pattern


def test_a_warehouse_that_looks_like_secrets_is_refused_at_once(http_client: Client) -> None:
    answer = http_client("GET", "/v1/config?warehouse=" + "access-key" * 3000)
    assert answer.code == 404
    assert http_client("GET", "/v1/config?warehouse=@tag/password%3Dhunter2").body["error"]["message"].count("***")


def test_matching_a_grant_takes_linear_time() -> None:
    from trinitylake.rest.security import authorization

    grant = Grant(Role.READER, "*".join("a" * 20) + "*b.t")

    def work(length: int) -> int:
        return steps(lambda: grant.fits(("a" * length, "t")), authorization.__file__)

    assert work(4000) <= 2.5 * work(2000)


def test_reports_take_the_memory_of_their_bytes(lake: tl.Lakehouse) -> None:
    store = MetricsReports()
    values = [[] for _ in range(20_000)]  # 60 KB of JSON, 1.4 MB of lists
    for _ in range(400):
        store.add(("shop", "orders"), {"report-type": "scan", "values": values})
    kept = store.list()
    assert all(isinstance(data, bytes) for _, data in kept)
    assert sum(len(data) for _, data in kept) <= server_metrics.MAX_REPORTS_SIZE_BYTES
    assert 0 < len(kept) < 400


def test_reports_are_returned_as_sent(http_client: Client, lake: tl.Lakehouse) -> None:
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


def test_a_body_counts_until_its_request_ends(
    server: RestServer, http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    large = server._app._bodies._large
    monkeypatch.setattr(
        "trinitylake.rest.handlers.namespaces.checked_namespace",
        lambda parts: seen.append(sum(large._amounts.values())) or tuple(parts),
    )
    body = {"namespace": ["a"], "properties": {"note": "x" * 100_000}}
    assert http_client("POST", "/v1/namespaces", body).code == 200
    assert set(seen) == {len(json.dumps(body))}
    assert large.n_leases == 0


@pytest.fixture
def many(lake: tl.Lakehouse) -> tl.Lakehouse:
    """800 views in two namespaces, in a tree with small leaves."""
    with lake.transaction() as txn:
        for namespace in ("shop", "shop2"):
            txn.create_namespace(namespace)
            for number in range(400):
                txn.create_view(f"{namespace}.v{number:04d}", "SELECT 1")
    return lake


@pytest.fixture
def keys_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of keys in each decoded batch of a list. Reading all keys at once fails."""
    from trinitylake import core

    decode, read = core.decode_keys, []

    def counted(keys: Any, config: Any = None) -> pa.RecordBatch:
        read.append(len(keys))
        return decode(keys, config)

    monkeypatch.setattr("trinitylake.rest.catalog.listing.core.decode_keys", counted)
    for method in ("list_views", "list_tables", "list_namespaces"):
        monkeypatch.setattr(f"trinitylake.iceberg.catalog.TrinityLakeCatalog.{method}", None)
    return read


def pages(http_client: Client, path: str, size: int) -> Iterator[list[Any]]:
    """The entries of each page of a list."""
    token: str | None = ""
    while token is not None:
        separator = "&" if "?" in path else "?"
        page = http_client("GET", f"{path}{separator}pageSize={size}&pageToken={token}").body
        yield page.get("identifiers") or page.get("namespaces") or []
        token = page["next-page-token"]


@pytest.mark.parametrize("state", ["latest", "transaction"])
def test_a_page_of_tables_reads_few_more_keys_than_it_returns(
    http_client: Client, many: tl.Lakehouse, keys_read: list[int], state: str
) -> None:
    """A page of a list reads only few more keys than it returns, in the latest version and in transactions. If each
    page read the whole list, all pages of a hundred thousand names would take a thousand times as long as one list."""
    prefix = "latest"
    expected = [f"v{number:04d}" for number in range(400)]
    if state == "transaction":
        id = http_client("POST", "/trinitylake/v1/transactions", {}).body["id"]
        prefix = f"txn~{id}"
        assert http_client("DELETE", f"/v1/{prefix}/namespaces/shop/views/v0177").code == 204
        expected.remove("v0177")
    names, costs = [], []
    for page in pages(http_client, f"/v1/{prefix}/namespaces/shop/views", 100):
        names += [one["name"] for one in page]
        costs.append(sum(keys_read))
        keys_read.clear()
    assert names == expected
    assert max(costs) <= 102, costs


@pytest.fixture
def many_namespaces(lake: tl.Lakehouse) -> tl.Lakehouse:
    """1,000 top-level namespaces. One of them contains 2,000 namespaces, each of which contains another one."""
    with lake.transaction() as txn:
        for number in range(1000):
            txn.create_namespace(f"n{number:04d}")
        for number in range(2000):
            txn.create_namespace(f"n0500.m{number:04d}.deep")
    return lake


@pytest.mark.parametrize("state", ["latest", "transaction"])
def test_a_page_of_namespaces_reads_few_more_keys_than_it_returns(
    http_client: Client, many_namespaces: tl.Lakehouse, keys_read: list[int], state: str
) -> None:
    """A page of namespaces reads only few more keys than it returns. Each page listed everything below the parent, at
    any depth."""
    prefix = "latest"
    if state == "transaction":
        prefix = f"txn~{http_client('POST', '/trinitylake/v1/transactions', {}).body['id']}"
    found, costs = [], []
    for page in pages(http_client, f"/v1/{prefix}/namespaces", 100):
        found += page
        costs.append(sum(keys_read))
        keys_read.clear()
    assert found == [[f"n{number:04d}"] for number in range(1000)]
    assert sorted(costs)[-2] <= 101, costs
    assert max(costs) <= 101 + 404, costs  # one page skips 2,000 namespaces
    for page in pages(http_client, f"/v1/{prefix}/namespaces?parent=n0500", 100):
        assert len(page) == 100
        assert sum(keys_read) <= 101
        keys_read.clear()


@pytest.mark.parametrize("seed", range(4))
def test_pages_of_namespaces_list_each_once(http_client: Client, lake: tl.Lakehouse, seed: int) -> None:
    """In the order of keys `a!b` is between `a` and `a.b`, and a namespace that only has nested ones has no key.

    Grouping adjacent keys would list it twice or not at all.
    """
    chance = random.Random(seed)
    parts = ["a", "a!", "a b", "a-", "a/", "b", "ab", "B", "=", "é", "a\U0001f600"]
    names = {".".join(chance.choices(parts, k=chance.randint(1, 3))) for _ in range(25)}
    own = {".".join(chance.choices(parts, k=chance.randint(1, 3))) for _ in range(10)} - names
    with lake.transaction() as txn:
        for name in names:
            txn.create_namespace(name)
    prefix = "latest"
    if seed % 2:
        prefix = f"txn~{http_client('POST', '/trinitylake/v1/transactions', {}).body['id']}"
        for name in own:
            assert http_client("POST", f"/v1/{prefix}/namespaces", {"namespace": name.split(".")}).code == 200
        names |= own
    split = [name.split(".") for name in names]
    for parent in ([], *([one[:depth] for one in split for depth in (1, 2)])):
        depth = len(parent)
        children = {tuple(one[: depth + 1]) for one in split if one[:depth] == parent and len(one) > depth}
        query = f"?parent={quote(chr(31).join(parent))}" if parent else ""
        found = [tuple(one) for page in pages(http_client, f"/v1/{prefix}/namespaces{query}", 3) for one in page]
        assert len(found) == len(set(found)), parent
        assert set(found) == children, parent
        whole = http_client("GET", f"/v1/{prefix}/namespaces{query}").body["namespaces"]
        assert {tuple(one) for one in whole} == children, parent


def test_a_token_of_another_list_is_refused(http_client: Client, many: tl.Lakehouse) -> None:
    """A token contains a position among all keys, so the token of another list would end this one without an error."""
    token = http_client("GET", "/v1/namespaces/shop2/views?pageSize=3").body["next-page-token"]
    assert http_client("GET", f"/v1/namespaces/shop2/views?pageSize=3&pageToken={token}").code == 200
    for path in ("/v1/namespaces/shop/views", "/v1/namespaces/shop2/tables", "/v1/namespaces"):
        answer = http_client("GET", f"{path}?pageSize=3&pageToken={token}")
        assert (answer.code, answer.error) == (400, "BadRequestException")


def test_a_page_of_a_missing_namespace_is_404(http_client: Client, many: tl.Lakehouse) -> None:
    assert http_client("GET", "/v1/namespaces/none/views?pageSize=10").code == 404
    assert http_client("GET", "/v1/namespaces/shop/tables?pageSize=10").body["identifiers"] == []
    assert http_client("GET", "/v1/namespaces?parent=none&pageSize=10").code == 404
    assert http_client("GET", "/v1/namespaces?parent=shop&pageSize=10").body["namespaces"] == []


def test_the_plan_cache_counts_objects_and_bytes() -> None:
    """The limit of the plan cache counts Python's objects as well as bytes, and each plan once. By bytes alone, a limit
    of 32 MiB would allow 300 MB."""
    plans = PlanCache(1 << 20)
    for number in range(5000):
        plans.put(("plan", str(number)), {0: b"few"})
    assert 0 < len(plans._plans) <= 1024
    for _ in range(5000):
        plans.put(("the", "same"), {0: b"few"})
    assert len(plans._plans) > 900
    assert plans.get(("the", "same"), 0) == (b"few", None)


def test_the_rest_of_a_plan_is_cached(http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    from trinitylake.rest.handlers import scan_planning

    lake.create_namespace("shop")
    table = lake.create_table("shop.orders", ROWS)
    for _ in range(7):
        table.append(ROWS)
    monkeypatch.setattr(scan_planning, "MAX_FILES", 2)
    scan, planned, lock = scan_planning._files, 0, threading.Lock()

    def counted(*arguments: Any) -> Any:
        nonlocal planned
        with lock:
            planned += 1
        return scan(*arguments)

    monkeypatch.setattr(scan_planning, "_files", counted)
    path = "/v1/namespaces/shop/tables/orders"

    def all_files(plans_kept: bool) -> list[str]:
        answer = http_client("POST", f"{path}/plan", {}).body
        found = [one["data-file"]["file-path"] for one in answer["file-scan-tasks"]]
        while answer["plan-tasks"]:
            if not plans_kept:
                monkeypatch.setattr(PlanCache, "get", lambda *_: None)
            answer = http_client("POST", f"{path}/tasks", {"plan-task": answer["plan-tasks"][0]}).body
            found += [one["data-file"]["file-path"] for one in answer["file-scan-tasks"]]
        return found

    kept = all_files(True)
    assert (planned, len(kept), len(set(kept))) == (1, 7, 7)
    assert all_files(False) == kept  # another server, or a server without the cached plan
    assert planned == 5

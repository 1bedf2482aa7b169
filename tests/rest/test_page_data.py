"""Endpoints of the web page: content, visibility and limits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from manifests_by_hand import list_for
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import ROWS, with_tables
from trinitylake.rest import RestServer, ServerOptions, limits
from trinitylake.rest.http.routes import PAGE as ROUTES
from trinitylake.rest.maintenance import estimates
from trinitylake.rest.page import history, search
from trinitylake.rest.workers.page_jobs import texts_of
from trinitylake.tables.first_rows import first_rows
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("reused_workers")
PAGE = "/trinitylake/v1/page"
#: A word in every name and message that Rita may not see.
CANARY = "canary"


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A table in `shop`, which Rita can read, and a table in a namespace that she cannot read."""
    with_tables(lake, "shop.orders", "canary_payroll.canary_wages")
    lake.create_view("canary_payroll.canary_top", "SELECT 'canary'")
    with lake.transaction(message="canary: both at once", author="canary-ann") as txn:
        txn.table("shop.orders").append(ROWS)
        txn.table("canary_payroll.canary_wages").append(ROWS)
    with lake.transaction(message="canary: wages alone", author="canary-ann") as txn:
        txn.table("canary_payroll.canary_wages").append(ROWS)
    with lake.transaction(message="orders alone", author="ann") as txn:
        txn.table("shop.orders").append(ROWS)
    return lake


@pytest.fixture
def page_server(shop: tl.Lakehouse, tokens: Path) -> Iterator[RestServer]:
    """A server whose page shows rows to principals that can read them."""
    with running(shop, token_file=tokens, options=ServerOptions(page_shows_rows=True)) as server:
        yield server


class Page:
    """A client of the endpoints of the page."""

    def __init__(self, server: RestServer, token: str) -> None:
        self._client, self._token = Client(server), token

    def __call__(self, path: str, method: str = "GET", **query: Any) -> Answer:
        return self._client(method, f"{PAGE}/{path}?{urlencode(query)}", token=self._token)

    def found(self, path: str, **query: Any) -> Any:
        answer = self(path, **query)
        assert answer.code == 200, answer
        return answer.body


@pytest.fixture
def rita(page_server: RestServer) -> Page:
    return Page(page_server, RITA)


@pytest.fixture
def root(page_server: RestServer) -> Page:
    return Page(page_server, ROOT)


def table_path(*name: str, at: str = "latest") -> str:
    return f"{at}/namespaces/{quote(chr(31).join(name[:-1]), safe='')}/tables/{quote(name[-1], safe='')}"


def test_no_route_of_the_page_reveals_hidden_names(
    rita: Page, root: Page, shop: tl.Lakehouse, page_server: RestServer
) -> None:
    """A name that Rita may not read does not appear in the log, a difference, a search, a size or an error. The test
    takes the routes from the server, so it also checks new routes."""
    shop.begin(id="canary-nightly", message="canary", author="canary-ann").save()
    texts, refused = [], set()
    for endpoint in ROUTES:
        for at in ("latest", f"version~{shop.version - 1}"):
            for namespace, table in (("shop", "orders"), ("canary_payroll", "canary_wages"), ("shop", "none")):
                path = endpoint.path.removeprefix(f"{PAGE}/").replace("{prefix}", at)
                path = path.replace("{namespace}", namespace).replace("{table}", table)
                queries: list[dict[str, Any]] = [{}, {"to": shop.version, "from": 0}, {"text": "a"}, {"search": "ann"}]
                queries += [{"text": CANARY}, {"at": "0"}, {"text": "a", "namespace": "canary_payroll"}]
                for query in queries:
                    answer = rita(path, endpoint.method, **query)
                    assert answer.code < 500, (path, query, answer)
                    if answer.code == 403:
                        refused.add(endpoint.path.removeprefix(PAGE))
                    elif CANARY in json.dumps(answer.body):
                        texts.append((path, query, answer))
    assert texts == []
    assert {"/maintenance", "/{prefix}/tree", "/{prefix}/counts"} <= refused
    assert CANARY in json.dumps(root.found("log"))
    assert CANARY in json.dumps(root.found("transactions"))


def test_texts_about_unreadable_objects_are_not_shown(rita: Page, root: Page, shop: tl.Lakehouse) -> None:
    """A reader of one of two changed tables sees that the table was changed, but not the commit message, which is about
    all changes."""
    entries = rita.found("log")["entries"]
    messages = [one["transactions"][0].get("message") for one in entries]
    assert messages == ["orders alone", None, None]
    mixed = entries[1]["transactions"][0]
    assert not mixed["is-whole"]
    assert mixed["changes"] == [{"sign": "~", "kind": "table", "name": ["shop", "orders"]}]
    assert mixed.keys() == {"is-whole", "operation", "changes", "n-changes"}
    assert [one["version"] for one in root.found("log")["entries"]] == list(range(shop.version, -1, -1))
    changed = rita.found("diff", to=shop.version, **{"from": 0})["changes"]
    assert [one["name"] for one in changed] == [["shop"], ["shop", "orders"]]
    assert len(root.found("diff", to=shop.version, **{"from": 0})["changes"]) == 5


def test_names_of_versions_are_for_readers_of_everything(rita: Page, root: Page, shop: tl.Lakehouse) -> None:
    """Only readers of `*` see tags, because a tag concerns the whole version."""
    shop.tags.create("canary-before-the-layoffs")
    assert "canary-before-the-layoffs" in [name for entry in root.found("log")["entries"] for name in entry["tags"]]
    assert all(entry["tags"] == [] for entry in rita.found("log")["entries"])
    assert rita.found("log", search="layoffs")["entries"] == []


def test_rollback_links_to_its_target_and_lists_its_changes(rita: Page, root: Page, shop: tl.Lakehouse) -> None:
    version = shop.rollback(shop.version - 1, message="the load was wrong", author="ann")
    for page in (rita, root):
        newest = page.found("log")["entries"][0]
        assert (newest["version"], newest["rollback-from"], newest["rollback-to"]) == (
            version,
            version - 1,
            version - 2,
        )
        assert newest["transactions"][0]["message"] == "the load was wrong"


def test_log_is_searched_page_by_page(root: Page, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    found = root.found("log", search="WAGES ALONE")
    assert [one["transactions"][0]["message"] for one in found["entries"]] == ["canary: wages alone"]
    assert [one["version"] for one in root.found("log", search="shop.orders")["entries"]] == [5, 3, 1]
    versions, before = [], 1 << 40
    while before is not None:
        page = root.found("log", size=2, before=before)
        versions += [one["version"] for one in page["entries"]]
        before = page["next"]
    assert versions == list(range(shop.version, -1, -1))
    monkeypatch.setattr(history, "MAX_LOOKED_AT", 3)
    page = root.found("log", search="nothing has this")
    assert page["entries"] == []
    assert page["next"] == shop.version - 2


def test_log_is_filtered_by_author_and_object(root: Page, rita: Page, shop: tl.Lakehouse) -> None:
    entries = {entry.version: entry for entry in shop.log()}
    by_ann = [number for number, entry in entries.items() if any(one.author == "ann" for one in entry.transactions)]
    assert [one["version"] for one in root.found("log", author="ann")["entries"]] == by_ann
    orders = [one["version"] for one in root.found("log", object="shop.orders")["entries"]]
    assert orders == [one["version"] for one in rita.found("log", object="shop")["entries"]]
    assert len(orders) == 3
    assert [one["version"] for one in root.found("log", object="shop.orders", author="ann")["entries"]] == by_ann
    assert root.found("log", object="sho")["entries"] == rita.found("log", author="canary-ann")["entries"] == []


def test_difference_is_returned_in_pages(root: Page, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_DIFFERENCES", 2)
    found, start = [], 0
    while start is not None:
        page = root.found("diff", to=shop.version, start=start, **{"from": 0})
        found += page["changes"]
        start = page["next"]
    assert len(found) == 5
    assert {one["sign"] for one in found} == {"+"}
    assert root("diff").code == 400
    assert root("diff", to=10**9).code == 404


def test_a_large_difference_takes_no_memory_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a difference takes little memory on the server. Each page computed the whole difference, which took 800
    MB for a million objects, and any reader could request it."""
    lake = tl.create(tmp_path / "large", durability="none")
    before = lake.version
    names = [f"t{number:05}" for number in range(12_000)]
    lake.register(pa.table({"kind": ["namespace"] * len(names), "namespace": names, "name": [None] * len(names)}))
    with running(lake) as server:
        page = Page(server, "")
        first = page.found("diff", **{"from": before, "to": lake.version})
        assert (len(first["changes"]), first["next"]) == (history.MAX_DIFFERENCES, history.MAX_DIFFERENCES)
        assert server._app.service.workers._workers  # a worker has read the rows
        last = page.found("diff", **{"from": before, "to": lake.version, "start": 11_000})
        assert (len(last["changes"]), last["next"]) == (1000, None)
        assert page("diff", **{"from": 0, "to": 10**6}).code == 404
    monkeypatch.undo()  # a new worker, which has no free memory of an earlier job
    monkeypatch.setitem(limits.JOBS, "page", limits.JobLimits(4, 2, 2 << 20))
    with running(lake) as server:
        answer = Page(server, "")("diff", **{"from": before, "to": lake.version})
        assert (answer.code, "was stopped" in str(answer.body)) == (400, True)


def test_search_ignores_case_and_continues_on_the_next_page(
    root: Page, rita: Page, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.transaction() as txn:
        for number in range(30):
            txn.create_table(("shop", f"Big.{number:02}"), {"id": "bigint"})
    names, token = [], {}
    while token is not None:
        page = rita.found("latest/search", text="shop.big", size=7, **token)
        names += [one["name"] for one in page["found"]]
        token = {"next": page["next"]} if page["next"] else None
    assert names == [["shop", f"Big.{number:02}"] for number in range(30)]
    assert rita.found("latest/search", text="BIG.07", namespace="shop")["found"][0]["name"] == ["shop", "Big.07"]
    assert rita.found("latest/search", text="shop.b", namespace="shop")["found"] == []
    assert root.found("version~1/search", text="big")["found"] == []
    monkeypatch.setattr(search, "MAX_LOOKED_AT", 1)
    page = root.found("latest/search", text="nothing has this")
    assert page["found"] == []
    assert root.found("latest/search", text="nothing has this", next=page["next"]) == {"found": [], "next": None}
    for bad in ({"text": "a" * 201}, {"text": "a", "next": "?"}, {"text": "a", "next": "eg=="}):
        assert root("latest/search", **bad).code == 400, bad


def test_description_of_a_table_has_columns_sizes_and_snapshots(rita: Page, shop: tl.Lakehouse) -> None:
    found = rita.found(table_path("shop", "orders"))
    assert [(one["name"], one["type"]) for one in found["columns"]] == [("id", "BIGINT")]
    assert (found["type"], found["totals"]["rows"], found["n-snapshots"]) == ("managed", 9, 3)
    assert [one["added-rows"] for one in found["snapshots"]] == [3, 3, 3]
    assert found["current-snapshot-id"] == found["snapshots"][0]["id"]
    assert rita.found(table_path("shop", "orders", at="version~2"))["totals"]["rows"] == 3
    history = rita.found(f"{table_path('shop', 'orders')}/history")["entries"]
    assert [(one["version"], one["action"]) for one in history] == [(5, "changed"), (3, "changed"), (1, "created")]
    for path in (table_path("shop", "none"), f"{table_path('shop', 'none')}/history"):
        assert rita(path).code == 404


def test_totals_of_tables_are_those_of_their_descriptions(
    rita: Page, root: Page, shop: tl.Lakehouse, page_server: RestServer
) -> None:
    names = [["shop", "orders"], ["canary_payroll", "canary_wages"], ["shop", "none"], ["shop"]]
    path, body = f"{PAGE}/latest/totals", {"tables": names}
    seen, all_seen = [Client(page_server)("POST", path, body, token=token).body["tables"] for token in (RITA, ROOT)]
    for found, table in ((seen[0], "shop.orders"), (all_seen[1], "canary_payroll.canary_wages")):
        assert found["rows"] == shop.table(table).count()
        described = root.found(table_path(*table.split(".")))
        assert found == {**described["totals"], "last-updated-millis": described["last-updated-millis"]}
    assert (seen[1:], all_seen[2:]) == ([None] * 3, [None] * 2)
    assert Client(page_server)("POST", path, {"tables": [["a", "b"]] * 101}, token=ROOT).code == 400
    assert len(root.found("latest/search", size=100)["found"]) == 5


def test_former_names_in_hidden_namespaces_are_not_shown(rita: Page, shop: tl.Lakehouse) -> None:
    """The history of a table does not show former names in a namespace that Rita cannot read."""
    shop.rename_table("canary_payroll.canary_wages", "shop.wages")
    answer = rita(f"{table_path('shop', 'wages')}/history")
    assert answer.code == 200
    assert CANARY not in json.dumps(answer.body)


def test_rows_are_shown_to_readers_if_the_server_allows_it(rita: Page, shop: tl.Lakehouse, tokens: Path) -> None:
    """The page shows rows only if the operator allows it. Roles give access to the catalog; the store gives access to
    data files, unless the server reads them for its clients."""
    rows = f"{table_path('shop', 'orders')}/rows"
    found = rita.found(rows, limit=4)
    assert found["columns"] == [{"name": "id", "type": "BIGINT", "nulls": 0.0, "min": "1", "max": "3"}]
    assert len(found["rows"]) == 4
    assert {value for [value] in found["rows"]} <= {"1", "2", "3"}
    assert rita(f"{table_path('canary_payroll', 'canary_wages')}/rows").code == 403
    for bad in ("-1", "x", "201", "1e3"):
        assert rita(rows, limit=bad).code == 400
    with running(shop, token_file=tokens) as server:
        for token in (RITA, ROOT):
            assert Page(server, token)(rows).code == 403
            assert Page(server, token).found("lakehouse")["may"]["rows"] is False
    with running(shop) as server:
        assert Page(server, "").found(rows, limit=1)["rows"]


def test_changed_rows_of_a_table_agree_with_its_two_states(rita: Page, shop: tl.Lakehouse) -> None:
    """Changed rows agree with the rows of both versions. Three versions add, remove and update one row each."""
    columns = {"id": pa.array([1, 2, 3], pa.int64()), "note": pa.array(["a", "b", None])}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
    rows = pa.table(columns, schema=schema)
    with shop.transaction() as txn:
        txn.create_table("shop.notes", rows, primary_key=["id"]).append(rows)
    since = shop.version
    table = shop.table("shop.notes")
    table.delete("id = 1")
    table.upsert(rows.slice(1, 1).set_column(1, "note", pa.array(["c"])))
    table.append(pa.table({"id": pa.array([4], pa.int64()), "note": ["d"]}, schema=rows.schema))
    path = f"{table_path('shop', 'notes')}/rows"
    found = rita.found(path, since=since)
    changes = dict(zip(found["signs"], zip(found["before"], found["rows"], strict=True), strict=True))
    assert changes == {"-": (None, ["1", "a"]), "~": (["2", "b"], ["2", "c"]), "+": (None, ["4", "d"])}
    assert (found["counts"], found["is-counted"]) == ({"+": 1, "-": 1, "~": 1}, True)
    assert rita.found(path, since=since, limit=1)["counts"] == found["counts"]
    assert rita.found(path, since=shop.version)["rows"] == []
    assert rita.found(path, since=0)["signs"] == ["+"] * 3
    assert rita(path, since=shop.version + 1).code == 400


def test_changed_rows_of_a_former_hidden_name_are_not_shown(rita: Page, root: Page, shop: tl.Lakehouse) -> None:
    """Rows that were deleted while the table had a name that Rita may not read are not shown to her."""
    since = shop.version
    shop.rename_table("canary_payroll.canary_wages", "shop.moved")
    shop.table("shop.moved").delete("id = 1")
    path = f"{table_path('shop', 'moved')}/rows"
    assert rita(path, since=since).code == 403
    assert CANARY not in json.dumps(rita(path, since=since).body)
    assert root.found(path, since=since)["counts"]["-"]


def test_rows_come_from_no_file_of_another_table(page_server: RestServer, rita: Page, root: Page) -> None:
    """The page shows no rows of a table whose snapshot names manifests of another table, because these would be rows of
    the other table."""
    client = Client(page_server)
    wages = client("GET", "/v1/namespaces/canary_payroll/tables/canary_wages", token=ROOT).body["metadata"]
    mine = client("GET", "/v1/namespaces/shop/tables/orders", token=ROOT).body["metadata"]
    number = mine["last-sequence-number"] + 1
    stolen = {**wages["snapshots"][0], "snapshot-id": 7, "sequence-number": number}
    stolen["manifest-list"] = list_for(stolen["manifest-list"], 7)
    stolen |= {"parent-snapshot-id": mine["current-snapshot-id"], "timestamp-ms": mine["last-updated-ms"] + 1}
    updates = [
        {"action": "add-snapshot", "snapshot": stolen},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7},
    ]
    change = {"requirements": [], "updates": updates}
    path = "/v1/namespaces/shop/tables/orders"
    assert client("POST", path, change, token=WALT).code == 403
    assert client("POST", path, change, token=ROOT).code == 200
    rows = f"{table_path('shop', 'orders')}/rows"
    for query in ({}, {"since": 0}):
        assert rita(rows, **query).code == 400
        assert root(rows, **query).code == 200


def test_rows_come_from_no_file_that_a_link_names(rita: Page, root: Page, shop: tl.Lakehouse) -> None:
    """The page follows no link in the folder of a table, because the link could name a file of another table."""
    rows = f"{table_path('shop', 'orders')}/rows"
    assert rita(rows).code == 200
    files = [
        [Path(task.file.file_path.removeprefix("file://")) for task in shop.table(name).scan().iceberg.plan_files()]
        for name in ("shop.orders", "canary_payroll.canary_wages")
    ]
    for mine in files[0]:
        mine.unlink()
        mine.symlink_to(files[1][0])
    answer = rita(rows)
    assert (answer.code, "outside of the table" in str(answer.body)) == (400, True), answer
    assert root(rows).code == 200


def test_rows_of_a_table_at_a_chosen_location_are_for_readers_of_everything(
    page_server: RestServer, rita: Page, root: Page, shop: tl.Lakehouse
) -> None:
    body = {"name": "trap", "schema": {"type": "struct", "fields": []}, "location": f"{shop.uri}canary_payroll"}
    assert Client(page_server)("POST", "/v1/namespaces/shop/tables", body, token=ROOT).code == 200
    rows = f"{table_path('shop', 'trap')}/rows"
    assert (rita(rows).code, root(rows).code) == (403, 200)


def test_rows_cost_what_a_page_can_show(lake: tl.Lakehouse, tmp_path: Path) -> None:
    """A preview reads only as many rows as the page can show, so a table with one huge row group does not fill the
    memory of the server."""
    lake.create_namespace("shop")
    columns = {f"c{number:03}": pa.array(["x" * 3000] * 300) for number in range(120)}
    table = lake.create_table("shop.wide", pa.table({name: values[:0] for name, values in columns.items()}))
    table.append(pa.table(columns))
    found = first_rows(lake.table("shop.wide").iceberg, 10)
    assert found.rows.num_columns == 100
    assert len(found.omitted_columns) == 20
    assert len(found.rows) == 10
    small = first_rows(lake.table("shop.wide").iceberg, 10, max_size_bytes=1000)
    assert (len(small.rows), small.problem != "") == (0, True)
    with running(lake) as server:
        answer = Page(server, "").found(f"{table_path('shop', 'wide')}/rows", limit=200)
    assert all(len(value) == 1001 for line in answer["rows"] for value in line)
    assert len(json.dumps(answer)) < 4_000_000
    assert "longer than" in answer["problem"]


def test_profile_of_a_column_agrees_with_its_values(lake: tl.Lakehouse) -> None:
    """The counts and bounds in the profile of a column agree with Arrow's. The table has two files, one of which has no
    value in one column."""
    rows = pa.table(
        {
            "number": pa.array([3, None, 1, 2], pa.int32()),
            "price": pa.array([Decimal("1.50"), Decimal("-2.25"), None, Decimal("9.00")]),
            "note": pa.array(["b", "a", None, "ü"]),
            "day": pa.array([date(2026, 3, 1), None, date(1969, 12, 31), date(2030, 1, 1)]),
            "at": pa.array([datetime(2026, 3, 1, 12), datetime(1960, 1, 1), None, None], pa.timestamp("us", "UTC")),
            "none": pa.nulls(4, pa.string()),
            "list": pa.array([[1], None, [2], []], pa.list_(pa.int64())),
        }
    )
    lake.create_namespace("shop")
    table = lake.create_table("shop.mixed", rows.schema)
    table.append(rows.slice(0, 2))
    table.append(rows.slice(2))
    profiles = first_rows(lake.table("shop.mixed").iceberg, 10).profiles
    for column, profile in zip(rows.column_names, profiles, strict=True):
        if column == "list":
            assert profile == (None, None)
            continue
        assert profile.nulls == rows[column].null_count / 4, column
        bounds = None if profile.bounds is None else profile.bounds.to_pylist()
        assert bounds == (None if column == "none" else list(pc.min_max(rows[column]).as_py().values())), column


def test_a_small_file_that_holds_a_gigabyte_takes_no_memory_of_the_server(lake: tl.Lakehouse) -> None:
    """A preview has a memory limit. Sizes in a footer do not count repeated dictionary values, so 31 kB of Parquet can
    take five gigabytes."""
    lake.create_namespace("shop")
    schema = pa.schema([("id", pa.int64()), ("item", pa.string())])
    table = lake.create_table("shop.bomb", schema)
    item = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 3_000_000]))
    table.append(pa.table([pa.array(range(2000)), pa.array([uuid.uuid4().hex for _ in range(2000)])], schema=schema))
    [task] = lake.table("shop.bomb").scan().iceberg.plan_files()
    path = task.file.file_path.removeprefix("file://")
    fields = list(pq.read_schema(path))
    fields[1] = fields[1].with_type(item.type)
    options: dict[str, Any] = {"compression": "zstd", "dictionary_pagesize_limit": 10**9, "write_statistics": False}
    with pq.ParquetWriter(path, pa.schema(fields), store_schema=False, **options) as writer:
        writer.write_table(pa.table([pa.array(range(2000)), item], schema=pa.schema(fields)))
    data = Path(path).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    padding = bytes(task.file.file_size_in_bytes - len(data))  # readers compare the size with that in the manifest
    Path(path).write_bytes(data[:footer] + padding + data[footer:])
    assert Path(path).stat().st_size < 100_000
    rows = f"{table_path('shop', 'bomb')}/rows"
    with running(lake) as server:
        before = resident_size_bytes()
        answer = Page(server, "")(rows)
        assert answer.code in (200, 400), answer
        assert resident_size_bytes() - before < 200 << 20
        Path(path).unlink()
        answer = Page(server, "")(rows)
        assert (answer.code, answer.body["error"]["type"]) == (500, "CorruptFileException")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([2**63 - 1, None], pa.int64()), ["9223372036854775807", None]),
        (pa.array([0.1, 3.0, float("nan"), 1e300]), ["0.1", "3.0", "NaN", "1e+300"]),
        (pa.array([2_932_897], pa.date32()), ["10000-01-01"]),  # a day after the last one of Python's calendar
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001"]),
        (
            pa.array([0, 1500], pa.timestamp("ms", "UTC")),
            ["1970-01-01 00:00:00+00:00", "1970-01-01 00:00:01.500+00:00"],
        ),
        (pa.array([3_600_000_000, 1], pa.time64("us")), ["01:00:00", "00:00:00.000001"]),
        (pa.array([b"\x00\xff", b""]), ["00ff", ""]),
        (pa.array([b"\x01\x02"], pa.binary(2)), ["0102"]),
        (pa.array(["<b>\u202e", "x" * 2000], pa.large_string()), ["<b>\u202e", "x" * 1000 + "…"]),
        (pa.array([[1, None], None]), ["[1, null]", None]),
        (pa.array([{"a": b"\x01", "b": float("nan")}]), ['{"a": "01", "b": "NaN"}']),
        (pa.array([True, False]), ["true", "false"]),
    ],
    ids=lambda one: str(getattr(one, "type", "")),
)
def test_values_of_every_type_become_text(values: pa.Array, texts: list[str | None]) -> None:
    """Values of every type can be shown, including dates beyond Python's calendar and NaN, which JSON does not have."""
    assert texts_of(pa.chunked_array([values])) == texts


def test_deleted_rows_and_older_columns_are_shown_as_a_scan_has_them(lake: tl.Lakehouse) -> None:
    lake.create_namespace("shop")
    table = lake.create_table("shop.orders", ROWS)
    table.append(ROWS)
    with table.update_schema() as update:
        update.rename_column("id", "number")
    table.refresh()
    table.delete("number = 2")
    found = first_rows(lake.table("shop.orders").iceberg, 10)
    assert sorted(found.rows["number"].to_pylist()) == [1, 3]


def test_the_tree_is_shown_node_by_node(root: Page, shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        for number in range(60):
            txn.create_table(f"shop.t{number:02}", {"id": "bigint"})
    shop.create_namespace("last")
    top = root.found("latest/tree")
    assert top["height"] >= 1
    assert len(top["children"]) == top["n-children"] == len(top["separators"]) + 1
    below = root.found("latest/tree", at="0")
    assert below["height"] == top["height"] - 1
    assert below["path"] == top["children"][0]
    assert {"kind": "namespace", "name": ["last"], "removes": False} in top["messages"]
    for way, code in (("99", 404), ("0.0.0.0.0.0", 404), ("x", 400), ("../../etc", 400), (".".join("0" * 17), 400)):
        assert root("latest/tree", at=way).code == code, way


def test_maintenance_is_estimated_without_deleting_anything(
    root: Page, rita: Page, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.alter({"maintenance.compact": "false"}, minimum_versions_to_keep=2)
    folder = shop.table("shop.orders").location.removeprefix(shop.uri)
    shop._storage.put(f"{folder}/data/left-behind.parquet", b"by a writer that died")
    files = [path for path, *_ in shop._storage.list("")]
    assert rita("maintenance", "POST").code == 403
    before = root.found("maintenance")
    assert (before["state"], before["last-run"], before["policy"]["minimum-versions-to-keep"]) == ("none", None, 2)
    assert before["policy"]["properties"]["maintenance.compact"] == "false"
    assert before["last-steps"] == []
    shop.table("shop.orders").maintenance.compact(min_files=1, author="cron", message="nightly")
    (step,) = root.found("maintenance")["last-steps"]
    assert (step["step"], step["version"], step["author"], step["message"]) == (
        "compact",
        shop.version,
        "cron",
        "nightly",
    )
    files = [path for path, *_ in shop._storage.list("")]
    assert root("maintenance", "POST").code == 200
    wait_until(lambda: root.found("maintenance")["state"] != "running")
    found = root.found("maintenance")
    assert found["state"] == "done", found
    assert found["expire"]["versions"] == 0
    assert found["vacuum"]["kept"]["data files"]["files"] == 7
    assert [path for path, *_ in shop._storage.list("")] == files
    monkeypatch.setattr(estimates, "MAX_TABLES", 1)
    assert root("maintenance", "POST").code == 413


def test_long_requests_are_limited(root: Page, page_server: RestServer) -> None:
    """Searches and differences occupy a limited number of threads."""
    at_work = page_server._app.service.long_requests
    with at_work.lease("root"), at_work.lease("root"), at_work.lease("root"), at_work.lease("root"):
        for path in ("log", "diff?to=1", "latest/search?text=a"):
            answer = Client(page_server)("GET", f"{PAGE}/{path}", token=ROOT)
            assert (answer.code, answer.error) == (429, "TooManyRequestsException"), path
        assert root("lakehouse").code == 200
    assert root("log").code == 200
    assert limits.MAX_LONG_REQUESTS_OF_ONE < limits.MAX_LONG_REQUESTS


def test_viewing_an_open_transaction_does_not_join_it(page_server: RestServer, root: Page) -> None:
    """The page reads outside of the viewed transaction. In a serializable transaction its reads would become part of
    the footprint."""
    begun = Client(page_server)("POST", "/trinitylake/v1/transactions", {"id": "nightly"}, token=WALT)
    prefix = begun.body["prefix"]
    for path in (
        f"{prefix}/search?text=a",
        f"{prefix}/counts",
        f"{prefix}/tree",
        table_path("shop", "orders", at=prefix),
    ):
        assert Client(page_server)("GET", f"{PAGE}/{path}", token=ROOT).code == 400, path
    [one] = root.found("transactions")["open"]
    assert (one["id"], one["owner"]) == ("nightly", "walt")
    assert root("address", address="@txn/nightly").code == 400
    assert Page(page_server, RITA)("address", address="@txn/nightly").code == 403


def test_an_address_becomes_a_version(rita: Page, shop: tl.Lakehouse) -> None:
    shop.tags.create("q1", version=3)
    assert rita.found("address", address="@version/2")["version"] == 2
    assert rita.found("address", address="@tag/q1") | {"created-at-millis": 0} == {
        "prefix": "tag~q1",
        "version": 3,
        "created-at-millis": 0,
    }
    assert rita("address", address="@timestamp/1999-01-01T00:00:00Z").code == 404
    assert rita("address", address="@version/99").code == 404
    assert rita("address", address="elsewhere").code == 404
    assert rita("version~99/search", text="a").code == 404


def test_without_a_page_there_is_none(lake: tl.Lakehouse) -> None:
    with running(lake, options=ServerOptions(has_page=False)) as server:
        for path in ("/", "/ui/app.js", f"{PAGE}/lakehouse"):
            assert Client(server)("GET", path).code == 404, path


def test_server_without_tokens_accepts_its_own_page_only(lake: tl.Lakehouse) -> None:
    """Browsers send `Origin` also for requests of the server's own page, and `Sec-Fetch-Site` for all requests.

    A foreign page that requests this server through an image or a link sends no `Origin`.
    """
    with running(lake) as server:
        own = f"127.0.0.1:{server.port}"

        def code(method: str = "GET", **headers: str) -> int:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return Client(server)(method, f"{PAGE}/maintenance", headers=sent).code

        assert code(Sec_Fetch_Site="same-origin") == code(Sec_Fetch_Site="none") == 200
        assert code("POST", Sec_Fetch_Site="same-origin", Origin=f"http://{own}") == 200
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "null"},
            {"Origin": f"http://{own}.evil.example"},
            {"Origin": f"http://{own}", "Host": "evil.example"},
        ):
            assert code(**headers) == code("POST", **headers) == 403, headers


def test_responses_are_not_cached_and_have_a_fixed_content_type(rita: Page) -> None:
    headers = rita("lakehouse").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"] == "application/json"


def resident_size_bytes() -> int:
    """Memory of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) << 10

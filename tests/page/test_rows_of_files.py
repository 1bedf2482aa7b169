"""The first rows of a table in the static page: the browser reads manifests and Parquet files."""

from __future__ import annotations

import decimal
import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from page.driver import Browser
from page.test_page import opened
from page.test_page_of_files import FileServer, serving
from trinitylake.base.pickling import StorageForTasks
from trinitylake.page import write_files
from trinitylake.rest.workers.page_jobs import RowChangesJob, texts_of
from trinitylake.tables.first_rows import first_rows

pytestmark = pytest.mark.lane("browser")

ASK = """
    const [at, name, limit] = arguments;
    return import(new URL("ui/files/source.js", document.baseURI)).then(async ({ FilesSource }) => {
        const source = new FilesSource(new URL("../lake/", document.baseURI));
        await source.lakehouse();
        try {
            return await source.rows(at, name, limit);
        } catch (error) {
            return { refused: error.message, code: error.code ?? null };
        }
    });
"""
ROWS = pa.table(
    {
        "id": pa.array([1, -(1 << 62), None], pa.int64()),
        "small": pa.array([7, None, -1], pa.int32()),
        "name": ["Ünï <b>", "", None],
        "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-0.05"), None], pa.decimal128(9, 2)),
        "huge": pa.array([decimal.Decimal(10**37) + 7, decimal.Decimal(-(10**37)), None], pa.decimal128(38, 0)),
        "ratio": [0.1, -3.0, float("nan")],
        "is_open": [True, False, None],
        "on": pa.array([date(2024, 2, 29), date(1969, 12, 31), None], pa.date32()),
        "at": pa.array(
            [datetime(2024, 2, 29, 12, 30, 0, 123456), datetime(1969, 12, 31, 23, 59, 59), None], pa.timestamp("us")
        ),
        "seen": pa.array([datetime(2024, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", tz="UTC")),
        "clock": pa.array([time(1, 2, 3, 4), None, None], pa.time64("us")),
        "bytes": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "tags": pa.array([["a", None], [], None], pa.list_(pa.string())),
        "place": pa.array([{"x": 1, "on": date(2024, 1, 1)}, None, {"x": None, "on": None}]),
        "marks": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    }
)


@contextmanager
def serving_ranges(folder: Path) -> Iterator[FileServer]:
    """Run a file server that supports range requests, as object stores do."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Range")
            path = Path(self.translate_path(self.path))
            if given is None or not path.is_file():
                return super().do_GET()
            first, last = (int(one) for one in given.removeprefix("bytes=").split("-"))
            part = path.read_bytes()[first : last + 1]
            server.ranges.append(len(part))
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)
            return None

        def log_message(self, format: str, *args: Any) -> None:
            server.asked.append((self.command, self.path))

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server: Any = FileServer(f"http://127.0.0.1:{listening.server_port}")
    server.ranges = []
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("shop")
    write_files(tmp_path / "site", "../lake")
    return lake


def expected(rows: pa.Table) -> list[list[str | None]]:
    """The rows as the server of the page shows them."""
    return [list(row) for row in zip(*(texts_of(column) for column in rows.columns), strict=True)]


def test_rows_are_shown_as_a_server_shows_them(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    table = lake.create_table("shop.all", ROWS)
    table.append(ROWS)
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site", "#/latest/table/shop/all")
        assert not any("hyparquet" in path or "rows.js" in path for _, path in server.asked)
        opened(browser, f"{server.url}/site", "#/latest/table/shop/all?tab=rows")
        assert browser.wait_for_text("Ünï <b>")
        found = browser.run(ASK, "latest", ["shop", "all"], 50)
        assert [one["name"] for one in found["columns"]] == ROWS.column_names
        profiles = first_rows(table.iceberg, 50).profiles
        for column, profile in zip(found["columns"], profiles, strict=True):
            bounds = [None, None] if profile.bounds is None else texts_of(pa.chunked_array([profile.bounds]))
            assert [column["nulls"], column["min"], column["max"]] == [profile.nulls, *bounds], column["name"]
        for row, wanted in zip(found["rows"], expected(table.scan().to_arrow()), strict=True):
            assert dict(zip(ROWS.column_names, row, strict=True)) == dict(zip(ROWS.column_names, wanted, strict=True))


def test_changed_rows_are_those_that_a_server_finds(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    ask = ASK.replace("source.rows(at, name, limit)", "source.rowChanges(at, name, limit, 100)")
    table = lake.create_table("shop.keyed", {"id": "int", "v": "varchar(9)"}, primary_key="id")
    plain = lake.create_table("shop.plain", {"v": "int"})
    since = lake.version
    table.append([{"id": one, "v": f"v{one}"} for one in range(5)])
    plain.append([{"v": one} for one in (1, 1, 1, 2)])
    middle = lake.version
    table.upsert([{"id": 1, "v": "new"}, {"id": 9, "v": None}])
    table.delete("id = 3")
    plain.overwrite([{"v": one} for one in (1, 2, 2)])
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site", f"#/latest/compare/{middle}/{lake.version}?object=shop.keyed")
        assert browser.wait_for_text("updated")
        for name, first in ((("shop", "keyed"), middle), (("shop", "keyed"), since), (("shop", "plain"), middle)):
            found = browser.run(ask, "latest", list(name), first)
            job = RowChangesJob(StorageForTasks(lake._storage), lake.version, name, 100, None, first)
            wanted = job.document(lake._core)
            assert found["counts"] == wanted["counts"], (name, first)
            lines = [
                sorted(map(repr, zip(one["signs"], one["rows"], one["before"], strict=True))) for one in (found, wanted)
            ]
            assert lines[0] == lines[1], (name, first)


@pytest.mark.parametrize("codec", ["zstd", "snappy", "uncompressed"])
def test_only_ranges_of_large_files_are_fetched(
    browser: Browser, lake: tl.Lakehouse, tmp_path: Path, codec: str
) -> None:
    table = lake.create_table(
        "shop.wide",
        {"id": "bigint", "text": "varchar(600)"},
        properties={"write.parquet.compression-codec": codec, "write.parquet.row-group-limit": "1000"},
    )
    table.append({"id": list(range(20_000)), "text": [os.urandom(150).hex() for _ in range(20_000)]})
    [size] = [size for path, size, _ in lake._storage.list("") if path.endswith(".parquet")]
    with serving_ranges(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        found = browser.run(ASK, "latest", ["shop", "wide"], 3)
        assert [row[0] for row in found["rows"]] == ["0", "1", "2"]
        assert 0 < sum(server.ranges) < size / 4, (server.ranges, size)


def test_columns_are_found_by_their_ids(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """Found by name, a renamed column would be empty in old files, and a new column with the former name would have its
    values."""
    table = lake.create_table("shop.renamed", {"id": "int", "a": "varchar(9)"})
    table.append({"id": pa.array([1], pa.int32()), "a": ["old"]})
    with table.update_schema() as update:
        update.rename_column("a", "b")
    with table.update_schema() as update:
        update.add_column("a", _long())
        update.update_column("id", _long())
    table = lake.table("shop.renamed")
    table.append({"id": [2], "b": ["new"], "a": [5]})
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        found = browser.run(ASK, "latest", ["shop", "renamed"], 50)
        assert [one["name"] for one in found["columns"]] == ["id", "b", "a"]
        assert sorted(found["rows"]) == [["1", "old", None], ["2", "new", "5"]]
        before = browser.run(ASK, "version~3", ["shop", "renamed"], 50)
        assert before["rows"] == [["1", "old"]]
        assert browser.run(ASK, "latest", ["shop", "renamed"], 1)["rows"] == [found["rows"][0]]


def test_what_cannot_be_shown_is_told(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    lake.create_table("shop.empty", {"id": "bigint"})
    table = lake.create_table("shop.broken", {"id": "bigint"})
    table.append({"id": list(range(1000))})
    zipped = lake.create_table("shop.zipped", {"id": "bigint"}, properties={"write.parquet.compression-codec": "gzip"})
    zipped.append({"id": [1]})
    [data] = [path for path, _, _ in lake._storage.list("") if "broken" in path and path.endswith(".parquet")]
    whole = (tmp_path / "lake" / data).read_bytes()
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        assert browser.run(ASK, "latest", ["shop", "empty"], 50)["rows"] == []
        assert "unsupported compression codec: GZIP" in browser.run(ASK, "latest", ["shop", "zipped"], 50)["refused"]
        for damaged in (b"", whole[: len(whole) // 2], bytes(len(whole)), whole[:4] + bytes(40) + whole[44:]):
            (tmp_path / "lake" / data).chmod(0o644)
            (tmp_path / "lake" / data).write_bytes(damaged)
            browser.devtools("Network.clearBrowserCache", {})
            assert "data file" in browser.run(ASK, "latest", ["shop", "broken"], 50)["refused"], len(damaged)
        (tmp_path / "lake" / data).unlink()
        browser.devtools("Network.clearBrowserCache", {})
        assert browser.run(ASK, "latest", ["shop", "broken"], 50)["code"] == 404


def _long() -> Any:
    from pyiceberg.types import LongType

    return LongType()

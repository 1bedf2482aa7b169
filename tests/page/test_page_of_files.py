"""The static page: a browser reads the files of a lakehouse from any file server."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import trinitylake as tl
from golden import archive
from page.driver import Browser
from page.test_page import HOSTILE, found_by, opened
from rest.client import running
from rest.shop import with_tables
from trinitylake import _core, core
from trinitylake.definitions import new_table_def, serialize
from trinitylake.page import write_files

pytestmark = pytest.mark.lane("browser")


class FileServer:
    """File server for a folder, which records the requested files."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, str]] = []

    def of_lakehouse(self) -> list[tuple[str, str]]:
        """Method and path of the requests for files of the lakehouse."""
        return [(method, path) for method, path in self.asked if path.startswith("/lake/")]


class Listening(http.server.ThreadingHTTPServer):
    """A listing requests all its files at once; with Python's default backlog of five, some connections were reset."""

    request_queue_size = 64


@contextmanager
def serving(folder: Path) -> Iterator[FileServer]:
    """Run a file server that knows nothing about lakehouses."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            server.asked.append((self.command, self.path))

    listening = Listening(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server = FileServer(f"http://127.0.0.1:{listening.server_port}")
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
    """A lakehouse with some history, next to the page."""
    lake = tl.create(str(tmp_path / "lake"), name="The shop", order=8, durability="none")
    with_tables(lake, "shop.orders", "shop.till.orders", "payroll.wages")
    lake.create_view("shop.top", "SELECT id\nFROM shop.orders", dialect="duckdb")
    with lake.transaction(message="Many tables", author="etl") as txn:
        for number in range(300):
            txn.create_table(f"shop.t{number:03}", {"id": "bigint"})
    lake.tags.create("q1")
    lake.drop_table("shop.t007")
    with lake.transaction(message="Three more rows") as txn:
        txn.table("shop.orders").append({"id": [7, 8, 9]})
    write_files(tmp_path / "site", "../lake")
    return lake


def test_a_browser_reads_the_files_of_a_lakehouse(
    browser: Browser, lake: tl.Lakehouse, tmp_path: Path, axe: str
) -> None:
    with serving(tmp_path) as server:
        url = f"{server.url}/site"
        opened(browser, url)
        assert "The shop" in browser.text("main h1")
        assert browser.wait_for_text("payroll")
        opened(browser, url, "#/latest/table/shop/orders")
        assert {"6", "2"} <= set(browser.text(".facts").split())
        assert found_by(axe, browser) == []
        opened(browser, url, "#/version~1/table/shop/orders")
        assert "3" in browser.text(".facts").split()
        opened(browser, url, "#/latest/view/shop/top")
        assert "FROM shop.orders" in browser.text("pre")
        opened(browser, url, "#/latest/log")
        assert "Three more rows" in browser.text("main")
        opened(browser, url, f"#/latest/version/{lake.version - 1}")
        assert browser.wait_for_text("1 changed object")
        assert "shop.t007" in browser.text(".differences")
        opened(browser, url, "#/tag~q1/table/shop/t007")
        assert browser.text("main h1") == "t007"
        opened(browser, url, "#/latest/table/shop/t007")
        assert browser.text("main h1") == "Not found"
        opened(browser, url, "#/latest/maintenance")  # a link of the served page
        assert browser.text("main h1") == "Needs a server"
        opened(browser, url, "#/latest/tree")
        browser.click(".child:nth-child(2)")
        browser.wait("return location.hash.includes('way=1')")
        assert {method for method, _ in server.asked} == {"GET", "HEAD"}


def test_types_are_named_as_in_the_library(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """The page showed Iceberg's names of types, and different names with and without a server. Above rows, the static
    page did so until later, and sorted numbers as text."""
    types = ["boolean", "int", "bigint", "real", "double", "decimal(10,2)", "date", "time", "timestamp", "timestamptz"]
    types += ["varchar", "uuid", "fixed(7)", "binary", "array<int not null>", "map<varchar,array<bigint>>"]
    types += ['row("a b" int not null, c row(d varchar))']
    lake.create_table("shop.types", {f"c{place}": type for place, type in enumerate(types)})
    lake.table("shop.types").append([{"c0": True}])
    expected = [str(column.type) for column in lake.table("shop.types").schema.columns]
    shown = "return [...document.querySelectorAll('main td code')].map(one => one.textContent)"
    above_rows = []
    with serving(tmp_path) as server, running(lake) as served:
        for url in (f"{server.url}/site", served.url):
            opened(browser, url, "#/latest/table/shop/types")
            assert browser.run(shown) == expected
            opened(browser, url, "#/latest/table/shop/types?tab=rows")
            above_rows.append(
                browser.run("return [...document.querySelectorAll('.data th .type')].map(one => one.textContent)")
            )
    assert above_rows[0] == above_rows[1]
    assert above_rows[0][:3] == ["BOOLEAN", "INTEGER", "BIGINT"]


def test_names_are_those_that_the_library_reads(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """The core in the browser reads nodes one after the other. It must find the same names as the library in trees with
    buffers, splits and deletes."""
    for number in range(0, 300, 3):
        if lake.exists(f"shop.t{number:03}"):
            lake.drop_table(f"shop.t{number:03}")
    with lake.transaction() as txn:
        for name in HOSTILE:
            txn.create_table(("shop", name), {"id": "bigint"})
    ask = """
        const [root, at] = arguments;
        return import(new URL("ui/files/source.js", document.baseURI)).then(async ({ FilesSource }) => {
            const source = new FilesSource(new URL(root, document.baseURI));
            await source.lakehouse();
            const names = [];
            let next;
            do {
                const page = await source.objects(at, "table", ["shop"], next);
                names.push(...page.items.map((one) => one.at(-1)));
                next = page.next;
            } while (next !== undefined);
            return names;
        });
    """
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        for version in (1, 3, lake.version - 60, lake.version - 1, lake.version):
            expected = [one.removeprefix("shop.") for one in lake.at(version).tables("shop")]
            assert browser.run(ask, "../lake/", f"version~{version}") == expected, version


def test_nodes_are_read_however_they_are_compressed(browser: Browser, tmp_path: Path) -> None:
    """Nodes with LZ4 could not be read, and names next to `a` were omitted if a namespace was nested in `a`."""
    names = ["a", "a-b", "a.c", "a.c.d", "b"]
    with serving(tmp_path) as server:
        for compression in ("zstd", "lz4", "none"):
            folder = tmp_path / compression
            lake = tl.create(str(folder), properties={"node.compression": compression}, durability="none")
            for name in names:
                lake.create_namespace(name)
            write_files(tmp_path / f"site-{compression}", f"../{compression}")
            opened(browser, f"{server.url}/site-{compression}")
            assert browser.wait_for_text("a-b"), compression
            opened(browser, f"{server.url}/site-{compression}", "#/latest/namespace/a/c")
            assert browser.wait_for_text("d"), compression


def test_the_newest_version_is_found_from_an_old_hint_and_without_one(
    browser: Browser, lake: tl.Lakehouse, tmp_path: Path
) -> None:
    """A browser cannot list the files of a store, and the hint may be old (format §7)."""
    hint = tmp_path / "lake" / "_latest_hint.txt"
    with serving(tmp_path) as server:
        for text in (str(lake.version), "1", "nonsense", None):
            tl.lakehouse.lakehouse._core.finish_background_tasks(10)
            hint.unlink(missing_ok=True)
            if text is not None:
                hint.write_text(text)
            opened(browser, f"{server.url}/site")
            assert f"Latest · {lake.version}" in browser.text(".version"), text


def test_the_version_of_a_moment_is_the_one_that_the_library_finds(
    browser: Browser, lake: tl.Lakehouse, tmp_path: Path
) -> None:
    """The page had its own search for a version by time, and showed no date if it found no version."""
    ask = """
        const [root, moment] = arguments;
        return import(new URL("ui/files/source.js", document.baseURI)).then(async ({ FilesSource }) => {
            const source = new FilesSource(new URL(root, document.baseURI));
            return (await source.address(`@timestamp/${moment}`)).version;
        });
    """
    log = lake.log(None)
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        for entry in log:
            for moment in (entry.created_at, entry.created_at + timedelta(milliseconds=1)):
                found = browser.run(ask, "../lake/", moment.isoformat(timespec="milliseconds"))
                assert found == lake.at(moment).version
        browser.click("button.version")
        browser.wait("return document.querySelector('dialog[open]') !== null")
        browser.run("document.querySelector('#chosen-moment').value = '2001-01-01T12:00'")
        browser.run("document.querySelector('#chosen-moment').form.requestSubmit()")
        assert browser.wait_for_text("no version is as old as 2001-01-01T", "dialog")
        assert f"the lakehouse was created at {log[-1].created_at:%Y-%m-%dT%H:%M:%S}." in browser.text("dialog")
        lake.maintenance.expire(before=3)
        tl.lakehouse.lakehouse._core.finish_background_tasks(10)
        assert not (tmp_path / "lake" / tl.core.root_path(1)).exists()
        browser.devtools("Network.clearBrowserCache", {})
        opened(browser, f"{server.url}/site")
        browser.click("button.version")
        browser.wait("return document.querySelector('dialog[open]') !== null")
        browser.run("document.querySelector('#chosen-moment').value = '2001-01-01T12:00'")
        browser.run("document.querySelector('#chosen-moment').form.requestSubmit()")
        assert browser.wait_for_text("have expired; the oldest kept is 3, created at ", "dialog")


def test_versions_that_expired_while_the_page_was_open_are_left(
    browser: Browser, lake: tl.Lakehouse, tmp_path: Path
) -> None:
    """The page assumed that versions it had found still existed, and showed their files from the browser cache."""
    ask = """
        const [root] = arguments;
        return import(new URL("ui/files/source.js", document.baseURI)).then(async ({ FilesSource }) => {
            window.source ??= new FilesSource(new URL(root, document.baseURI));
            return (await window.source.lakehouse()).version;
        });
    """
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        assert browser.run(ask, "../lake/") == lake.version
        before = lake.version
        for number in range(100):
            lake.create_namespace(f"later{number}")
        tl.lakehouse.lakehouse._core.finish_background_tasks(10)
        for version in range(before + 50):
            (tmp_path / "lake" / tl.core.root_path(version)).unlink()
        server.asked.clear()
        assert browser.run(ask, "../lake/") == lake.version
        assert len(server.of_lakehouse()) < 60


def test_hostile_files_end_in_words(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    root = tmp_path / "lake" / tl.core.root_path(lake.version)
    whole = root.read_bytes()
    with serving(tmp_path) as server:
        for at in (0, 100, len(whole) // 2, len(whole) - 10, len(whole) - 1):
            root.chmod(0o644)
            root.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            browser.devtools("Network.clearBrowserCache", {})
            opened(browser, f"{server.url}/site")
            assert "went wrong" in browser.text("main h1"), at
        root.write_bytes(whole[: len(whole) // 2])
        browser.devtools("Network.clearBrowserCache", {})
        opened(browser, f"{server.url}/site")
        assert "went wrong" in browser.text("main h1")


def test_definitions_that_a_root_holds_are_shown(browser: Browser, tmp_path: Path) -> None:
    """A writer died after it had created the root and before it had created the definitions. The page showed them as
    missing until the next commit."""
    name = f"0.1/{archive.HELD_DEFINITIONS}"
    folder = archive.unpack_into(name, tmp_path / "lake")
    root = core.root_path(archive.expectation(name)["latest"])
    held = archive.held_definitions(core.read_node((folder / root).read_bytes()).system)
    write_files(tmp_path / "site", "../lake")
    with serving(tmp_path) as server:
        url = f"{server.url}/site"
        opened(browser, url, "#/latest/namespace/held")
        assert browser.wait_for_text("東京")
        opened(browser, url, "#/latest/namespace/before")
        assert browser.wait_for_text("research")
        opened(browser, url, "#/latest/view/before/big")
        assert "SELECT * FROM cities" in browser.wait_for_text("SELECT id FROM cities")
        # A definition of the previous version, whose file exists.
        opened(browser, url, "#/version~2/namespace/before")
        assert browser.text("main h1") == "before"
        # No missing file was requested.
        assert not [path for _, path in server.of_lakehouse() for one in held if path.endswith(one)]


def test_the_log_goes_on_behind_a_damaged_root(browser: Browser, tmp_path: Path) -> None:
    """The log ended at a damaged or missing root, as if all versions before it had expired."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for name in "abcdefgh":
        with lake.transaction(message=f"made {name}") as txn:
            txn.create_namespace(name)
    (tmp_path / "lake" / core.root_path(3)).write_bytes(b"damaged")
    (tmp_path / "lake" / core.root_path(5)).unlink()
    write_files(tmp_path / "site", "../lake")
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site", "#/latest/log")
        shown = browser.wait_for_text("made a")
        assert [name for name in "abcdefgh" if f"made {name}" in shown] == ["a", "b", "d", "f", "g", "h"]
        assert shown.count("damaged") >= 2
        for version in (0, 1):
            (tmp_path / "lake" / core.root_path(version)).unlink()
        opened(browser, f"{server.url}/site", "#/latest/log")
        assert "made b" in browser.wait_for_text("made b")
        assert browser.text("main").count("not there") <= 1, "an expired version is not shown as damage"


def test_hostile_names_and_words_are_nothing_but_text(browser: Browser, tmp_path: Path) -> None:
    """A server omits or escapes some text for its page, but files contain it unchanged: names, messages, rows,
    properties."""
    lake = tl.create(str(tmp_path / "lake"), name=HOSTILE[0], properties={HOSTILE[1]: HOSTILE[0]}, durability="none")
    columns = [text for text in HOSTILE if "\u200b" not in text]
    rows = pa.table({name: [HOSTILE[number % len(HOSTILE)]] for number, name in enumerate(columns)})
    with lake.transaction(message=" ".join(HOSTILE), author=HOSTILE[0], properties={HOSTILE[2]: HOSTILE[1]}) as txn:
        txn.create_namespace("shop", {HOSTILE[0]: HOSTILE[1]})
        for name in HOSTILE:
            txn.create_table(("shop", name), {"id": "bigint"}, properties={"comment": HOSTILE[0]})
        txn.create_table("shop.rows", rows, properties={HOSTILE[1]: HOSTILE[0]}).append(rows)
        txn.create_view("shop.view", f"SELECT '{HOSTILE[1]}'", dialect="spark", properties={HOSTILE[0]: HOSTILE[2]})
    write_files(tmp_path / "site", "../lake")
    addresses = ["#/", "#/latest/namespace/shop", "#/latest/log", "#/latest/version/1", "#/latest/tree"]
    addresses += [
        "#/latest/view/shop/view",
        *(f"#/latest/table/shop/rows?tab={tab}" for tab in ("", "properties", "rows")),
    ]
    addresses += [f"#/latest/table/shop/{quote(name, safe='')}" for name in HOSTILE]
    addresses += [f"#/latest/search?text={quote(name[:50], safe='')}" for name in HOSTILE[:4]]
    with serving(tmp_path) as server:
        for address in addresses:
            opened(browser, f"{server.url}/site", address)
            marks = browser.run(
                "return [typeof pwned, document.querySelectorAll('main img, main script, [onerror]').length]"
            )
            assert marks == ["undefined", 0], address
        opened(browser, f"{server.url}/site", "#/latest/namespace/shop")
        browser.wait_for_text(HOSTILE[0])
        opened(browser, f"{server.url}/site", "#/latest/table/shop/rows?tab=rows")
        shown = browser.wait_for_text(HOSTILE[0], "table")
        assert "U+202E" in shown
        assert "\u202e" not in shown


def test_what_is_read_of_very_many_tables_does_not_grow_with_them(browser: Browser, tmp_path: Path) -> None:
    number = int(os.environ.get("TRINITYLAKE_PAGE_TABLES", "100000"))
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("big")
    location = _core.definition_path("table", "big", "one", 1024)
    lake._storage.put(location, serialize(new_table_def()))
    names = [f"table_{one:06}" for one in range(number)]
    ones = {"kind": ["table"] * number, "namespace": ["big"] * number, "name": names, "location": [location] * number}
    lake.register(pa.table(ones))
    tl.lakehouse.lakehouse._core.finish_background_tasks(10)
    write_files(tmp_path / "site", "../lake")
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        requests = len(server.of_lakehouse())
        sent = browser.run("return performance.getEntries().reduce((sum, one) => sum + (one.encodedBodySize ?? 0), 0)")
        print(f"{number:,} tables: {requests} requests and {sent:,} bytes, the page's own among them, to open it")
        assert requests < 20
        assert sent < 300_000
        server.asked.clear()
        opened(browser, f"{server.url}/site", "#/latest/namespace/big")
        browser.wait_for_text("table_000004")
        print(f"{len(server.of_lakehouse())} requests for the first 500 of them")
        assert len(server.of_lakehouse()) < 60

"""The web page in a real browser: hostile names, tokens, addresses, keyboard, many tables, accessibility."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import trinitylake as tl
from page.driver import Browser
from rest.client import TOKEN, running
from rest.shop import with_tables
from trinitylake import _core
from trinitylake.definitions import new_table_def, serialize

pytestmark = pytest.mark.lane("browser")

#: Texts that would run a script, break out of their element, or hide the text after them if they were read as markup.
HOSTILE = (
    "<img src=x onerror=pwned()>",
    "</script><script>pwned()</script>",
    '" onmouseover="pwned()',
    "javascript:pwned()",
    "{{pwned()}}${pwned()}",
    "a\u202etxt.exe",
    "zero\u200bwidth\ufeff",
    "%2e%2e%2f%00",
    "#/latest/maintenance?x=<svg onload=pwned()>",
    "..",
    "名前 🦆",
    "x" * 90,
)
#: Screenshots of all views, for a review after a change.
SCREENSHOTS = Path(__file__).parents[2] / "target" / "screenshots"
READY = (
    "return document.querySelector('main h1') !== null && document.querySelector('.waiting, main[aria-busy]') === null"
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tl.Lakehouse:
    """A lakehouse with every kind of object."""
    lake = tl.create(str(tmp_path_factory.mktemp("lake") / "lake"), name="The shop", order=8, durability="none")
    with_tables(lake, "shop.orders", "shop.till.orders", "payroll.wages")
    lake.create_view("shop.top", "SELECT id\nFROM shop.orders", dialect="duckdb")
    lake.tags.create("q1", message="the quarter")
    with lake.transaction(message="A bad load", author="etl") as txn:
        txn.table("shop.orders").delete("id = 1")
    lake.rollback(lake.version - 1, message="The load was wrong", author="ana")
    with lake.transaction(message="Many tables", author="etl") as txn:
        for number in range(40):
            txn.create_table(f"shop.t{number:02}", {"id": "bigint", "note": "varchar"})
    lake.begin(id="nightly", message="Waits", author="bob").save()
    return lake


@pytest.fixture(scope="module")
def url(lake: tl.Lakehouse) -> Iterator[str]:
    """A server without tokens."""
    with running(lake) as server:
        yield server.url


def opened(browser: Browser, url: str, address: str = "#/") -> None:
    """Open a view by its address."""
    browser.go("about:blank")
    browser.go(f"{url}/{address}")
    browser.wait(READY)


VIEWS = {
    "overview": "#/",
    "namespace": "#/latest/namespace/shop",
    "table": "#/latest/table/shop/orders",
    "rows": "#/latest/table/shop/orders?tab=rows",
    "snapshots": "#/latest/table/shop/orders?tab=snapshots",
    "history": "#/latest/table/shop/orders?tab=history",
    "properties": "#/latest/table/shop/orders?tab=properties",
    "view": "#/latest/view/shop/top",
    "search": "#/latest/search?text=orders",
    "log": "#/latest/log",
    "version": "#/latest/version/5",
    "tree": "#/latest/tree",
    "transactions": "#/latest/transactions",
    "compare": "#/latest/compare/3/4",
    "maintenance": "#/latest/maintenance",
    "sql": "#/latest/sql",
    "past": "#/version~2/namespace/shop",
    "absent": "#/latest/table/shop/none",
}


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_keeps_anybody_from_using_a_view(browser: Browser, url: str, axe: str, view: str) -> None:
    """All views follow WCAG 2.2 and best practices, in light and dark colours, on a desktop and on a phone."""
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 400), ("dark", 400)):
        browser.resize(width, 900)
        browser.emulate(prefers_color_scheme=scheme)
        opened(browser, url, VIEWS[view])
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        browser.screenshot(SCREENSHOTS / f"{view}-{scheme}-{width}.png")
        assert found_by(axe, browser) == [], (scheme, width)
        overflow = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"the page is wider than the window at {width}"


def test_nothing_keeps_anybody_from_using_dialogs_and_results(browser: Browser, lake: tl.Lakehouse, axe: str) -> None:
    """The same for elements that appear only after a click: timeline, row, query history, result rows, charts,
    sign-in."""
    query = quote("SELECT id, id * 2 AS twice, NULL AS nothing FROM shop.orders")
    steps = {
        "time": ("#/", ["button.version"], "dialog .sparkline"),
        "row": ("#/latest/table/shop/orders?tab=rows", [".data .no button"], "dialog dl"),
        "result": (f"#/latest/sql?q={query}", [".query button.main"], ".data td"),
        "chart": (f"#/latest/sql?q={query}", [".query button.main", ".switch button:last-child"], "canvas"),
        "queries": ("#/latest/sql", [".query .tools button:nth-last-child(2)"], "dialog .past-queries"),
    }
    with running(lake) as server, running(lake, token=TOKEN) as closed:
        for scheme, width in (("light", 1280), ("dark", 400)):
            browser.resize(width, 900)
            browser.emulate(prefers_color_scheme=scheme)
            for name, (address, clicks, shown) in steps.items():
                opened(browser, server.url, address)
                for selector in clicks:
                    browser.wait("return document.querySelector(arguments[0]) !== null", selector)
                    browser.click(selector)
                browser.wait("return document.querySelector(arguments[0]) !== null", shown)
                browser.wait(READY)
                browser.screenshot(SCREENSHOTS / f"{name}-{scheme}-{width}.png")
                assert found_by(axe, browser) == [], (name, scheme)
            if width == 400:
                opened(browser, server.url, "#/latest/table/shop/orders")
                browser.click(".menu")
                assert "orders" in browser.text("#sidebar")
                assert found_by(axe, browser) == [], "menu"
            opened(browser, closed.url)
            browser.screenshot(SCREENSHOTS / f"sign-in-{scheme}-{width}.png")
            assert found_by(axe, browser) == [], (scheme, width)


def found_by(axe: str, browser: Browser) -> list[Any]:
    """Violations that axe finds. It is injected by the DevTools protocol, because the page forbids other scripts."""
    call = "axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(found.violations.map("
    call += "one => [one.id, one.help, one.nodes.slice(0, 3).map(node => node.html)])))"
    browser.devtools("Runtime.evaluate", {"expression": axe})
    answer = browser.devtools("Runtime.evaluate", {"expression": call, "awaitPromise": True, "returnByValue": True})
    found: list[Any] = json.loads(answer["result"]["value"])
    return found


def test_axe_would_find_something(browser: Browser, url: str, axe: str) -> None:
    opened(browser, url)
    browser.run("document.querySelector('#search').removeAttribute('aria-label'); document.title = ''")
    browser.run("document.querySelector('#search').removeAttribute('placeholder')")
    assert {one[0] for one in found_by(axe, browser)} >= {"label", "document-title"}


def test_hostile_names_and_words_are_nothing_but_text(browser: Browser, tmp_path: Path) -> None:
    """Names, comments, properties, messages, authors, SQL, columns and values come from other people than the viewer. A
    script in one of them would act with the viewer's token."""
    lake = tl.create(str(tmp_path / "lake"), name=HOSTILE[0], properties={HOSTILE[1]: HOSTILE[0]}, durability="none")
    names = [text for text in HOSTILE if "\u200b" not in text]
    columns = list(dict.fromkeys(names))
    rows = pa.table({name: [HOSTILE[number % len(HOSTILE)]] for number, name in enumerate(columns)})
    with lake.transaction(message=" ".join(HOSTILE), author=HOSTILE[0]) as txn:
        txn.create_namespace("shop", {HOSTILE[0]: HOSTILE[1]})
        for name in HOSTILE:
            txn.create_table(("shop", name), {"id": "bigint"}, properties={"comment": HOSTILE[0]})
        txn.create_table("shop.rows", rows, properties={HOSTILE[1]: HOSTILE[0]}).append(rows)
        txn.create_view("shop.view", f"SELECT '{HOSTILE[1]}'", dialect="spark", properties={HOSTILE[0]: HOSTILE[2]})
    lake.begin(id="nightly", message=HOSTILE[0], author=HOSTILE[1]).save()
    with running(lake) as server:
        addresses = ["#/", "#/latest/namespace/shop", "#/latest/log", "#/latest/version/1", "#/latest/compare/0/1"]
        addresses += ["#/latest/transactions", "#/latest/tree", "#/latest/table/shop/rows", "#/latest/view/shop/view"]
        addresses += [f"#/latest/table/shop/rows?tab={tab}" for tab in ("rows", "properties")]
        addresses += [f"#/latest/table/shop/{quote(name, safe='')}" for name in HOSTILE]
        addresses += [f"#/latest/search?text={quote(name[:50], safe='')}" for name in HOSTILE]
        addresses += [f"#/{quote(name, safe='')}/{quote(name, safe='')}" for name in HOSTILE]
        for address in addresses:
            opened(browser, server.url, address)
            marks = browser.run(
                "return [typeof pwned, document.querySelectorAll('main img, main script, [onerror]').length]"
            )
            assert marks == ["undefined", 0], address
        opened(browser, server.url, "#/latest/table/shop/rows?tab=rows")
        assert HOSTILE[0] in browser.text("table")
        assert "U+202E" in browser.text("table")
        opened(browser, server.url, "#/latest/version/1")
        assert HOSTILE[1] in browser.text("main")


def test_a_wrong_element_is_refused_before_it_is_made(browser: Browser, url: str) -> None:
    """All elements are created by functions that refuse executable content, so a mistake in a view is harmless."""
    opened(browser, url)
    script = """
        const [attribute, value] = arguments;
        return import(new URL("ui/dom.js", document.baseURI)).then(
            ({ h }) => { try { h("a", { [attribute]: value }); return "made"; } catch { return "refused"; } });
    """
    for attribute, value in (
        ("href", "javascript:pwned()"),
        ("href", "https://elsewhere.example/"),
        ("xlink:href", "javascript:pwned()"),
        ("onclick", "pwned()"),
        ("style", "background: url(//elsewhere.example)"),
        ("srcdoc", "<script>pwned()</script>"),
        ("src", "//elsewhere.example"),
        ("formaction", "javascript:pwned()"),
    ):
        assert browser.run(script, attribute, value) == "refused", attribute
    assert browser.run(script, "href", "#/latest/log") == "made"
    refused = "try { document.body.innerHTML = '<p>'; return 'made'; } catch { return 'refused'; }"
    assert browser.run(refused) == "refused"
    assert any("TrustedHTML" in line for line in browser.log())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("#/latest/table/shop/none", "Not found"),
        ("#/latest/table/shop", "Not found"),
        ("#/latest/table/none/none", "Not found"),
        ("#/latest/view/shop/none", "Not found"),
        ("#/latest/namespace/none", "Not found"),
        ("#/latest/namespace", "Not found"),
        ("#/version~99999/overview", "Not found"),
        ("#/version~999999999999999999/table/shop/orders", "Not found"),
        ("#/tag~none/namespace/shop", "Not found"),
        ("#/latest/version/99999", "Not found"),
        ("#/latest/version/x", "Not found"),
        ("#/latest/version/", "Not found"),
        ("#/latest/compare/3", "Not found"),
        ("#/latest/compare/3/-1", "Not found"),
        ("#/latest/nowhere", "Not found"),
        ("#/latest/__proto__", "Not found"),
        ("#/latest/constructor", "Not found"),
        ("#/latest/tree?way=77.3", "Not found"),
        ("#/latest/tree?way=x", "Storage"),
        ("#/latest/table/shop/orders?tab=none", "orders"),
        ("#/latest/log?before=x", "Log"),
        ("#/latest/search", "Search"),
        ("#/%E0%A4%A", "Not found"),
    ],
)
def test_an_address_that_leads_nowhere_says_so(browser: Browser, url: str, address: str, words: str) -> None:
    opened(browser, url, address)
    assert words in browser.text("main h1")
    assert "undefined" not in browser.text("main")


def test_a_token_is_asked_for_and_kept_for_the_tab_alone(browser: Browser, lake: tl.Lakehouse) -> None:
    with running(lake, token=TOKEN) as server:
        opened(browser, server.url, "#/latest/table/shop/orders")
        assert "Sign in with a token" in browser.text("main")
        assert "The shop" not in browser.text()
        for token, words in (("wrong-" + TOKEN, "bearer token"), (TOKEN, "orders")):
            browser.run("document.querySelector('#token').value = arguments[0]", token)
            browser.click("form.token button")
            browser.wait_for_text(words)
        assert browser.run("return [document.cookie, Object.keys(localStorage).length, sessionStorage.length]") == [
            "",
            0,
            1,
        ]
        browser.run("location.reload()")
        browser.wait_for_text("orders", "main h1")
        browser.click(".who button")
        browser.wait_for_text("Sign in with a token")
        assert browser.run("return sessionStorage.length") == 0


def test_without_a_mouse(browser: Browser, url: str) -> None:
    opened(browser, url)
    browser.press("Tab")
    assert browser.run("return document.activeElement.innerText").startswith("Skip to")
    browser.press("Enter")
    assert browser.run("return document.activeElement.id") == "main"
    browser.press("/")
    assert browser.run("return document.activeElement.id") == "search"
    browser.press(*"t07")
    browser.wait("return document.querySelector('.objects').innerText.trim() === 'shop.t07'")
    browser.press("Enter")
    browser.wait("return location.hash === '#/latest/search?text=t07'")
    browser.wait_for_text("shop.t07")
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    reached = []
    for _ in range(40):
        browser.press("Tab")
        reached.append(browser.run("return document.activeElement.innerText.trim()"))
        if reached[-1] == "shop.t07":
            break
    assert reached[-1] == "shop.t07", reached
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.press("Enter")
    browser.wait("return document.querySelector('main h1')?.innerText === 't07'")  # wait for the heading of the table
    assert browser.run("return document.activeElement.tagName") == "H1"
    assert browser.run("return document.title").startswith("shop.t07")


def test_time_travel(browser: Browser, url: str, lake: tl.Lakehouse) -> None:
    opened(browser, url, "#/latest/namespace/shop")
    assert "t07" in browser.text("main")
    browser.click("button.version")
    browser.wait("return document.querySelector('dialog[open]') !== null")
    browser.run("document.querySelector('#chosen-version').value = '2'")
    browser.run("document.querySelector('#chosen-version').form.requestSubmit()")
    browser.wait("return location.hash === '#/version~2/namespace/shop'")
    browser.wait_for_text("This is version 2 of ", ".banner")
    browser.click(".banner .steps a")
    browser.wait("return location.hash === '#/version~1/namespace/shop'")
    browser.wait_for_text("This is version 1 of ", ".banner")
    browser.run("history.back()")
    browser.wait_for_text("This is version 2 of ", ".banner")
    browser.wait(READY)
    assert "t07" not in browser.text("main")
    assert "orders" in browser.text("main")
    browser.click(".banner > a")
    browser.wait_for_text("t07")
    browser.click("button.version")
    browser.press("Escape")
    browser.wait("return document.querySelector('dialog') === null")


def test_the_log_draws_what_was_undone_beside_the_trunk(browser: Browser, url: str, lake: tl.Lakehouse) -> None:
    opened(browser, url, "#/latest/log")
    undone = browser.run(
        "return [...document.querySelectorAll('.entry')].filter(one => one.querySelector('.lanes.undone'))"
        ".map(one => one.querySelector('.no').innerText)"
    )
    target = lake.log()[1]
    assert target.rollback_from is not None
    assert undone == [str(target.rollback_from)]
    assert browser.run("return document.querySelectorAll('.bend').length") == 1
    opened(browser, url, "#/latest/log?text=bad%20load")
    assert browser.run("return document.querySelectorAll('.entry').length") == 1


def test_a_query_is_written_and_run(browser: Browser, url: str) -> None:
    opened(browser, url, "#/latest/sql")
    browser.click("#query")
    browser.press(*"SELECT id, '<b>' AS x FROM shop.orders WHERE id = 2 ")
    browser.press("Escape")  # closes the completion
    event = "new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true})"
    content = "document.querySelector('#query').shadowRoot.querySelector('.cm-content')"
    browser.run(f"{content}.dispatchEvent({event})")
    assert "<b>" in browser.wait_for_text("1 row")
    browser.click(".switch button:last-child")
    browser.wait("return document.querySelector('.chart canvas') !== null")
    browser.run("location.hash = '#/latest/sql?q=' + encodeURIComponent('DROP TABLE shop.orders')")
    browser.wait(f"return {content}?.innerText === 'DROP TABLE shop.orders'")
    assert browser.text(".note.bad") == "", "a link does not run its query"
    browser.click(".query button.main")
    browser.wait("return document.querySelector('.note.bad') !== null")
    assert "orders" in browser.text(".note.bad")
    endless = quote("SELECT count(*) FROM range(1000000000000)")
    opened(browser, url, f"#/latest/sql?q={endless}")
    for word in ("Run", "Cancel"):
        buttons = "[...document.querySelectorAll('.query button')]"
        browser.run(f"{buttons}.find(one => one.innerText.trim() === arguments[0]).click()", word)
    browser.wait_for_text("Cancelled after")


def test_a_query_is_completed_by_the_names_of_the_lakehouse(browser: Browser, url: str) -> None:
    opened(browser, url, "#/latest/sql")
    browser.click("#query")
    offered = (
        "return [...document.querySelector('#query').shadowRoot.querySelectorAll('.cm-completionLabel')]"
        ".map(one => one.innerText)"
    )
    browser.press(*"SELECT * FROM shop.o")
    browser.wait(f"{offered}.includes('orders')")
    browser.press("Escape", *"rders x WHERE x.i")
    browser.wait(f"{offered}.includes('id')")


def test_two_versions_are_compared_row_by_row(browser: Browser, url: str, lake: tl.Lakehouse) -> None:
    """The transaction "A bad load" deleted one of three rows."""
    [bad] = [entry.version for entry in lake.log() if any(one.message == "A bad load" for one in entry.transactions)]
    opened(browser, url, "#/latest/log")
    for version in (bad, bad - 1):
        browser.click(f".entry input[value='{version}']")
    browser.click(".selection a")
    browser.wait_for_text("1 removed")
    assert browser.run("return location.hash") == f"#/latest/compare/{bad - 1}/{bad}"
    assert browser.run("return [...document.querySelectorAll('tr.removed td')].map(one => one.innerText)") == ["1"]
    opened(browser, url, "#/latest/log?author=ana")
    assert browser.run("return document.querySelectorAll('.entry').length") == 1


def test_rows_are_sorted_filtered_and_widened(browser: Browser, url: str) -> None:
    opened(browser, url, "#/latest/sql?q=" + quote("SELECT i, i % 7 AS j FROM range(20) t(i)"))
    browser.click(".query button.main")
    browser.wait_for_text("20 rows")
    cells = "return [...document.querySelectorAll('.data tbody td:nth-child(2)')].map(one => Number(one.innerText))"
    assert browser.run(cells) == list(range(20))
    browser.click(".data th:nth-child(3) .sort")
    assert browser.run(cells) == sorted(range(20), key=lambda i: (i % 7, i))
    browser.click(".data th:nth-child(3) .sort")
    assert browser.run(cells) == sorted(range(20), key=lambda i: (-(i % 7), i))
    browser.click(".datagrid input")
    browser.press("1", "9")
    browser.wait_for_text("1 of 20 rows")
    assert browser.run(cells) == [19]
    width = "return document.querySelector('.data th:nth-child(2)').offsetWidth"
    before = browser.run(width)
    browser.run("document.querySelector('.data th:nth-child(2) .grip').focus()")
    event = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})"
    browser.run(f"document.activeElement.dispatchEvent({event})")
    assert browser.run(width) == before + 16


def test_views_take_few_requests(browser: Browser, url: str) -> None:
    """Each request is a round trip to the server. The names in the sidebar are read once."""
    asked = "return performance.getEntriesByType('resource').filter(one => one.name.includes('/v1/')).length"
    opened(browser, url)
    browser.wait("return document.querySelector('.overview .sortable td.number') !== null")
    assert browser.run(asked) <= 5
    for address, most in (
        ("#/latest/table/shop/orders", 5),
        ("#/latest/table/shop/orders?tab=rows", 3),
        ("#/latest/table/shop/orders?tab=snapshots", 2),
        ("#/latest/view/shop/top", 2),
        ("#/latest/log", 2),
    ):
        before = browser.run(asked)
        browser.run("location.hash = arguments[0]", address)
        browser.wait("return document.querySelector('main[aria-busy]') !== null || document.title !== arguments[0]", "")
        browser.wait("return performance.getEntriesByType('resource').length > 0")
        browser.wait(READY)
        assert browser.run(asked) - before <= most, address


def test_upkeep_is_estimated_when_it_is_asked_for(browser: Browser, url: str) -> None:
    opened(browser, url, "#/latest/maintenance")
    browser.click("main button.main")
    assert "Would be freed" in browser.wait_for_text("Files in use", seconds=60)
    assert "7 days, and always the newest 3" in browser.text("main")


def test_a_namespace_of_very_many_tables(browser: Browser, tmp_path: Path) -> None:
    """In one list, the page would contain 100,000 elements, and the first response all names."""
    number = 100_000
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("big")
    location = _core.definition_path("table", "big", "one", 1024)
    lake._storage.put(location, serialize(new_table_def()))
    names = [f"table_{one:06}" for one in range(number)]
    ones = {"kind": ["table"] * number, "namespace": ["big"] * number, "name": names, "location": [location] * number}
    lake.register(pa.table(ones))
    with running(lake) as server:
        opened(browser, server.url, "#/latest/namespace/big")
        browser.wait_for_text("table_000000")
        shown = "return document.querySelectorAll('.long li').length"
        for _ in range(12):
            before = browser.run("return document.querySelector('.longlist p').innerText")
            browser.run("const box = document.querySelector('.longbox'); box.scrollTop = box.scrollHeight")
            browser.wait("return document.querySelector('.longlist p').innerText !== arguments[0]", before)
            assert browser.run(shown) < 120
        assert browser.run("return document.querySelector('.longbox li:last-child').innerText") >= "table_005000"
        opened(browser, server.url, "#/latest/namespace/big?text=_09999")
        assert browser.wait_for_text("table_099999").count("table_") == 10
        opened(browser, server.url, "#/latest/search?text=table_05")
        browser.wait_for_text("big.table_050000")
        opened(browser, server.url, "#/latest/tree")
        assert browser.run("return document.querySelectorAll('.child').length") > 4
        browser.click(".child:nth-child(2)")
        browser.wait("return location.hash.includes('way=1')")
        browser.wait(READY)


def test_a_view_that_was_left_does_not_come_back(browser: Browser, url: str) -> None:
    """A view that the user has left does not appear again. Late answers replaced a newer view."""
    opened(browser, url)
    for _ in range(5):
        browser.run(
            "location.hash = '#/latest/tree'; location.hash = '#/latest/log'; location.hash = '#/latest/transactions'"
        )
    browser.wait_for_text("Transactions", "main h1")
    browser.wait(READY)
    assert browser.text("main h1") == "Transactions"

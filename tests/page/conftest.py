"""Fixtures: a browser, and lakehouses behind servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from page import driver
from page.driver import Browser
from trinitylake.page import is_built

#: The package may be built without npm; then `make page` reports that it leaves out the page.
collect_ignore = [] if is_built() or shutil.which("npm") else ["test_built_files.py"]
AXE = Path(__file__).parents[2] / "page" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Browser]:
    """One browser for all tests, because a start takes seconds."""
    if absent := driver.missing():
        pytest.fail(f"not installed: {absent} (Debian: apt install chromium chromium-driver)")
    with driver.browsing() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """A browser window for one test, without state of earlier tests. The test fails if the console contains an
    error."""
    one_browser.go("about:blank")
    one_browser.devtools("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    one_browser.emulate(prefers_color_scheme="light")
    one_browser.resize(1280, 900)
    one_browser.log()
    yield one_browser
    # The browser itself logs each response with an error status.
    wrong = [line for line in one_browser.log() if "Failed to load resource: the server responded" not in line]
    assert wrong == []


@pytest.fixture(scope="session")
def axe() -> str:
    """Source of axe, a library that checks pages for accessibility."""
    if not AXE.is_file():
        pytest.fail("axe-core is not installed: make test-browser")
    return AXE.read_text()

"""The files of the page for browsers: what is in them, how they are sent, how large they are."""

from __future__ import annotations

import http.client
import posixpath
import re
from collections.abc import Iterator

import pytest

import trinitylake as tl
from rest.client import TOKEN, running
from trinitylake.page import POLICY, Asset, assets, index_of_server
from trinitylake.rest import RestServer

#: What a browser loads before it shows anything, at most.
FIRST_PAINT_SIZE_BYTES = 300_000
SCRIPTS = [one for one in assets() if one.path.endswith(".js")]


@pytest.fixture
def server(root: str) -> Iterator[RestServer]:
    """A server with a token."""
    with running(tl.create(root), token=TOKEN) as server:
        yield server


def fetched(server: RestServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def test_the_page_is_sent_to_everybody_and_its_data_to_nobody_without_a_token(server: RestServer) -> None:
    for path in ("/", *(f"/{one.path}" for one in assets())):
        code, headers, body = fetched(server, path)
        assert (code, headers["content-security-policy"]) == (200, POLICY), path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "set-cookie" not in headers
        assert fetched(server, path, "POST")[0] == 405
        assert fetched(server, path, If_None_Match=headers["etag"])[0] == 304
        assert fetched(server, path, "HEAD")[2] == b""
        assert len(body) > 100
    assert fetched(server, "/trinitylake/v1/page/lakehouse")[0] == 401
    for path in ("/ui/../rest/tokens", "/ui/%2e%2e/__init__.py", "/ui//app.js", "/ui/app.js/", "/index.html"):
        assert fetched(server, path)[0] == 401, path


def test_a_browser_may_run_nothing_but_files_of_the_page() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in POLICY
    text = index_of_server().content.decode()
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    assert re.findall(r"\son\w+\s*=|<style|style=", text) == []


def test_nothing_is_fetched_from_elsewhere() -> None:
    """A font or a script from another host tells that host who looks at which lakehouse."""
    namespaces = ("http://www.w3.org/2000/svg",)
    for one in (index_of_server(), *assets()):
        if one.path.endswith(".wasm"):
            continue
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", one.content.decode())
        assert [url for url in found if url not in namespaces] == [], one.path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.path)
def test_scripts_make_no_markup_of_text(script: Asset) -> None:
    text = script.content.decode()
    for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"):
        assert bad not in text, bad
    assert "document.cookie" not in text
    imported = re.findall(r'^(?:import|export) .*?from "([^"]+)";', text, re.MULTILINE | re.DOTALL)
    paths = {one.path for one in assets()}
    folder = posixpath.dirname(script.path)
    assert [path for path in imported if posixpath.normpath(posixpath.join(folder, path)) not in paths] == []


def test_the_page_is_small() -> None:
    size = sum(len(one.content) for one in (index_of_server(), *assets()))
    assert size < FIRST_PAINT_SIZE_BYTES
    assert max(len(line) for one in SCRIPTS for line in one.content.decode().splitlines()) < 400

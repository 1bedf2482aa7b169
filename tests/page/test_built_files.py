"""Files of the built web page: their content, size and HTTP headers."""

from __future__ import annotations

import gzip
import http.client
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from rest.client import TOKEN, running
from trinitylake.cli.app import app
from trinitylake.page import POLICY, assets, index_of_files, index_of_server, is_built, write_files
from trinitylake.rest import RestServer

#: Maximum size of the files that are loaded before the first view appears.
FIRST_PAINT_SIZE_BYTES = 300_000
#: Maximum size of all files: the query editor has 370 kB, charts 55 kB, the Parquet reader 65 kB.
TOTAL_SIZE_BYTES = 850_000
#: The files of a lakehouse with a million tables are about 26 kB of it (docs/performance.md).
LAKEHOUSE_SIZE_BYTES = 28_000
IMPORTS = re.compile(r"""(?:\bfrom|\bimport)\s*["'](\.\.?/[^"']+)["']""")
#: Files that read a lakehouse in the browser.
CORE = "ui/core.bin"
PAGE = Path(__file__).resolve().parents[2] / "page"
SOURCES = sorted((PAGE / "src").rglob("*.js"))


@pytest.fixture(autouse=True)
def built() -> None:
    assert is_built(), "the web page is not built: make page"


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
        assert len(body) > 80
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
    """A font or script from another host would reveal to it which lakehouse a user views."""
    namespaces = ("http://www.w3.org/2000/svg",)
    for one in (index_of_server(), *assets()):
        if one.path in (CORE, "ui/licenses.txt"):
            continue
        text = one.content.decode()
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text)
        assert [url for url in found if url not in namespaces] == [], one.path


def test_scripts_make_no_markup_of_text() -> None:
    """This holds for our sources and for the bundled libraries."""
    built = {one.path: one.content.decode() for one in assets() if one.path.endswith(".js")}
    for name, text in {**{str(path): path.read_text() for path in SOURCES}, **built}.items():
        for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "new Function", "DOMParser"):
            assert bad not in text, (name, bad)
        assert re.search(r"\beval\(", text) is None, name
        assert "document.cookie" not in text, name
    paths = {one.path for one in assets()}
    for path, text in built.items():
        imported = {posixpath.normpath(posixpath.join(posixpath.dirname(path), one)) for one in IMPORTS.findall(text)}
        assert imported <= paths, path


def test_the_core_imports_nothing_and_tells_nothing_of_the_machine_that_made_it() -> None:
    [packed] = [one.content for one in assets() if one.path == CORE]
    core = gzip.decompress(packed)
    assert core.startswith(b"\0asm\1\0\0\0")
    # A section begins with its number and its length. The import section (number 2) must be absent.
    sections, at = [], 8
    while at < len(core):
        kind, size, shift = core[at], 0, 0
        while True:
            at += 1
            size |= (core[at] & 0x7F) << shift
            shift += 7
            if core[at] < 0x80:
                break
        sections.append(kind)
        at += 1 + size
    assert at == len(core)
    assert 2 not in sections
    assert re.findall(rb"/(?:home|root|work|Users|build)/[ -~]*", core) == []


def test_the_licenses_of_bundled_libraries_are_part_of_the_page() -> None:
    libraries = json.loads((PAGE / "package.json").read_text())["dependencies"]
    [licenses] = [one.content.decode() for one in assets() if one.path == "ui/licenses.txt"]
    build_only = {"binaryen", "esbuild"}
    for name in libraries.keys() - build_only:
        assert f"{name} {libraries[name]}\n\nMIT" in licenses or f"{name} {libraries[name]}\n\nThe MIT" in licenses, (
            name
        )
    assert not any(f"{name} " in licenses for name in build_only)


@pytest.mark.parametrize(
    "root", ["", "s3://bucket/lake", "file:///lake", "javascript:alert(1)", "https://", "https://a:b@c/", "a?b", "a#b"]
)
def test_a_page_of_files_is_for_what_a_browser_can_fetch(root: str) -> None:
    with pytest.raises(tl.InvalidArgument, match="the address of the lakehouse"):
        index_of_files(root)


def test_a_page_of_files_has_its_policy_in_it(tmp_path: Path) -> None:
    written = write_files(tmp_path / "site", "https://data.example/lake")
    assert sorted(path.relative_to(tmp_path / "site").as_posix() for path in written) == sorted(
        ["index.html", *(one.path for one in assets())]
    )
    text = (tmp_path / "site" / "index.html").read_text()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy).split(";"))
    assert rules["connect-src"] == "'self' https://data.example"
    # The static page may compile WebAssembly; the page of a server may not.
    assert rules["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert 'name="trinitylake-root" content="https://data.example/lake/"' in text
    assert index_of_files('x"><script>').content.count(b"<script") == 1
    with pytest.raises(tl.InvalidArgument, match="cannot be written"):
        write_files(tmp_path / "site" / "index.html", "../lake")


def _package(folder: Path, **described: str) -> Path:
    """An npm package whose DuckDB does nothing."""
    (folder / "dist").mkdir(parents=True)
    wanted = {"name": "@duckdb/duckdb-wasm", "version": "1.32.0", "license": "MIT", **described}
    (folder / "package.json").write_text(json.dumps(wanted))
    (folder / "dist" / "duckdb-eh.wasm").write_bytes(b"\0asm")
    (folder / "dist" / "duckdb-browser-eh.worker.js").write_text("work();\n//# sourceMappingURL=worker.js.map")
    return folder


def test_duckdb_lies_beside_a_page_that_is_given_it(tmp_path: Path) -> None:
    """Queries without a server need DuckDB, which must not be loaded from a third party."""
    package = _package(tmp_path / "project" / "node_modules" / "@duckdb" / "duckdb-wasm")
    with tarfile.open(tmp_path / "duckdb.tgz", "w:gz") as archive:
        archive.add(package, "package")
    for given in (package, tmp_path / "project", tmp_path / "duckdb.tgz"):
        site = tmp_path / f"site of {given.name}"
        result = CliRunner().invoke(app, ["page", str(site), "--lakehouse", "../lake", "--sql", str(given), "--json"])
        assert result.exit_code == 0, result.output
        assert gzip.decompress((site / "duckdb" / "duckdb-eh.bin").read_bytes()) == b"\0asm"
        assert (site / "duckdb" / "duckdb-browser-eh.worker.js").read_text() == "work();\n"
        assert '"license": "MIT"' in (site / "duckdb" / "package.txt").read_text()
        text = (site / "index.html").read_text()
        [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
        rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy).split(";"))
        # Only one more script may be created from text: the worker of the page.
        assert rules["trusted-types"] == "trinitylake-sql"
        assert rules["worker-src"] == rules["connect-src"] == "'self'"
        assert rules["require-trusted-types-for"] == "'script'"
        assert 'name="trinitylake-sql"' in text
    assert "trinitylake-sql" not in index_of_files("../lake").content.decode()


def test_the_worker_of_queries_has_its_walls() -> None:
    """DuckDB refuses external access itself, which browser tests check. The worker has a second check, in case a
    version of DuckDB does not refuse some access."""
    worker = (PAGE / "src/files/sql/worker.js").read_text()
    assert "if (String(address.url ?? address) !== program) throw" in worker
    for way_out in ("XMLHttpRequest", "WebSocket", "WebTransport", "EventSource", "importScripts", "Worker"):
        assert f'"{way_out}"' in worker
    duckdb = (PAGE / "src/files/sql/duckdb.js").read_text()
    assert "enable_external_access = false" in duckdb
    assert "lock_configuration = true" in duckdb


def test_a_page_takes_no_duckdb_that_nobody_has_tried(tmp_path: Path) -> None:
    """The page depends on undocumented messages of DuckDB's worker, so queries would fail with an untested version."""
    other = _package(tmp_path / "other", version="1.33.0")
    named = _package(tmp_path / "named", name="left-pad")
    lacking = _package(tmp_path / "lacking")
    (lacking / "dist" / "duckdb-eh.wasm").unlink()
    (tmp_path / "no.tgz").write_bytes(b"no archive")
    for package, message in {
        other: "1.33.0", named: "left-pad", lacking: "lacks", tmp_path: "is not", tmp_path / "no.tgz": "is not",
    }.items():  # fmt: skip
        with pytest.raises(tl.InvalidArgument, match=message):
            write_files(tmp_path / "site", "../lake", package)
    assert not (tmp_path / "site").exists()


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["page", str(tmp_path / "site"), "--lakehouse", "../lake", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (tmp_path / "site" / "index.html").is_file()
    assert found["size_bytes"] == sum(path.stat().st_size for path in (tmp_path / "site").rglob("*.*"))
    assert CliRunner().invoke(app, ["page", str(tmp_path), "--lakehouse", "s3://bucket/lake"]).exit_code == 2


def test_the_page_is_small() -> None:
    content = {one.path: one.content for one in assets()}
    waiting, loaded = ["ui/app.js"], {"ui/style.css", "ui/icon.svg", CORE}
    while waiting:
        path = waiting.pop()
        if path not in loaded:
            loaded.add(path)
            # `import(…)` loads later.
            imported = IMPORTS.findall(content[path].decode())
            waiting += [posixpath.normpath(posixpath.join(posixpath.dirname(path), one)) for one in imported]
    # hyparquet, CodeMirror and uPlot are loaded on demand.
    for sign in (b"parquet file invalid", b"cm-content", b"u-legend"):
        assert not any(sign in content[path] for path in loaded if path.endswith(".js")), sign
        assert any(sign in one for path, one in content.items() if path.endswith(".js")), sign
    size = sum(len(content[path]) for path in loaded) + len(index_of_server().content)
    assert size < FIRST_PAINT_SIZE_BYTES - LAKEHOUSE_SIZE_BYTES
    assert sum(len(one) for one in content.values()) < TOTAL_SIZE_BYTES
    assert max(len(line) for path in SOURCES for line in path.read_text().splitlines()) < 400

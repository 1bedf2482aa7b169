"""The files of the page for browsers: what is in them, how they are sent, how large they are."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import posixpath
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from rest.client import TOKEN, running
from trinitylake.cli.app import app
from trinitylake.page import POLICY, Asset, assets, index_of_files, index_of_server, write_files
from trinitylake.rest import RestServer

#: What a browser loads before it shows anything, at most.
FIRST_PAINT_SIZE_BYTES = 300_000
#: Of which the files of a lakehouse with a million tables take about 26 kB (docs/performance.md).
LAKEHOUSE_SIZE_BYTES = 28_000
IMPORTS = re.compile(r"^(?:import|export) (?:[\w*, ]+|[\w, ]*\{[^}]*\}) from [\"']([^\"']+)[\"'];?$", re.M)
SCRIPTS = [one for one in assets() if one.path.endswith(".js")]
#: What reads the files of a lakehouse in a browser.
CORE = "ui/files/core.bin"
ROOT = Path(__file__).resolve().parents[1]


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
        if one.path == CORE:
            continue
        text = re.sub(r"^\s*//.*$|^ \*.*$", "", one.content.decode(), flags=re.M)  # no comment of others' code either
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text)
        assert [url for url in found if url not in namespaces] == [], one.path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.path)
def test_scripts_make_no_markup_of_text(script: Asset) -> None:
    text = script.content.decode()
    for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"):
        assert bad not in text, bad
    assert "document.cookie" not in text
    imported = IMPORTS.findall(text)
    paths = {one.path for one in assets()}
    folder = posixpath.dirname(script.path)
    assert [path for path in imported if posixpath.normpath(posixpath.join(folder, path)) not in paths] == []


def test_the_core_was_compiled_from_these_sources() -> None:
    """The page went on reading nodes by rules that the library had changed: nobody had compiled its core anew."""
    command = [sys.executable, str(ROOT / "scripts" / "page_core.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    sources = json.loads((ROOT / "python" / "trinitylake" / "page" / "core.json").read_text())["sources"]
    for rule in ("format/src/key.rs", "format/src/node/columns.rs", "tree/src/scan.rs", "version/src/root_metadata.rs"):
        assert f"rust/{rule}" in sources


def test_the_core_imports_nothing_and_tells_nothing_of_the_machine_that_made_it() -> None:
    [packed] = [one.content for one in assets() if one.path == CORE]
    core = gzip.decompress(packed)
    assert core.startswith(b"\0asm\1\0\0\0")
    # Sections are a number and a length; that of imports, the second, is not there.
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


def test_hyparquet_is_all_that_is_by_others() -> None:
    assert [one.path for one in assets() if "/vendor/" in one.path and "/hyparquet/" not in one.path] == []


def test_hyparquet_is_as_it_was_published() -> None:
    """hyparquet 1.31.5 (MIT) reads Parquet: the modules that are needed, one after the other by name."""
    content = {one.path: one.content for one in assets() if one.path.startswith("ui/vendor/hyparquet/")}
    assert b"MIT License" in content["ui/vendor/hyparquet/LICENSE.txt"]
    modules = [path for path in sorted(content) if path.endswith(".js")]
    digest = hashlib.sha256(b"".join(content[path] for path in modules)).hexdigest()
    assert (len(modules), digest) == (24, "820ffe771b906bbb421c704710682b120ebb18caf7c2fea41a1fe00fbcd9c186")


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
    # What compiles WebAssembly may do so here, and where there is a server nowhere.
    assert rules["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert 'name="trinitylake-root" content="https://data.example/lake/"' in text
    assert index_of_files('x"><script>').content.count(b"<script") == 1
    with pytest.raises(tl.InvalidArgument, match="cannot be written"):
        write_files(tmp_path / "site" / "index.html", "../lake")


def _package(folder: Path, **described: str) -> Path:
    """A package as npm writes it, whose DuckDB does nothing."""
    (folder / "dist").mkdir(parents=True)
    wanted = {"name": "@duckdb/duckdb-wasm", "version": "1.32.0", "license": "MIT", **described}
    (folder / "package.json").write_text(json.dumps(wanted))
    (folder / "dist" / "duckdb-eh.wasm").write_bytes(b"\0asm")
    (folder / "dist" / "duckdb-browser-eh.worker.js").write_text("work();\n//# sourceMappingURL=worker.js.map")
    return folder


def test_duckdb_lies_beside_a_page_that_is_given_it(tmp_path: Path) -> None:
    """Queries without a server need DuckDB; a page that fetched it from elsewhere would have told others who looks."""
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
        # One script more may be made of text, a worker of the page's own.
        assert rules["trusted-types"] == "trinitylake-sql"
        assert rules["worker-src"] == rules["connect-src"] == "'self'"
        assert rules["require-trusted-types-for"] == "'script'"
        assert 'name="trinitylake-sql"' in text
    assert "trinitylake-sql" not in index_of_files("../lake").content.decode()


def test_the_worker_of_queries_has_its_walls() -> None:
    """DuckDB's own refusal is one wall, which browsers try; a version that leaves a hole in it runs into this one."""
    [worker] = [one.content.decode() for one in assets() if one.path == "ui/files/sql/worker.js"]
    assert "if (String(address.url ?? address) !== program) throw" in worker
    for way_out in ("XMLHttpRequest", "WebSocket", "WebTransport", "EventSource", "importScripts", "Worker"):
        assert f'"{way_out}"' in worker
    [duckdb] = [one.content.decode() for one in assets() if one.path == "ui/files/sql/duckdb.js"]
    assert "enable_external_access = false" in duckdb
    assert "lock_configuration = true" in duckdb


def test_a_page_takes_no_duckdb_that_nobody_has_tried(tmp_path: Path) -> None:
    """The messages of DuckDB's worker are its own business: with another version queries would fail one by one."""
    other = _package(tmp_path / "other", version="1.33.0")
    named = _package(tmp_path / "named", name="left-pad")
    lacking = _package(tmp_path / "lacking")
    (lacking / "dist" / "duckdb-eh.wasm").unlink()
    (tmp_path / "no.tgz").write_bytes(b"no archive")
    for package, told in {
        other: "1.33.0", named: "left-pad", lacking: "lacks", tmp_path: "is not", tmp_path / "no.tgz": "is not",
    }.items():  # fmt: skip
        with pytest.raises(tl.InvalidArgument, match=told):
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
            imported = IMPORTS.findall(content[path].decode())
            waiting += [posixpath.normpath(posixpath.join(posixpath.dirname(path), one)) for one in imported]
    assert len(loaded) > 20
    assert not any("hyparquet" in path for path in loaded)  # what reads rows waits until somebody asks for rows
    size = sum(len(content[path]) for path in loaded) + len(index_of_server().content)
    assert size < FIRST_PAINT_SIZE_BYTES - LAKEHOUSE_SIZE_BYTES
    assert sum(len(one) for one in content.values()) < 2 * FIRST_PAINT_SIZE_BYTES
    assert max(len(line) for one in SCRIPTS for line in one.content.decode().splitlines()) < 400

"""The web page of a lakehouse: its built files and their HTTP headers.

`make page` builds the page from `page/` into `built/`, which every wheel contains and a checkout may lack. `trinitylake
serve` serves it. `trinitylake page` writes it as files, for a lakehouse on a web server; this page reads the files of
the lakehouse with the library's own core (`ui/core.bin`: WebAssembly, compressed with gzip).
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import urlsplit

from trinitylake.base.optional_dependencies import NotInstalled
from trinitylake.errors import InvalidArgument
from trinitylake.page.duckdb_wasm import files_of_duckdb

_MEDIA_TYPES = {
    "bin": "application/octet-stream",
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

#: The page loads only resources of its own origin, has scripts only in files, and cannot be embedded in frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page.

    Attributes:
        path: relative to the page, such as `ui/app.js`.
    """

    path: str
    content: bytes

    @property
    def media_type(self) -> str:
        """The media type."""
        return _MEDIA_TYPES[self.path.rpartition(".")[2]]


#: Message of a build without the page.
NOT_BUILT = "this build of TrinityLake has no web page: install a wheel, or run `make page`, which needs npm"
_BUILT = "built"


def is_built() -> bool:
    """Whether this installation contains the page."""
    return (resources.files(__package__) / _BUILT / "index.html").is_file()


def assets() -> list[Asset]:
    """All files except `index.html`, by path. Raises `NotInstalled` in a build without the page."""
    return sorted(_below(_built() / "ui", "ui"), key=lambda one: one.path)


def index_of_server() -> Asset:
    """`index.html` for a server of the page and its data. Raises `NotInstalled` in a build without the page."""
    return Asset("index.html", (_built() / "index.html").read_bytes())


def _built() -> Traversable:
    if not is_built():
        raise NotInstalled(NOT_BUILT)
    return resources.files(__package__) / _BUILT


def _below(folder: Traversable, path: str) -> list[Asset]:
    found: list[Asset] = []
    for one in folder.iterdir():
        if one.is_dir():
            found += _below(one, f"{path}/{one.name}")
        elif one.name.rpartition(".")[2] in _MEDIA_TYPES:
            found.append(Asset(f"{path}/{one.name}", one.read_bytes()))
    return found


def index_of_files(root: str, *, has_sql: bool = False) -> Asset:
    """`index.html` for a lakehouse whose files a browser reads without a server.

    `root` is the address of the lakehouse's root: relative to the page, or absolute (http or https). With `has_sql` the
    page has queries, with DuckDB in its folder `duckdb`. Raises `InvalidArgument` for another address, and
    `NotInstalled`.
    """
    parts = urlsplit(root)
    if not root or parts.scheme not in ("", "http", "https") or (parts.scheme and not parts.hostname):
        raise InvalidArgument(f"the address of the lakehouse must be relative, http or https, not {root!r}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument(
            "the address of the lakehouse is public: it must not contain a password, query or fragment"
        )
    origins = f"'self' {parts.scheme}://{parts.netloc}" if parts.netloc else "'self'"
    # A file server sends no policy as a header, so the page contains it; there `frame-ancestors` has no effect.
    rules = [rule.strip() for rule in POLICY.split(";") if "frame-ancestors" not in rule]
    policy = "; ".join(rules).replace("connect-src 'self'", f"connect-src {origins}")
    # Only a page that reads files, not a page of a server, compiles WebAssembly.
    policy = policy.replace("script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'")
    if has_sql:
        # A Trusted Types policy that allows one script: DuckDB's worker (`page/src/files/sql/duckdb.js`).
        policy = policy.replace("trusted-types 'none'", "trusted-types trinitylake-sql; worker-src 'self'")
    tags = [
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        f'<meta name="referrer" content="{HEADERS["Referrer-Policy"]}">',
        f'<meta name="trinitylake-root" content="{escape(root.rstrip("/") + "/")}">',
        *(['<meta name="trinitylake-sql" content="duckdb">'] if has_sql else []),
    ]
    text = index_of_server().content.decode()
    first = '<meta charset="utf-8">\n'
    return Asset("index.html", text.replace(first, first + "".join(f"{tag}\n" for tag in tags)).encode())


def write_files(folder: Path, root: str, duckdb: Path | None = None) -> list[Path]:
    """Write the page for a lakehouse whose files a browser can fetch below `root`. Returns the written files.

    With `duckdb`, the npm package `@duckdb/duckdb-wasm` as a folder or as the file that `npm pack` writes, the page has
    SQL queries. Raises `InvalidArgument` if a file cannot be written, and the errors of `index_of_files` and
    `files_of_duckdb`.
    """
    duckdb_files = (
        [Asset(f"duckdb/{name}", content) for name, content in files_of_duckdb(duckdb).items()] if duckdb else []
    )
    written = []
    for asset in (index_of_files(root, has_sql=bool(duckdb_files)), *assets(), *duckdb_files):
        path = folder / asset.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(asset.content)
        except OSError as error:
            raise InvalidArgument(f"the page cannot be written to {path}: {error.strerror}") from error
        written.append(path)
    return written

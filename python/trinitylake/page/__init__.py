"""The page that shows a lakehouse in a browser: its files, and what a browser is told about them.

One application of plain modules and one style sheet, without a build step and without anything from elsewhere. A server
sends it (`trinitylake serve`), or it is written beside a lakehouse (`trinitylake page`).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "wasm": "application/wasm",
}

#: Nothing from elsewhere, no script but files of the page, nobody shows it in a frame of theirs.
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
        """What it is, for a browser."""
        return _MEDIA_TYPES[self.path.rpartition(".")[2]]


def assets() -> list[Asset]:
    """All files but the page itself, by path."""
    folder = resources.files(__package__) / "ui"
    return sorted(_below(folder, "ui"), key=lambda one: one.path)


def index_of_server() -> Asset:
    """The page itself, for a server that has the data behind the same address."""
    return Asset("index.html", (resources.files(__package__) / "index.html").read_bytes())


def _below(folder: Traversable, path: str) -> list[Asset]:
    found: list[Asset] = []
    for one in folder.iterdir():
        if one.is_dir():
            found += _below(one, f"{path}/{one.name}")
        elif one.name.rpartition(".")[2] in _MEDIA_TYPES:
            found.append(Asset(f"{path}/{one.name}", one.read_bytes()))
    return found

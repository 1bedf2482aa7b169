"""A hook of MkDocs: a link of a page that leaves docs/ leads to a copy of the file in the site.

The pages are read in the repository as well, where `../SECURITY.md` is right; a site knows only what is in docs/. So
each file that a page links to comes along below `repository/`, pages among them with their links led on.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs/"
COPIES = "repository/"
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?\)")


def in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    return path.removeprefix(DOCS) if path.startswith(DOCS) else COPIES + path


def in_repository(path: str) -> str:
    """Inverse of `in_site`."""
    return path.removeprefix(COPIES) if path.startswith(COPIES) else DOCS + path


def target(path: str, link: str) -> str | None:
    """The file of the repository that a link of the page `path` names; None for an address elsewhere."""
    if re.match(r"[a-z]+:", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def lead(path: str, markdown: str) -> str:
    """The page `path` of the repository with its links as the site needs them."""

    def led(match: re.Match[str]) -> str:
        file = target(path, match[2])
        if file is None:
            return match[0]
        link = posixpath.relpath(in_site(file), posixpath.dirname(in_site(path)))
        return f"{match[1]}{link}{match[3] or ''})"

    return LINK.sub(led, markdown)


def copies() -> list[str]:
    """What the pages name outside of docs/, and what those name, and so on."""
    pending = sorted(str(page.relative_to(ROOT)) for page in (ROOT / DOCS).rglob("*.md"))
    found: set[str] = set()
    while pending:
        path = pending.pop()
        for link in LINK.finditer(FENCED.sub("", (ROOT / path).read_text())):
            file = target(path, link[2])
            if file is None or file.startswith(DOCS) or file in found or not (ROOT / file).is_file():
                continue
            found.add(file)
            if file.endswith(".md"):
                pending.append(file)
    return sorted(found)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in copies():
        level = InclusionLevel.NOT_IN_NAV
        source = os.fspath(ROOT / path)
        files.append(File.generated(config, in_site(path), abs_src_path=source, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return lead(in_repository(page.file.src_uri), markdown)

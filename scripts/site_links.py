"""Hook of MkDocs that changes links from pages to files outside of docs/ into links to copies in the site.

Pages are also read in the repository, where `../SECURITY.md` exists, while the site contains only docs/. So each file
that a page links to is copied below `repository/`. Links in copied pages are changed in the same way.
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
    """Path in the site of a file of the repository."""
    return path.removeprefix(DOCS) if path.startswith(DOCS) else COPIES + path


def in_repository(path: str) -> str:
    """Inverse of `in_site`."""
    return path.removeprefix(COPIES) if path.startswith(COPIES) else DOCS + path


def target(path: str, link: str) -> str | None:
    """Path in the repository to which a link on the page `path` leads; None for an external address."""
    if re.match(r"[a-z]+:", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def lead(path: str, markdown: str) -> str:
    """The page `path` with its links changed for the site."""

    def led(match: re.Match[str]) -> str:
        file = target(path, match[2])
        if file is None:
            return match[0]
        link = posixpath.relpath(in_site(file), posixpath.dirname(in_site(path)))
        return f"{match[1]}{link}{match[3] or ''})"

    return LINK.sub(led, markdown)


def copies() -> list[str]:
    """Files outside of docs/ that pages link to, directly or through other such files."""
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

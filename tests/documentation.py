"""The examples of a page of the documentation, and how they are run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Fenced blocks of a language: the number of the first line, and the text."""
    text = page.read_text()
    fences = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, fence.start(1)) + 1, fence[1]) for fence in fences]


def run_examples(
    page: Path, names: Mapping[str, object] | None = None, places: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the Python blocks of a page in one namespace. A failure is reported at its line of the page.

    Args:
        names: what the page takes for granted.
        places: addresses of the page to those that are there.

    Returns:
        The namespace afterwards.
    """
    found = blocks(page, "python")
    assert found, f"{page} has no example"
    namespace: dict[str, Any] = {"__name__": "documentation", **(names or {})}
    for line, source in found:
        for address, place in (places or {}).items():
            source = source.replace(address, place)
        # As a reader would run it: without what this module imports from `__future__`.
        exec(compile("\n" * (line - 1) + source, str(page), "exec", dont_inherit=True), namespace)
    return namespace

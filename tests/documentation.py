"""Runs the examples of documentation pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language, each with the number of its first line and its text."""
    text = page.read_text()
    fences = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, fence.start(1)) + 1, fence[1]) for fence in fences]


def run_examples(
    page: Path, names: Mapping[str, object] | None = None, places: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the Python blocks of a page in one namespace. Tracebacks show the lines of the page.

    Args:
        names: variables that the page uses without defining them.
        places: replacements for addresses in the page.

    Returns:
        The namespace after the last block.
    """
    found = blocks(page, "python")
    assert found, f"{page} has no example"
    namespace: dict[str, Any] = {"__name__": "documentation", **(names or {})}
    for line, source in found:
        for address, place in (places or {}).items():
            source = source.replace(address, place)
        # Compile without the `__future__` imports of this module.
        exec(compile("\n" * (line - 1) + source, str(page), "exec", dont_inherit=True), namespace)
    return namespace

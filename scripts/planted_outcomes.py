"""What became of planted mistakes, kept between runs: a run of all takes hours, and goes on where the last one stopped.

A mistake that was found is not tried again while its file, its tests and the mistake itself are as they were. One that
survived, or could not be planted, is. What else changed is not looked at: before a release, try all anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path


class Outcomes:
    """A file with a line for each mistake that was found; of two lines with one key the later counts.

    Args:
        path: of the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, str | None]] = {}
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                outcome = json.loads(line)
                self._found[outcome["key"]] = outcome["suites"]
            except (ValueError, KeyError, TypeError):  # the run was ended while it wrote the line
                continue

    def found(self, key: str) -> dict[str, str | None] | None:
        """By suite, how the mistake was found or `None`; nothing if it has not been found as it is now."""
        return self._found.get(key)

    def keep(self, key: str, name: str, suites: dict[str, str | None]) -> None:
        """Note that a mistake was found. It is on disk before the next one is tried."""
        self._found[key] = suites
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_cut = self._path.is_file() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("a") as file:
            file.write("\n" * is_cut + json.dumps({"key": key, "name": name, "suites": suites}) + "\n")


def key_of(texts: Iterable[str], files: Iterable[Path]) -> str:
    """Stands for these texts and for the files as they are, in any order of the files; one may be missing."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(f"{len(text)}:{text}".encode())
    for file in sorted(set(files)):
        content = file.read_bytes() if file.is_file() else b""
        whole.update(f"{file.name}:{len(content)}:".encode() + content)
    return whole.hexdigest()

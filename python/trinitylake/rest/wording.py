"""Error messages worded as in Iceberg's own library, which its users know and its tests expect."""

from __future__ import annotations

import re

_TABLE_OR_VIEW = r"^(Table|View) (\S+)"
_WORDS = [
    (re.compile(pattern, re.S), replacement)
    for pattern, replacement in (
        (r"^Namespace (\S+) does not exists?$", r"Namespace does not exist: \1"),
        (r"^Namespace (\S+) already exists$", r"Namespace already exists: \1"),
        (_TABLE_OR_VIEW + " already exists$", r"\1 already exists: \2"),
        (_TABLE_OR_VIEW + " has that name already$", r"\1 with same name already exists: \2"),
        (r"^(Requirement failed: last assigned \w+ id) has changed\b", r"\1 changed"),
        (r"^Requirement failed: current schema id has changed\b", "Requirement failed: current schema changed"),
        (r"^Requirement failed: default spec id has changed\b", "Requirement failed: default partition spec changed"),
        (r"^Requirement failed: default sort order id has changed\b", "Requirement failed: default sort order changed"),
        (r"^Table UUID does not match\b", "Requirement failed: UUID does not match"),
    )
]
_CREATION = re.compile(r"^Table already exists\b.*", re.S)


def in_their_words(message: str, is_commit: bool = False) -> str:
    """The message as Iceberg's library would word it, if it has words for it. `is_commit`: a requirement failed."""
    if is_commit and _CREATION.match(message):
        return "Requirement failed: table already exists"
    for pattern, replacement in _WORDS:
        message, found = pattern.subn(replacement, message)
        if found:
            return message
    return message

"""What `lake.compact()` tells: how large the tree was and is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinitylake.errors import CommitConflict

if TYPE_CHECKING:
    from trinitylake import _core

#: How often a tree is built again because of a rollback or a registration meanwhile.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class TreeCompaction:
    """The tree before and after a compaction.

    Attributes:
        version: the new version; None if there was too little to gain, or it was not to be done.
        nodes_before, nodes_after: node files that the version reaches; without a new version, what it would reach.
        messages_before, messages_after: changes in buffers, on their way to a leaf.
        size_bytes_before, size_bytes_after: of the nodes before compression; 0 after if there is no new version.
    """

    version: int | None
    nodes_before: int
    nodes_after: int
    messages_before: int
    messages_after: int
    size_bytes_before: int
    size_bytes_after: int


def compact_tree(core: _core.Lakehouse, force: bool, dry_run: bool, message: str, author: str) -> TreeCompaction:
    """Build the tree anew. Raises `CommitConflict` if others went back or registered objects each time."""
    for attempt in range(_ATTEMPTS):
        try:
            version, before, after = core.compact(force, dry_run, message, author)
            break
        except CommitConflict:
            if attempt == _ATTEMPTS - 1:
                raise
    sizes = [value for pair in zip(before, after, strict=True) for value in pair]
    return TreeCompaction(version, *sizes)

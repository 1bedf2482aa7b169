"""Compaction of the tree, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinitylake.lakehouse.handle import retry_conflicts

if TYPE_CHECKING:
    from trinitylake import _core

#: Maximum number of attempts, if other writers roll back or register objects at the same time.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class TreeCompaction:
    """The tree before and after a compaction.

    Attributes:
        version: the new version; None in a dry run, or if the compaction would have saved too little.
        nodes_before, nodes_after: numbers of node files of the tree; after a dry run `nodes_after` is an estimate.
        messages_before, messages_after: numbers of buffered changes that have not reached a leaf.
        size_bytes_before, size_bytes_after: uncompressed sizes of all nodes; `size_bytes_after` is 0 without a new
            version.
    """

    version: int | None
    nodes_before: int
    nodes_after: int
    messages_before: int
    messages_after: int
    size_bytes_before: int
    size_bytes_after: int


def compact_tree(core: _core.Lakehouse, force: bool, dry_run: bool, message: str, author: str) -> TreeCompaction:
    """Rebuild the tree. Raises `CommitConflict` if other writers rolled back or registered objects in each attempt."""
    version, before, after = retry_conflicts(lambda: core.compact(force, dry_run, message, author), _ATTEMPTS)
    sizes = [value for pair in zip(before, after, strict=True) for value in pair]
    return TreeCompaction(version, *sizes)

"""How large a lakehouse is: its objects, the tree that holds them, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.lakehouse.file_stats import FileStats

if TYPE_CHECKING:
    from trinitylake import _core

_KINDS = {"namespaces": "B===", "tables": "C===", "views": "D==="}


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one version. Only the tree and the names are read, never the tables, unless files are asked for.

    Attributes:
        version: the version that was measured.
        namespaces, tables, views: live objects.
        tree_height: edges from the root to a leaf; 0 if the root is a leaf.
        tree_nodes: node files this version reaches, the root included.
        tree_messages: messages in write buffers, on their way to a leaf.
        tree_size_bytes: the size of the node files, as stored.
        files: what the files below the root are there for; None unless it was asked for.
    """

    version: int
    namespaces: int
    tables: int
    views: int
    tree_height: int
    tree_nodes: int
    tree_messages: int
    tree_size_bytes: int
    files: FileStats | None = None


def stats_of(version: _core.Version) -> Stats:
    """Measure one version: reads every node of its tree once."""
    nodes = version.nodes()
    counts = {
        plural: sum(len(batch) for batch in pa.RecordBatchReader.from_stream(version.scan(prefix, ("key",))))
        for plural, prefix in _KINDS.items()
    }
    return Stats(
        version=version.number,
        namespaces=counts["namespaces"],
        tables=counts["tables"],
        views=counts["views"],
        tree_height=pc.max(nodes.column("height")).as_py(),
        tree_nodes=len(nodes),
        tree_messages=pc.sum(nodes.column("n_messages")).as_py(),
        tree_size_bytes=pc.sum(nodes.column("size_bytes")).as_py(),
    )

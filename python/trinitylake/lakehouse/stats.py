"""Statistics of a lakehouse: numbers of objects, tree nodes and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.base.qualified_names import full_name
from trinitylake.lakehouse.vacuum_report import Files, files_table, sum_of

if TYPE_CHECKING:
    from trinitylake import _core

_NONE = Files(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesByPurpose:
    """Files by purpose. Each file is counted once, in the first group that it belongs to; `small` is part of `by_kind`.

    Attributes:
        by_kind: files of the latest version, and internal files, by kind, such as "data files", "delete files", "table
            metadata", "tree nodes", "definitions" and "roots".
        small: data files of the latest version that are smaller than 72 MiB.
        history: files that only older versions or snapshots reach, and that do not expire yet.
        expiring: files that only expiring versions reach. A `vacuum` deletes them after `expire` has deleted these
            versions.
        garbage: files that nothing reaches, and that a `vacuum` would delete now.
    """

    by_kind: dict[str, Files]
    small: Files
    history: Files
    expiring: Files
    garbage: Files

    @property
    def total(self) -> Files:
        """All files, except files that are too young to classify."""
        return sum_of([*self.by_kind.values(), self.history, self.expiring, self.garbage])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles(FilesByPurpose):
    """The files in the folder of one managed table.

    Attributes:
        name: full name of the table in the latest version; None if that version does not have the table.
        folder: path of the folder below the root; "" for files outside of table folders.
    """

    name: str | None
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStats(FilesByPurpose):
    """All files below the root by purpose.

    Attributes:
        young: unreachable files younger than `txn_ttl_millis`, which a transaction may be about to commit.
        unknown: files that are not part of this format.
        foreign: files of external and federated tables.
        tables: folders of managed tables, the largest first.
    """

    young: Files
    unknown: Files
    foreign: Files
    tables: list[TableFiles] = field(repr=False)

    @property
    def total(self) -> Files:
        """All files below the root."""
        return sum_of([super(FileStats, self).total, self.young, self.unknown, self.foreign])


def file_stats(found: _core.Usage) -> FileStats:
    """The `FileStats` with the core's counts."""
    small = {folder: Files(files, size) for folder, files, size in found.small}
    rows: dict[str, list[tuple[str, str, Files]]] = defaultdict(list)
    names: dict[str, str | None] = {}
    for folder, name, held, kind, files, size_bytes in found.by_folder:
        rows[folder].append((held, kind, Files(files, size_bytes)))
        names[folder] = None if name is None else full_name(*name)
    tables = [
        TableFiles(name=names[folder], folder=folder, small=small.get(folder, _NONE), **_by_purpose(some))
        for folder, some in rows.items()
    ]
    tables.sort(key=lambda table: (-table.total.size_bytes, table.folder))
    every = [(held, kind, Files(files, size_bytes)) for held, kind, files, size_bytes in found.by_kind]
    return FileStats(
        small=sum_of(small.values()),
        young=_held(every, "young"),
        unknown=Files(*found.unknown),
        foreign=Files(*found.foreign),
        tables=tables,
        **_by_purpose(every),
    )


def _by_purpose(rows: Sequence[tuple[str, str, Files]]) -> dict[str, Any]:
    by_kind = {kind: files for held, kind, files in rows if held == "latest"}
    return {"by_kind": by_kind, **{name: _held(rows, name) for name in ("history", "expiring", "garbage")}}


def _held(rows: Iterable[tuple[str, str, Files]], holder: str) -> Files:
    return sum_of(files for held, _, files in rows if held == holder)


_KINDS = {"namespaces": "B===", "tables": "C===", "views": "D==="}


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of objects and tree nodes in one version.

    Attributes:
        version: the version that was measured.
        namespaces, tables, views: numbers of objects.
        tree_height: number of edges from the root to a leaf; 0 if the root is a leaf.
        tree_nodes: number of node files that this version reaches, including the root.
        tree_messages: number of messages in write buffers, which have not reached a leaf.
        tree_size_bytes: the size of the stored node files.
        files: the files below the root by purpose; None unless requested.
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

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from trinitylake.base.markup import framed, heading, pairs

        objects = {"namespaces": self.namespaces, "tables": self.tables, "views": self.views}
        tree = {
            "height": self.tree_height,
            "nodes": self.tree_nodes,
            "messages": self.tree_messages,
            "bytes": self.tree_size_bytes,
        }
        rows = [*objects.items(), *((f"{name} of the tree", count) for name, count in tree.items())]
        title = heading("statistics", f"of version {self.version}")
        counted = pairs((name, f"{count:,}") for name, count in rows)
        if (files := self.files) is None:
            return framed(title, counted)
        others = ("history", "expiring", "garbage", "young", "unknown", "foreign")
        kinds = {**files.by_kind, **{name: getattr(files, name) for name in others}}
        return framed(title, counted, files_table("files", kinds))


def stats_of(version: _core.Version) -> Stats:
    """Count the objects and nodes of one version. Reads every node of the tree."""
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

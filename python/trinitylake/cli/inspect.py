"""`stats` and `tree`: sizes of a lakehouse, and its B-epsilon tree."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich import filesize
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from trinitylake.cli.command import At, Lake, Output, command
from trinitylake.cli.output import counted, counting, grid, pairs
from trinitylake.core import root_version
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.stats import FileStats
from trinitylake.lakehouse.vacuum_report import Files, sum_of

#: Maximum width of a drawing of a tree, in columns.
TREE_WIDTH = 80
#: Maximum number of tables that are printed, the largest ones first.
TABLES_SHOWN = 20
_KINDS = {"B===": "namespace", "C===": "table", "D===": "view", "E===": "id"}


@command
def stats(
    lake: Lake,
    files: bool = typer.Option(
        False, "--files", help="Also all files by kind and table, and what expire and vacuum would free."
    ),
    at: At = None,
) -> Output:
    """Count objects, tree nodes and bytes."""
    if files and at is not None:
        raise InvalidArgument("--files counts the files of all versions: leave out --at")
    with counting("listing") as on_progress:
        measured = lake.maintenance.stats(files=files, progress=on_progress) if at is None else lake.at(at).stats()
    document = asdict(measured)
    if measured.files is None:
        del document["files"]
    readable = {name: value for name, value in document.items() if name != "files"}
    counts = pairs(readable | {"tree_size_bytes": filesize.decimal(measured.tree_size_bytes)})
    return document, counts if measured.files is None else Group(counts, *_file_grids(measured.files))


def _file_grids(files: FileStats) -> Iterator[RenderableType]:
    yield Text()
    kinds = grid("files", "number", "size", numbers=["number", "size"])
    rows = {
        **files.by_kind,
        "small data files, of these": files.small,
        "of older versions and snapshots": files.history,
        "expire and vacuum would free": files.expiring,
        "vacuum would free": files.garbage,
        "too young to classify": files.young,
        "unknown": files.unknown,
        "of external tables": files.foreign,
        "all": files.total,
    }
    for name, count in rows.items():
        if count.files or name == "all":
            kinds.add_row(name, str(count.files), filesize.decimal(count.size_bytes))
    yield kinds
    if not files.tables:
        return
    yield Text()
    headers = ("data", "size", "small", "del.", "metadata", "older", "to free")
    tables = grid("table", *headers, numbers=headers)
    for table in files.tables[:TABLES_SHOWN]:
        data, deletes, metadata = (
            table.by_kind.get(kind, Files(0, 0)) for kind in ("data files", "delete files", "table metadata")
        )
        sizes = (metadata, table.history, sum_of([table.expiring, table.garbage]))
        tables.add_row(
            Text(table.name or table.folder or "(in no folder of a table)", "" if table.name else "dim"),
            str(data.files),
            filesize.decimal(data.size_bytes),
            str(table.small.files),
            str(deletes.files),
            *(filesize.decimal(one.size_bytes) for one in sizes),
        )
    yield tables
    if len(files.tables) > TABLES_SHOWN:
        yield Text(f"and {len(files.tables) - TABLES_SHOWN} more; --json has all", "dim")


@command
def tree(
    lake: Lake,
    at: At = None,
    max_children: int = typer.Option(8, min=1, help="Maximum number of children to draw below one node."),
    svg: Path | None = typer.Option(None, "--svg", help="Write the drawing to this SVG file."),
) -> Output:
    """Draw the tree of node files.

    Each node shows its number of keys and of messages in its buffer.
    """
    view = lake.at(at)
    nodes = view.nodes().to_pylist()
    picture = tree_picture(nodes, max_children)
    if svg is None:
        return nodes, picture
    drawing = Console(record=True, width=TREE_WIDTH, file=io.StringIO(), highlight=False)
    drawing.print(picture)
    svg.write_text(drawing.export_svg(title=f"version {view.version}"), encoding="utf-8")
    return {"svg": str(svg)}, Text(f"{svg} shows version {view.version}")


def tree_picture(nodes: list[dict[str, Any]], max_children: int) -> Tree:
    """Drawing of a tree from its nodes, root first."""
    children: dict[str, list[dict[str, Any]]] = {}
    for node in nodes[1:]:
        children.setdefault(node["parent"], []).append(node)
    picture = Tree(_label(nodes[0], 0))
    pending = [(nodes[0], picture, 1)]
    while pending:
        node, branch, depth = pending.pop()
        below = children.get(node["path"], [])
        pending += [(child, branch.add(_label(child, depth)), depth + 1) for child in below[:max_children]]
        if len(below) > max_children:
            branch.add(Text(f"… {len(below) - max_children} more", "dim"))
    return picture


def _label(node: dict[str, Any], depth: int) -> Text:
    kind = "root" if node["parent"] is None else "leaf" if node["height"] == 0 else "node"
    label = Text.assemble(
        (f"{kind} ", "bold"),
        (_short_name(node["path"]), "cyan"),
        f"  {counted(node['n_keys'], 'key')}",
        (f", {counted(node['n_messages'], 'message')}", "yellow") if node["n_messages"] else "",
        (f", {filesize.decimal(node['size_bytes'])}", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )
    if node["first_key"] is not None:
        # The lines of the drawing to the left of the label take four columns for each level.
        width = (TREE_WIDTH - 4 * depth - len(" … ")) // 2
        ends = (_key(node["first_key"]), _key(node["last_key"]))
        keys = [set_cell_size(key, width).rstrip() if cell_len(key) > width else key for key in ends]
        label.append(f"\n{keys[0]} … {keys[1]}", "dim")
    return label


def _short_name(path: str) -> str:
    """Short name of a node: the first characters of its id, or for a root its version."""
    version = root_version(path)
    if version is not None:
        return f"of version {version}"
    return path.rpartition("node-")[2][:8]


def _key(key: str) -> str:
    return f"{_KINDS.get(key[:4], key[:4])} {'.'.join(key[4:].split())}"

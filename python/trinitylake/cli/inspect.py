"""`stats` and `tree`: how large a lakehouse is and what its B-epsilon tree looks like."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import filesize
from rich.text import Text
from rich.tree import Tree

from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.output import emit, pairs


@command
def stats(root: Root, options: Options = None, as_json: Json = False) -> None:
    """Count objects, tree nodes and bytes."""
    document = asdict(open_lakehouse(root, options).stats())
    readable = document | {"tree_size_bytes": filesize.decimal(document["tree_size_bytes"])}
    emit(document, pairs(readable), as_json)


@command
def tree(
    root: Root,
    version: Annotated[int | None, typer.Option("--version", help="A version; the latest without it.")] = None,
    max_children: Annotated[int, typer.Option(min=1, help="Children to draw below one node.")] = 8,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Draw the tree of node files: keys in each node, and messages that wait in its buffer."""
    nodes = open_lakehouse(root, options).at(version=version).nodes().to_pylist()
    emit(nodes, tree_picture(nodes, max_children), as_json)


def tree_picture(nodes: list[dict[str, Any]], max_children: int) -> Tree:
    """The nodes of a tree, the root first, as a drawing."""
    children: dict[str, list[dict[str, Any]]] = {}
    for node in nodes[1:]:
        children.setdefault(node["parent"], []).append(node)
    picture = Tree(_label(nodes[0]))
    pending = [(nodes[0], picture)]
    while pending:
        node, branch = pending.pop()
        below = children.get(node["path"], [])
        pending += [(child, branch.add(_label(child))) for child in below[:max_children]]
        if len(below) > max_children:
            branch.add(Text(f"… {len(below) - max_children} more", "dim"))
    return picture


def _label(node: dict[str, Any]) -> Text:
    kind = "root" if node["parent"] is None else "leaf" if node["height"] == 0 else "node"
    label = Text.assemble(
        (f"{kind} ", "bold"),
        (node["path"].rpartition("/")[2], "cyan"),
        f"  height {node['height']}, {node['n_keys']} keys, ",
        (f"{node['n_messages']} messages", "yellow" if node["n_messages"] else ""),
        (f", {filesize.decimal(node['size_bytes'])}", "dim"),
    )
    if node["first_key"] is not None:
        label.append(f"\n{_key(node['first_key'])} … {_key(node['last_key'])}", "dim")
    return label


def _key(key: str) -> str:
    """A key without its padding."""
    return f"{key[:4]} {'.'.join(key[4:].split())}"

"""The tree of node files (format §5), one node at a time: its content and children.

A node is addressed by the positions of children from the root: "2.0" is the first child of the root's third child. So
clients cannot name files, and a request reads at most as many nodes as the tree has levels.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from trinitylake import core
from trinitylake.definitions import LakehouseDef, parse_lakehouse_def
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.page.answers import answer, parts_of, require_everything, version_of
from trinitylake.rest.request.call import Call

#: Maximum number of children, keys and messages of a node in the response.
MAX_CHILDREN, MAX_KEYS = 512, 200
#: Maximum number of levels in an address. No tree has this many.
_MAX_DEPTH = 16
_WAY = re.compile(r"\d{1,6}(\.\d{1,6})*")
_RECORD = "E==="


def node(call: Call) -> Response:
    """A node of the tree of a version. The parameter `at` is its address, "" for the root."""
    require_everything(call, "the tree")
    way = call.query.get("at", "")
    if way and not _WAY.fullmatch(way):
        raise bad_request("a node is addressed by numbers of children, separated by dots")
    steps = [int(step) for step in way.split(".")] if way else []
    if len(steps) > _MAX_DEPTH:
        raise bad_request(f"a tree has at most {_MAX_DEPTH} levels")
    view = version_of(call)
    path = core.root_path(view.version)
    for step in steps:
        children = _children(_read(view, path)[0])
        if step >= len(children):
            raise RestError(404, "NotFoundException", "the tree of this version has no such node")
        path = children[step]
    found, size_bytes = _read(view, path)
    return answer({"at": way, **_described(found, path, size_bytes, parse_lakehouse_def(view._state().definition))})


def _read(view: LakehouseVersion, path: str) -> tuple[core.NodeFile, int]:
    data = view._storage.get(path)
    return core.read_node(data, path), len(data)


def _children(found: core.NodeFile) -> list[str]:
    return [path for path in found.table["pnode"].slice(0, found.n_keys + 1).to_pylist() if path]


def _described(found: core.NodeFile, path: str, size_bytes: int, definition: LakehouseDef) -> dict[str, Any]:
    children = _children(found)
    keys = found.table["key"].slice(1, found.n_keys)
    messages = found.buffer.slice(max(len(found.buffer) - MAX_KEYS, 0))
    removed = [value is None for value in messages["value"].to_pylist()]
    return {
        "path": path,
        "height": found.height,
        "size-bytes": size_bytes,
        "n-keys": found.n_keys,
        "n-children": len(children),
        "n-messages": len(found.buffer),
        "children": children[:MAX_CHILDREN],
        "keys": _names(keys.slice(0, MAX_KEYS), definition),
        "separators": _names(keys.slice(0, MAX_CHILDREN), definition) if children else [],
        "messages": [
            {**name, "removes": removes}
            for name, removes in zip(_names(messages["key"], definition), removed, strict=True)
        ],
    }


def _names(keys: pa.Array, definition: LakehouseDef) -> list[dict[str, Any]]:
    is_object = [key[:4] in ("B===", "C===", "D===") for key in keys.to_pylist()]
    objects = iter(core.decode_keys(keys.filter(pa.array(is_object, pa.bool_())), definition).to_pylist())
    named: list[dict[str, Any]] = []
    for key, is_one in zip(keys.to_pylist(), is_object, strict=True):
        if is_one:
            one = next(objects)
            named.append({"kind": one["kind"], "name": list(parts_of(*one.values()))})
        else:
            named.append({"kind": "transaction", "name": [key.removeprefix(_RECORD).strip()]})
    return named

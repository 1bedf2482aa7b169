"""Divides the keys of a version into ranges, one for each task."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa

from trinitylake import _core, core

#: Start (inclusive) and end (exclusive) of a range of keys; None for no bound.
KeyRange: TypeAlias = tuple[str | None, str | None]


def ranges_of(storage: _core.Storage, version: _core.Version, wanted: int) -> list[KeyRange]:
    """About `wanted` consecutive ranges that together contain all keys; an empty list if there is no object."""
    if next(iter(pa.RecordBatchReader.from_stream(version.scan(columns=["key"]))), None) is None:
        return []
    level = [core.root_path(version.number)]
    keys: list[str] = []
    while level and len(keys) < wanted:
        nodes = [core.read_node(storage.get(path), path) for path in level]
        keys += [key for node in nodes for key in node.table["key"].to_pylist()[1 : node.n_keys + 1]]
        level = [path for node in nodes for path in node.table["pnode"].to_pylist() if path is not None]
    keys.sort(key=str.encode)
    step = max(1, len(keys) // wanted)
    bounds = [None, *keys[::step], None]
    return list(pairwise(bounds))

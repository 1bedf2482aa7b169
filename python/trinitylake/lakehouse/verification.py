"""Verification of a whole version: every node and every definition is read and checked, and files of tables looked for.

The tree is walked down from the root until there are enough subtrees. A subtree stands for a range of keys; with the
messages that nodes above it hold for that range, it can be checked without any other part of the tree. So the work is
split the same way, and finds the same, whoever does it: this machine, or the executors of an engine.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trinitylake import core
from trinitylake.definitions import MANAGED, PARSERS, TableDef, read_definition
from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.opening import open as open_lakehouse

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.core import KeySizes
    from trinitylake.lakehouse.opening import Durability

#: How many files one task reads at the same time.
NODE_READ_THREADS = 16
#: Parts that the work of one machine is told in.
PARTS = 64
#: No tree is as high. It ends a walk that a damaged tree sends in circles.
MAX_HEIGHT = 64


@dataclass(frozen=True, order=True)
class Problem:
    """What is wrong with one file."""

    path: str
    message: str


@dataclass(frozen=True)
class Verification:
    """What was read, and what is wrong with it.

    Attributes:
        version: the version that was verified.
        nodes: how many node files were read.
        definitions: how many definition files were read.
        files: how many files of tables were looked for, if that was asked for.
        problems: by path; empty if all is well.
    """

    version: int
    nodes: int = 0
    definitions: int = 0
    files: int = 0
    problems: tuple[Problem, ...] = ()

    def __add__(self, other: Verification) -> Verification:
        return replace(
            self,
            nodes=self.nodes + other.nodes,
            definitions=self.definitions + other.definitions,
            files=self.files + other.files,
            problems=tuple(sorted({*self.problems, *other.problems})),
        )


@dataclass(frozen=True)
class Subtree:
    """A node and all below it: what a task is sent.

    Attributes:
        path: of the node file.
        height: that the node must have; None if it is not known.
        above, below: its keys lie between them; None where there is no bound.
        messages: of the nodes above it, by key: the newest location, or None for what was removed.
        depth: how many nodes are above it.
    """

    path: str
    height: int | None = None
    above: str | None = None
    below: str | None = None
    messages: dict[str, str | None] = field(default_factory=dict)
    depth: int = 0

    def holds(self, key: str) -> bool:
        """Whether a key is in the range. Keys are compared as bytes of UTF-8."""
        data = key.encode()
        return (self.above is None or data > self.above.encode()) and (self.below is None or data < self.below.encode())


@dataclass(frozen=True)
class Visited:
    """What one node tells: its children, the objects that it decides about, and its problems."""

    children: list[Subtree]
    locations: dict[str, str]
    problems: list[Problem]


@dataclass(frozen=True)
class Verifier:
    """Checks the parts of one version. Sent to tasks, so it holds no connection.

    Attributes:
        root, storage_options, durability: to open the storage with.
        version: the number.
        order: rows of every key table.
        sizes: of the parts of keys.
        looks_for_files: of tables, too.
    """

    root: str
    storage_options: dict[str, str] = field(repr=False)
    durability: Durability | None
    version: int
    order: int
    sizes: KeySizes
    looks_for_files: bool = False

    def storage(self) -> _core.Storage:
        """The storage, opened anew: as it is now, and nothing of it is kept in memory."""
        from trinitylake import _core

        return _core.Storage(self.root, self.storage_options or None, self.durability).unkept()

    def verify(self, storage: _core.Storage, subtree: Subtree) -> Verification:
        """Everything in a subtree, depth first, so that memory holds one path of nodes."""
        result = Verification(self.version)
        waiting = [subtree]
        with ThreadPoolExecutor(NODE_READ_THREADS) as pool:
            while waiting:
                visited = self.visit(storage, waiting.pop())
                waiting += reversed(visited.children)
                result += self.verdict(storage, visited, pool)
        return result

    def verdict(self, storage: _core.Storage, visited: Visited, pool: ThreadPoolExecutor) -> Verification:
        """A node that was visited, and the definitions that it decides about."""
        found = pool.map(lambda named: self._definition(storage, *named), self._named(visited.locations), chunksize=1)
        problems, n_files = list(visited.problems), 0
        for one, n_of_table in found:
            problems += one
            n_files += n_of_table
        return Verification(self.version, 1, len(visited.locations), n_files, tuple(sorted(problems)))

    def visit(self, storage: _core.Storage, subtree: Subtree) -> Visited:
        """Read and check one node, with the messages from above in effect."""
        path = subtree.path
        try:
            node = core.read_node(storage.get(path), path)
        except TrinityLakeError as error:
            return Visited([], {}, [Problem(path, str(error))])
        problems = []
        if subtree.height is not None and node.height is not None and node.height != subtree.height:
            problems.append(Problem(path, f"its height is {node.height} where {subtree.height} is expected"))
        if node.table.num_rows != self.order:
            problems.append(Problem(path, f"its key table has {node.table.num_rows} rows, not {self.order}"))
        if subtree.depth > MAX_HEIGHT:
            return Visited([], {}, [*problems, Problem(path, f"it lies below {MAX_HEIGHT} other nodes")])
        keys: list[str] = node.table["key"].to_pylist()[1 : node.n_keys + 1]
        values: list[str] = node.table["value"].to_pylist()[1 : node.n_keys + 1]
        paths = [child for child in node.table["pnode"].to_pylist()[: node.n_keys + 1] if child is not None]
        own = dict(zip(node.buffer["key"].to_pylist(), node.buffer["value"].to_pylist(), strict=True))
        for key in [*keys, *own]:
            if not subtree.holds(key):
                problems.append(Problem(path, f"key {key!r} is outside of its range"))
        messages = {**own, **subtree.messages}
        decided = {key: messages.get(key, value) for key, value in zip(keys, values, strict=True)}
        children = self._children(subtree, node.height, keys, paths, messages)
        if not children:
            decided = {**decided, **messages}
        locations = {key: location for key, location in decided.items() if location is not None}
        return Visited(children, locations, problems)

    def _children(
        self,
        parent: Subtree,
        height: int | None,
        keys: list[str],
        paths: list[str],
        messages: Mapping[str, str | None],
    ) -> list[Subtree]:
        bounds = [parent.above, *keys, parent.below]
        below = None if height is None else height - 1
        children = [
            Subtree(path, below, bounds[position], bounds[position + 1], {}, parent.depth + 1)
            for position, path in enumerate(paths)
        ]
        pivots = [key.encode() for key in keys]
        for key, location in messages.items() if children else ():
            data = key.encode()
            position = bisect_left(pivots, data)
            if position == len(pivots) or pivots[position] != data:  # a pivot's own key is decided here
                children[position].messages[key] = location
        return children

    def _named(self, locations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Kind and location. A key that cannot be taken apart is told as the problem of its definition."""
        for key, location in locations.items():
            try:
                yield core.decode_keys([key], self.sizes)["kind"][0].as_py(), location
            except TrinityLakeError as error:
                yield f"key {key!r}: {error}", location

    def _definition(self, storage: _core.Storage, kind: str, location: str) -> tuple[list[Problem], int]:
        """What is wrong with a definition, and with the files of its table; and how many of these were looked for."""
        parse = PARSERS.get(kind)
        if parse is None:
            return [Problem(location, kind)], 0
        try:
            definition = parse(read_definition(storage, location), location)
        except TrinityLakeError as error:
            return [Problem(location, str(error))], 0
        if not (self.looks_for_files and isinstance(definition, TableDef) and definition.table_type == MANAGED):
            return [], 0
        return self._files(storage, definition, location)

    def _files(self, storage: _core.Storage, definition: TableDef, location: str) -> tuple[list[Problem], int]:
        from trinitylake.iceberg_storage.file_io import LakehouseFileIO
        from trinitylake.iceberg_storage.metadata import read_metadata
        from trinitylake.iceberg_storage.table_files import TableFiles
        from trinitylake.tables.table_definition import metadata_path

        io = LakehouseFileIO(storage)
        try:
            path = metadata_path(definition, location)
            metadata = read_metadata(io, io.uri_of(path), path)
        except TrinityLakeError as error:
            return [Problem(location, str(error))], 1
        except FileNotFoundError:
            return [Problem(path, "it is missing")], 1
        found = list(TableFiles(io, metadata).found())
        return [Problem(one.path, one.problem) for one in found if one.problem], len(found) + 1


def verify(
    root: str | os.PathLike[str],
    *,
    version: int | None = None,
    files: bool = False,
    progress: Callable[[int, int], object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> Verification:
    """Read and check every node and every definition of a version.

    Args:
        root: the URI of the lakehouse.
        version: the latest if not given.
        files: look also for the files of managed tables: metadata, manifest lists, manifests, data files, statistics.
            Manifest lists and manifests are read; of the others only the names are looked up.
        progress: is called from time to time, with how many parts are done, and how many there are.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    Raises:
        VersionNotFound, VersionExpired: there is no such version.
        CorruptFile: its root cannot be read.
    """
    verifier, result, subtrees = begun(root, version, files, storage_options, durability, PARTS)
    storage = verifier.storage()
    for done, subtree in enumerate(subtrees):
        if progress is not None:
            progress(done, len(subtrees))
        result += verifier.verify(storage, subtree)
    if progress is not None:
        progress(len(subtrees), len(subtrees))
    return result


def begun(
    root: str | os.PathLike[str],
    version: int | None,
    files: bool,
    storage_options: Mapping[str, str] | None,
    durability: Durability | None,
    parts: int,
) -> tuple[Verifier, Verification, list[Subtree]]:
    """The upper nodes of a version, verified, and at least so many subtrees that are left, if there are."""
    from trinitylake.core import KeySizes
    from trinitylake.definitions import parse_lakehouse_def

    lake = open_lakehouse(root, storage_options=storage_options, durability=durability)
    view = lake.at(version=version)
    definition = parse_lakehouse_def(view.state().definition)
    sizes = KeySizes(
        definition.namespace_name_max_size_bytes,
        definition.table_name_max_size_bytes,
        definition.view_name_max_size_bytes,
    )
    verifier = Verifier(lake.uri, dict(storage_options or {}), durability, view.version, definition.order, sizes, files)
    result, subtrees = _split(verifier, Subtree(core.root_path(view.version)), parts)
    if version is None and lake.core.loss is not None:  # the newest that is there is not the newest that was made
        result += Verification(view.version, problems=(Problem(*lake.core.loss),))
    return verifier, result, subtrees


def _split(verifier: Verifier, root: Subtree, wanted: int) -> tuple[Verification, list[Subtree]]:
    """Walk down level by level until there are as many subtrees as wanted: what was seen on the way, and they."""
    result, level = Verification(verifier.version), [root]
    storage = verifier.storage()
    with ThreadPoolExecutor(NODE_READ_THREADS) as pool:
        while level and len(level) < wanted:
            visited = [verifier.visit(storage, subtree) for subtree in level]
            for one in visited:
                result += verifier.verdict(storage, one, pool)
            level = [child for one in visited for child in one.children]
    return result, level
